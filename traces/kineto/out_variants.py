"""Which of an op's arguments are results that it writes into: those of `out=`, which stand last and are no operands.

    results_among("aten::mm", ["float", "float", "float"])           # 1: torch.mm(a, b, out=c)
    results_among("aten::mm", ["float", "float"])                    # 0
    results_among("aten::add", ["float", "float", "Scalar", "float"])  # 1

torch's schemas tell operands from results, by overload ("aten::mm.out"). Profilers mostly write the op's name alone; then the
number of its arguments tells, for an out variant has one more for each result. Where another overload has as many, and tensors
in the same places (max(self, other) and max(self, dim, keepdim) are none), it cannot be told, and the op is not in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

# Of all ops of ATen in torch 2.13 that have out variants: by (arguments in all, results among them). Made from torch's own
# registry; `tests/traces/test_kineto_shapes.py` compares the two.
_OPS_BY_ARGUMENTS: dict[tuple[int, int], str] = {
    (2, 1): (
        "_coalesce _conj_copy _conj_physical _efficientzerotensor _foreach_abs _foreach_acos _foreach_asin _foreach_atan "
        "_foreach_ceil _foreach_cos _foreach_cosh _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor "
        "_foreach_frac _foreach_lgamma _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_neg "
        "_foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh "
        "_foreach_sqrt _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero _indices_copy _neg_view_copy "
        "_nested_get_values_copy _nested_tensor_size _nested_tensor_storage_offsets _nested_tensor_strides "
        "_test_autograd_multiple_dispatch _test_autograd_multiple_dispatch_view_copy _test_warn_in_autograd _values_copy abs "
        "absolute acos acosh alias_copy all angle any arange arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan "
        "atanh bartlett_window bitwise_not blackman_window block_diag ccol_indices_copy ceil chain_matmul col_indices_copy "
        "column_stack conj_physical cos cosh crow_indices_copy deg2rad dequantize detach_copy digamma dstack erf erfc erfinv "
        "exp exp2 expm1 eye fix floor frac hamming_window hann_window hardsigmoid hardswish hstack i0 indices_copy int_repr "
        "inverse isinf isnan isneginf isposinf kaiser_window lgamma lift lift_fresh_copy linalg_det linalg_eigvals linalg_inv "
        "linalg_matrix_exp linalg_multi_dot log log10 log1p log2 log_sigmoid logical_not median mish msort nanmedian neg "
        "negative nonzero ones q_per_channel_scales q_per_channel_zero_points rad2deg rand randn randperm reciprocal relu "
        "round row_indices_copy row_stack rsqrt scalar_tensor sgn sigmoid sign signbit silu sin sinc sinh sparse_coo_tensor "
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_digamma special_entr "
        "special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit special_expm1 special_gammaln "
        "special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr special_modified_bessel_i0 "
        "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtr special_ndtri "
        "special_psi special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_sinc "
        "special_spherical_bessel_j0 sqrt square squeeze_copy t_copy tan tanh trace trunc values_copy view_as_complex_copy "
        "view_as_real_copy vstack zero zeros"
    ),
    (3, 1): (
        "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _coalesced "
        "_compute_linear_combination _copy_from_and_resize _euclidean_dist _foreach_add _foreach_clamp_max _foreach_clamp_min "
        "_foreach_clone _foreach_div _foreach_maximum _foreach_minimum _foreach_mul _foreach_pow _foreach_sub _fw_primal_copy "
        "_int_mm _logcumsumexp _mkldnn_reshape _nested_from_padded_and_nested_example _pdist_forward _pin_memory "
        "_sample_dirichlet _sparse_broadcast_to_copy _sparse_sparse_matmul _sparse_sum _stack _standard_gamma "
        "_standard_gamma_grad _test_functorch_fallback _test_optional_filled_intlist _test_optional_floatlist "
        "_test_optional_intlist _to_sparse _to_sparse_csc _to_sparse_csr _unsafe_view adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d adaptive_avg_pool3d_backward arctan2 atan2 bartlett_window bernoulli bitwise_and "
        "bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor blackman_window bmm cat celu channel_shuffle cholesky "
        "cholesky_inverse clamp_max clamp_min clone complex concat concatenate copysign count_nonzero cudnn_grid_sampler diag "
        "div divide dot empty empty_like empty_permuted empty_strided eq eye fft_fftfreq fft_rfftfreq fill flip float_power "
        "floor_divide fmax fmin fmod full gcd ge gelu ger glu greater greater_equal gt hamming_window hann_window hardshrink "
        "hardsigmoid_backward hardswish_backward heaviside hspmm hypot igamma igammac index inner kaiser_window kron lcm "
        "ldexp le leaky_relu less less_equal linalg_cholesky linalg_cond linalg_eigvalsh linalg_householder_product "
        "linalg_matmul linalg_matrix_power linalg_svdvals linalg_tensorinv logaddexp logaddexp2 logcumsumexp logical_and "
        "logical_or logical_xor logit lt masked_select matmul matrix_power max maximum mean min minimum "
        "mkldnn_adaptive_avg_pool2d mkldnn_adaptive_avg_pool2d_backward mm mul multiply mv mvlgamma native_norm ne new_empty "
        "new_ones new_zeros nextafter norm not_equal nuclear_norm ones_like orgqr outer permute_copy pixel_shuffle "
        "pixel_unshuffle poisson polar polygamma pow prod rand rand_like randint randn randn_like random randperm range "
        "reflection_pad1d reflection_pad2d reflection_pad3d remainder repeat repeat_interleave replication_pad1d "
        "replication_pad2d replication_pad3d resize_as_sparse round set sigmoid_backward silu_backward softshrink sparse_mask "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_gammainc special_gammaincc special_hermite_polynomial_h "
        "special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p special_logit "
        "special_multigammaln special_polygamma special_round special_shifted_chebyshev_polynomial_t "
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w "
        "special_xlog1py special_xlogy special_zeta squeeze_copy stack sum take tanh_backward to_mkldnn tril triu true_divide "
        "unbind_copy unsqueeze_copy vdot view_copy xlogy zeros_like"
    ),
    (3, 2): "_aminmax frexp geqrf linalg_eig linalg_slogdet log_sigmoid_forward slogdet",
    (4, 1): (
        "_add_relu _amp_foreach_non_finite_check_and_unscale _cholesky_solve_helper _chunk_cat "
        "_convert_indices_from_coo_to_csr _copy_from _cudnn_init_dropout_state _dirichlet_grad _foreach_add _foreach_copy "
        "_foreach_lerp _foreach_norm _foreach_powsum _foreach_sub _log_softmax _make_dual_copy "
        "_make_per_tensor_quantized_tensor _masked_scale _mkldnn_transpose _nested_from_padded _nested_tensor_from_mask "
        "_new_zeros_with_same_feature_meta _reshape_alias_copy _resize_output _softmax _sparse_coo_tensor_with_dims "
        "_sparse_log_softmax _sparse_mask_projection _sparse_softmax _sparse_sum_backward _to_copy _to_dense _to_sparse_bsc "
        "_to_sparse_bsr _upsample_nearest_exact1d adaptive_max_pool2d_backward adaptive_max_pool3d_backward add "
        "affine_grid_generator all amax amin any arange argmax argmin bernoulli bincount binomial bmm cholesky_solve clamp "
        "clip constant_pad_nd copy copy_sparse_to_sparse cross cumprod cumsum dist div divide empty_quantized expand_copy "
        "exponential frobenius_norm from_file full_like gelu_backward geometric glu_backward hamming_window "
        "hardshrink_backward hardtanh index_select kaiser_window lerp linalg_cross linalg_matrix_rank linalg_pinv "
        "linalg_solve linalg_tensorsolve linalg_vecdot linear linspace log_sigmoid_backward log_softmax logit_backward "
        "logsumexp lu_solve masked_fill masked_scatter max_unpool2d mkldnn_linear mkldnn_linear_backward_input mm mse_loss "
        "multilabel_margin_loss native_dropout_backward new_empty_strided new_full nonzero_static norm normal nuclear_norm "
        "quantize_per_tensor_dynamic rand_like randint randint_like randn_like random range reflection_pad1d_backward "
        "reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward "
        "replication_pad3d_backward resize resize_as roll rot90 rsub select_copy soft_margin_loss softmax softplus "
        "softshrink_backward special_logsumexp split_copy split_with_sizes_copy sub subtract take_along_dim threshold "
        "threshold_backward to_padded_tensor transpose_copy tril_indices triu_indices unsafe_split unsafe_split_with_sizes "
        "upsample_nearest1d upsample_nearest2d where"
    ),
    (4, 2): (
        "adaptive_max_pool2d adaptive_max_pool3d batch_norm_stats cummax cummin linalg_eigh linalg_inv_ex linalg_ldl_factor "
        "linalg_lu_factor linalg_qr qr"
    ),
    (4, 3): "_linalg_det",
    (5, 1): (
        "_cdist_forward _convert_indices_from_csr_to_coo _empty_affine_quantized _fft_c2c _fft_c2r _fft_r2c _foobar "
        "_foreach_addcdiv _foreach_addcmul _histogramdd_from_bin_tensors _log_softmax_backward_data "
        "_make_per_channel_quantized_tensor _masked_softmax _masked_softmax_backward _nested_view_from_buffer_copy "
        "_pdist_backward _philox_normal _philox_uniform _softmax_backward_data _sparse_csr_prod _sparse_csr_sum "
        "_sparse_log_softmax_backward_data _sparse_softmax_backward_data _spdiags _to_sparse _triton_scaled_dot_attention "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d addcdiv addcmul argsort as_strided_copy "
        "binary_cross_entropy bucketize cauchy conv_tbc diag_embed diagonal_copy elu embedding_renorm fft_fft fft_fft2 "
        "fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft "
        "fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn gather glu_jvp hamming_window hardtanh_backward hash_tensor histc "
        "huber_loss index_copy index_fill index_put isin leaky_relu_backward linalg_ldl_solve linalg_matrix_rank linalg_pinv "
        "log_normal logspace mean mse_loss_backward multinomial nan_to_num nanmean nansum narrow_copy norm normal prod put "
        "quantize_per_tensor randint randint_like random renorm scatter scatter_add select_backward select_scatter "
        "smooth_l1_loss soft_margin_loss_backward softplus_backward sparse_resize sparse_resize_and_clear std sum tensordot "
        "unfold_copy uniform upsample_bilinear2d upsample_linear1d upsample_nearest1d_backward upsample_nearest2d var"
    ),
    (5, 2): (
        "_aminmax _fused_dropout _linalg_eigh _pack_padded_sequence _unique _weight_norm_interface aminmax "
        "cudnn_grid_sampler_backward linalg_cholesky_ex max median min mode multilabel_margin_loss_forward nanmedian "
        "native_dropout sort"
    ),
    (5, 3): "linalg_lu",
    (5, 4): "_linalg_slogdet",
    (6, 1): (
        "_cdist_backward _empty_per_channel_affine_quantized _grid_sampler_2d_cpu_fallback _histogramdd_bin_edges "
        "_histogramdd_from_bin_cts _index_put_impl _nested_tensor_from_tensor_list _nnpack_spatial_convolution _sparse_addmm "
        "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_lanczos2d_aa _upsample_nearest_exact2d_backward "
        "_upsample_nearest_exact3d addbmm addmm addmv addr as_strided_scatter baddbmm binary_cross_entropy_backward "
        "binary_cross_entropy_with_logits cudnn_affine_grid_generator cudnn_affine_grid_generator_backward diagonal_backward "
        "diagonal_scatter diff embedding embedding_dense_backward fractional_max_pool2d_backward "
        "fractional_max_pool3d_backward grid_sampler_2d grid_sampler_3d huber_loss_backward im2col index_add linalg_lu_solve "
        "linalg_matrix_norm linalg_norm linalg_solve_triangular linalg_vector_norm max_unpool3d "
        "multilabel_margin_loss_backward nanquantile native_norm nll_loss nll_loss2d norm ormqr quantile quantize_per_channel "
        "randint_like scatter set slice_copy smooth_l1_loss_backward sparse_sampled_addmm sspaddmm unfold_backward "
        "upsample_bicubic2d upsample_bilinear2d upsample_linear1d_backward upsample_nearest2d_backward upsample_nearest3d"
    ),
    (6, 2): (
        "batch_norm_update_stats fractional_max_pool2d fractional_max_pool3d histogram kthvalue linalg_solve_ex "
        "matmul_backward mkldnn_linear_backward_weights sort std_mean var_mean"
    ),
    (6, 3): "_transform_bias_rescale_qkv linalg_ldl_factor_ex linalg_lu_factor_ex linalg_svd svd",
    (7, 1): (
        "_addmm_activation _amp_update_scale _fake_quantize_learnable_per_tensor_affine _slow_conv2d_forward "
        "_sparse_coo_tensor_with_dims_and_tensors _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward "
        "_upsample_lanczos2d_aa_backward _upsample_nearest_exact3d_backward addmm avg_pool1d baddbmm batch_norm_elemt col2im "
        "elu_backward glu_backward_jvp index_reduce mkldnn_max_pool2d mkldnn_max_pool3d mkldnn_reorder_conv2d_weight "
        "mkldnn_reorder_conv3d_weight multi_margin_loss quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d "
        "rrelu_with_noise scatter_reduce searchsorted slice_backward slice_scatter slow_conv3d slow_conv3d_forward "
        "thnn_conv2d upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_nearest3d_backward "
        "upsample_trilinear3d"
    ),
    (7, 2): (
        "_thnn_fused_gru_cell _weight_norm_interface_backward fake_quantize_per_tensor_affine_cachemask histogram "
        "nll_loss2d_forward nll_loss_forward topk triangular_solve"
    ),
    (7, 3): "_linalg_svd _unique2 linear_backward lu_unpack mkldnn_linear_backward unique_consecutive unique_dim_consecutive",
    (8, 1): (
        "_conv_depthwise2d _embedding_bag_per_sample_weights_backward _fake_quantize_learnable_per_channel_affine "
        "_mps_convolution _mps_convolution_transpose _nested_view_from_jagged_copy avg_pool2d avg_pool3d conv_depthwise3d "
        "cudnn_convolution_relu max_pool2d_backward mkldnn_convolution multi_margin_loss_backward nll_loss2d_backward "
        "nll_loss_backward rrelu_with_noise_backward slow_conv_dilated2d slow_conv_dilated3d upsample_trilinear3d_backward"
    ),
    (8, 2): (
        "_ctc_loss _fake_quantize_per_tensor_affine_cachemask_tensor_qparams fake_quantize_per_channel_affine_cachemask "
        "max_pool2d_with_indices max_pool3d_with_indices"
    ),
    (8, 3): "_thnn_fused_lstm_cell native_layer_norm unique_dim",
    (8, 4): "_linalg_solve_ex linalg_lstsq",
    (8, 5): "_thnn_fused_gru_cell_backward",
    (9, 1): (
        "_scaled_mm _segment_reduce_backward _trilinear avg_pool2d_backward avg_pool3d_backward batch_norm_backward_elemt "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward mkldnn_max_pool2d_backward "
        "mkldnn_max_pool3d_backward quantized_batch_norm segment_reduce slow_conv_transpose2d slow_conv_transpose3d"
    ),
    (9, 2): "_cudnn_ctc_loss grid_sampler_2d_backward grid_sampler_3d_backward miopen_ctc_loss",
    (9, 3): "_native_batch_norm_legit _slow_conv2d_backward _thnn_fused_lstm_cell_backward_impl",
    (10, 1): (
        "_ctc_loss_backward _cudnn_rnn_flatten_weight convolution convolution_overrideable cudnn_convolution "
        "cudnn_convolution_add_relu miopen_convolution miopen_depthwise_convolution"
    ),
    (10, 2): "batch_norm_gather_stats batch_norm_gather_stats_with_counts",
    (10, 3): "_native_batch_norm_legit_no_training _slow_conv2d_backward",
    (11, 1): (
        "_embedding_bag_dense_backward _triton_multi_head_attention cudnn_convolution_transpose miopen_convolution_transpose"
    ),
    (11, 2): "mps_convolution_transpose_backward",
    (11, 3): (
        "_native_batch_norm_legit miopen_batch_norm miopen_batch_norm_backward mps_convolution_backward native_batch_norm "
        "native_group_norm native_layer_norm_backward"
    ),
    (11, 4): "_batch_norm_no_update _batch_norm_with_update",
    (12, 1): "_fused_adagrad",
    (12, 3): "cudnn_batch_norm_backward",
    (12, 4): "batch_norm_backward_reduce cudnn_batch_norm",
    (13, 1): "_fused_sgd _scaled_mm_v2",
    (13, 3): "convolution_backward_overrideable native_batch_norm_backward native_group_norm_backward",
    (13, 4): "_embedding_bag _embedding_bag_forward_only",
    (14, 1): "_convolution",
    (14, 3): "convolution_backward",
    (15, 2): "_fused_moving_avg_obs_fq_helper _native_multi_head_attention",
    (15, 6): "_lstm_mps",
    (16, 1): "_fused_adam _fused_adamw",
    (18, 3): "lstm_mps_backward",
    (19, 5): "miopen_rnn",
    (20, 4): "mkldnn_rnn_layer",
    (21, 1): "_transformer_encoder_layer_fwd",
    (21, 5): "_cudnn_rnn",
    (25, 4): "miopen_rnn_backward",
    (26, 4): "_cudnn_rnn_backward",
    (30, 7): "mkldnn_rnn_layer_backward",
}
_NO_TENSORS = frozenset({"", "Scalar", "ScalarList", "Int", "Bool", "Double", "String", "Device", "Generator", "None"})


@cache
def _results_by_arguments() -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (arguments, results), names in _OPS_BY_ARGUMENTS.items():
        for name in names.split():
            found.setdefault(name, {})[arguments] = results
    return found


def may_write_into_arguments(op: str) -> bool:
    """Whether there is an out variant of the op, given with or without overload ("aten::mm.out", "aten::mm")."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    return op.startswith("aten::") and (name in _results_by_arguments() or overload.endswith("out"))


def results_among(op: str, types: Sequence[object]) -> int:
    """How many of the op's last arguments are results, by its name and its arguments' types as the profiler wrote them."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    if overload and not overload.endswith("out"):
        return 0
    known = _results_by_arguments().get(name, {}) if op.startswith("aten::") else {}
    results = known.get(len(types), 1 if overload else 0)
    last = types[len(types) - results :]
    return results if all(isinstance(told, list) or told not in _NO_TENSORS for told in last) else 0
