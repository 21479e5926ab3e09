"""Maps different names of the same op to one canonical name.

    canonical_op("aten::cudnn_batch_norm") == canonical_op("aten::native_batch_norm") == "batch_norm"
    canonical_op("aten::add_") == "add"

The order of an op's inputs may differ between two PyTorch releases, so the order of input shapes is ignored.
"""

from __future__ import annotations

import re
from math import prod

from traces.model.layouts import Shape

_GROUPS: dict[str, str] = {
    "convolution": "_convolution cudnn_convolution miopen_convolution mkldnn_convolution thnn_conv2d _slow_conv2d_forward"
    " slow_conv3d conv_depthwise3d _conv_depthwise2d cudnn_convolution_relu cudnn_convolution_transpose conv1d conv2d conv3d",
    "convolution_backward": "cudnn_convolution_backward miopen_convolution_backward thnn_conv2d_backward"
    " _slow_conv2d_backward conv_depthwise3d_backward cudnn_convolution_transpose_backward convolution_backward_overrideable"
    " cudnn_convolution_backward_input cudnn_convolution_backward_weight miopen_convolution_backward_input"
    " miopen_convolution_backward_weight",
    "copy": "_to_copy _copy_from",
    "relu": "clamp_min threshold",
    "batch_norm": "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_impl_index"
    " _batch_norm_with_update",
    "batch_norm_backward": "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward"
    " _batch_norm_impl_index_backward",
    "layer_norm": "native_layer_norm",
    "layer_norm_backward": "native_layer_norm_backward",
    "group_norm": "native_group_norm",
    "group_norm_backward": "native_group_norm_backward",
    "dropout": "native_dropout _fused_dropout",
    "dropout_backward": "native_dropout_backward masked_scale _masked_scale",
    "log_softmax": "_log_softmax",
    "log_softmax_backward": "_log_softmax_backward_data",
    "softmax": "_softmax",
    "softmax_backward": "_softmax_backward_data",
    "nll_loss": "nll_loss_forward nll_loss_nd nll_loss2d nll_loss2d_forward",
    "nll_loss_backward": "nll_loss2d_backward",
    "max_pool2d": "max_pool2d_with_indices",
    "max_pool2d_backward": "max_pool2d_with_indices_backward",
    "adaptive_avg_pool2d": "_adaptive_avg_pool2d",
    "adaptive_avg_pool2d_backward": "_adaptive_avg_pool2d_backward",
    "attention": "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_cudnn_attention _flash_attention_forward _efficient_attention_forward _cudnn_attention_forward"
    " scaled_dot_product_attention flex_attention",
    "attention_backward": "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_cudnn_attention_backward _flash_attention_backward _efficient_attention_backward"
    " _cudnn_attention_backward flex_attention_backward",
    "rnn": "_cudnn_rnn miopen_rnn",
    "rnn_backward": "_cudnn_rnn_backward miopen_rnn_backward",
    "embedding_backward": "embedding_dense_backward",
    "ctc_loss": "_ctc_loss _cudnn_ctc_loss",
    "item": "_local_scalar_dense",
    "chunk_cat": "_chunk_cat",  # called by fsdp::chunk_cat of FSDP2
}
_CANONICAL = {name: group for group, names in _GROUPS.items() for name in names.split()}
CANONICAL_OPS = frozenset(_GROUPS)
_LENGTH, _ANONYMOUS = re.compile(r"\d+"), "_GLOBAL__N_1"  # each part of a mangled name begins with its length


def canonical_op(op: str) -> str:
    bare = op.rpartition("::")[2].partition(".")[0]
    if bare in _CANONICAL:
        return _CANONICAL[bare]
    stripped = bare.rstrip("_") or bare
    return _CANONICAL.get(stripped, stripped)


def canonical_shapes(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    wide = {shape for shape in shapes if len(shape) > 1}
    return tuple(sorted(wide or {shape for shape in shapes if shape}))


def shapes_of_canonical(op: str, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return an op's input shapes in a form that is the same in all PyTorch releases."""
    wide = [shape for shape in shapes if len(shape) > 1]
    return tuple(sorted(wide, key=lambda shape: (-prod(shape), shape))) if op in _GROUPS and wide else shapes


def kernel_text(name: str) -> str:
    """Shorten a kernel's name: remove "void" and the parameters. Mangled names become readable: "_ZN5aiter8rms_normILi4EEEvPT_"
    becomes "aiter::rms_norm<Li4EEEvPT_>"."""
    if name.startswith("_ZN"):
        return _readable(name)
    name = name.removeprefix("void ")
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if depth == 0:
            return name if at == 0 or name[at - 1] == " " else name[:at]  # keeps "Memcpy HtoD (Pageable -> Device)" unchanged
    return name


def _readable(mangled: str) -> str:
    parts, at = [], len("_ZN")
    while found := _LENGTH.match(mangled, at):
        at = found.end() + int(found[0])
        parts.append("(anonymous namespace)" if mangled[found.end() : at] == _ANONYMOUS else mangled[found.end() : at])
    template, rest = mangled[at : at + 1], mangled[at + 1 :]
    if not parts or template not in ("I", "E"):
        return mangled
    return "::".join(parts) + (f"<{rest}>" if template == "I" else "")
