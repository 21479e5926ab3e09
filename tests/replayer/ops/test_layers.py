# mypy: allow-untyped-calls
"""Tests that PyTorch's layers have the outputs, gradients and memory of the CPU, and launch the kernels that CUDA launches."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import SurfaceGpu, use

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]


class _Packed(nn.Module):
    """Runs a recurrent layer on sequences of different lengths."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        out, hidden = self.layer(pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True))
        return pad_packed_sequence(out, batch_first=True)[0], hidden


class _Ctc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(6, 5), nn.CTCLoss()

    def forward(self, x: torch.Tensor) -> Any:
        # The targets are drawn on the CPU, because a GPU draws different numbers.
        targets = torch.randint(1, 5, (2, 3)).to(x.device)
        return self.loss(self.head(x).log_softmax(-1), targets, torch.tensor([8, 7]), torch.tensor([3, 2]))


def _x(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.rand(shape),)


def _words(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randint(0, 9, shape),)


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)


LAYERS: dict[str, Case] = {
    "lstm": (lambda: nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True), _x(2, 5, 6)),
    "lstm without biases": (lambda: nn.LSTM(6, 4, bias=False, dropout=0.0), _x(5, 2, 6)),
    "lstm with projections": (lambda: nn.LSTM(6, 4, proj_size=3), _x(5, 2, 6)),
    "lstm with dropout": (lambda: nn.LSTM(6, 4, 3, dropout=0.3), _x(5, 2, 6)),
    "lstm unbatched": (lambda: nn.LSTM(6, 4), _x(5, 6)),
    "lstm packed": (lambda: _Packed(nn.LSTM(6, 4, batch_first=True)), _x(2, 5, 6)),
    "gru": (lambda: nn.GRU(6, 4, 2, bidirectional=True), _x(5, 2, 6)),
    "gru packed": (lambda: _Packed(nn.GRU(6, 4, batch_first=True)), _x(2, 5, 6)),
    "rnn": (lambda: nn.RNN(6, 4, nonlinearity="relu"), _x(5, 2, 6)),
    "lstm cell": (lambda: nn.LSTMCell(6, 4), _x(2, 6)),
    "gru cell": (lambda: nn.GRUCell(6, 4), _x(2, 6)),
    "attention": (lambda: nn.MultiheadAttention(8, 2), lambda: (torch.rand(5, 2, 8),) * 3),
    "attention masked": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda: (*(torch.rand(2, 5, 8),) * 3, torch.tensor([[False] * 4 + [True]] * 2)),
    ),
    "encoder": (_encoder, _x(2, 5, 8)),
    "transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), lambda: (torch.rand(2, 5, 8),) * 2),
    "embedding": (lambda: nn.Embedding(9, 4, padding_idx=0, max_norm=None), _words(2, 5)),
    "embedding bag": (lambda: nn.EmbeddingBag(9, 4, mode="mean"), _words(2, 5)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), _x(2, 3, 7)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, groups=1, dilation=2), _x(2, 3, 7, 7)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(3, 4, 2), _x(1, 3, 4, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding="same"), _x(2, 4, 7, 7)),
    "group norm": (lambda: nn.GroupNorm(2, 4), _x(2, 4, 5, 5)),
    "sync batch norm in one process": (lambda: nn.BatchNorm3d(4), _x(2, 4, 3, 3, 3)),
    "local response norm": (lambda: nn.LocalResponseNorm(2), _x(2, 4, 5, 5)),
    "ctc": (_Ctc, _x(8, 2, 6)),
    "pools": (
        lambda: nn.Sequential(
            nn.AdaptiveAvgPool2d((6, 5)), nn.MaxPool2d(2, 1), nn.FractionalMaxPool2d(2, 1), nn.LPPool2d(2, 1)
        ),
        _x(2, 4, 9, 9),
    ),
    "shuffles": (lambda: nn.Sequential(nn.PixelShuffle(2), nn.Unfold(2), nn.ChannelShuffle(2)), _x(2, 8, 3, 3)),
    "bilinear": (lambda: nn.Bilinear(6, 5, 4), lambda: (torch.rand(2, 6), torch.rand(2, 5))),
    "activations": (
        lambda: nn.Sequential(nn.PReLU(), nn.SiLU(), nn.Mish(), nn.GLU(), nn.Hardswish(), nn.RReLU(), nn.Softmin(-1)),
        _x(2, 8),
    ),
}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _train(model: nn.Module, inputs: tuple[Any, ...], dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Run a step of AdamW, and return the results to compare."""
    optimizer = torch.optim.AdamW(model.parameters()) if list(model.parameters()) else None
    for value in inputs:
        if value.is_floating_point():
            value.requires_grad_()
    kind = "cuda" if inputs[0].is_cuda else "cpu"
    with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
        outputs = [x for x in _tensors(model(*inputs)) if x.is_floating_point()]
    sum(x.float().sum() for x in outputs if x.requires_grad).backward()  # type: ignore[union-attr]
    if optimizer is not None:
        optimizer.step()
    named = [*model.named_parameters(), *((str(i), x) for i, x in enumerate(inputs))]
    return {
        "outputs": [(tuple(x.shape), x.dtype, x.requires_grad) for x in outputs],
        "strides": [x.stride() for x in outputs],
        "gradients": {name: None if x.grad is None else (tuple(x.grad.shape), x.grad.dtype) for name, x in named},
        "state": {name: (tuple(x.shape), x.dtype) for name, x in model.state_dict().items()},
        "bytes": sum(x.nbytes for x in model.state_dict().values()),
    }


def _pair(name: str) -> tuple[nn.Module, tuple[Any, ...], nn.Module, tuple[Any, ...]]:
    make, inputs = LAYERS[name]
    host = make()
    on_host = inputs()
    return host, on_host, copy.deepcopy(host).cuda(), tuple(value.detach().cuda() for value in on_host)


def test_layers_train_the_same_on_gpu_and_cpu() -> None:
    use(name="NVIDIA A100-SXM4-40GB")
    failures = []
    for name in LAYERS:
        try:
            host, on_host, device, on_device = _pair(name)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*not supported with oneDNN")  # the CPU's layer gives this warning
                want = _train(host, on_host)
            have = _train(device, on_device)
            for fact in want:
                if fact != "strides":
                    assert have[fact] == want[fact], fact
            assert all(type(x) is VirtualTensor for x in device.state_dict().values())
        except Exception:
            failures.append(f"--- {name}\n{traceback.format_exc(limit=-4)}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_layers_train_under_autocast(kind: str) -> None:
    use(name="NVIDIA A100-SXM4-40GB")
    failures = []
    for name in LAYERS:
        try:
            _, _, device, on_device = _pair(name)
            facts = _train(device, on_device, getattr(torch, kind))
            assert all(grad is None or grad[1] is torch.float32 for grad in facts["gradients"].values())
            assert facts["outputs"]
        except Exception:
            failures.append(f"--- {name}\n{traceback.format_exc(limit=-4)}")
    assert not failures, "\n".join(failures)


def _launched(layer: nn.Module, *inputs: torch.Tensor, gpu: SurfaceGpu) -> set[str]:
    gpu.launched_ops.clear()
    outputs = _tensors(layer(*inputs))
    sum(x.float().sum() for x in outputs if x.requires_grad).backward()  # type: ignore[union-attr]
    return set(gpu.launched)


def test_recurrent_layers_use_cudnn() -> None:
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    for make in (nn.LSTM, nn.GRU, nn.RNN):
        launched = _launched(make(6, 4, 2).cuda(), torch.rand(5, 2, 6, device="cuda"), gpu=gpu)
        assert {"_cudnn_rnn", "_cudnn_rnn_backward"} <= launched
        assert not {"addmm", "mm", "tanh", "_thnn_fused_lstm_cell"} & launched
    with torch.backends.cudnn.flags(enabled=False):
        launched = _launched(nn.LSTM(6, 4).cuda(), torch.rand(5, 2, 6, device="cuda"), gpu=gpu)
        cells = _launched(nn.GRU(6, 4).cuda(), torch.rand(5, 2, 6, device="cuda"), gpu=gpu)
        with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
            nn.GRU(6, 4).cuda()(torch.rand(0, 2, 6, device="cuda"))
    assert "_thnn_fused_lstm_cell" in launched and "_cudnn_rnn" not in launched
    assert "_thnn_fused_gru_cell" in cells and "_cudnn_rnn" not in cells


def test_cudnn_accepts_batch_first_data_without_a_transpose() -> None:
    """cuDNN's op swaps the batch and time dimensions itself, so a recording has batch-first shapes
    (ATen/native/cudnn/RNN.cpp)."""
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    data = torch.rand(2, 5, 6, device="cuda", requires_grad=True)
    out, _ = nn.LSTM(6, 4, batch_first=True).cuda()(data)
    signature = next(signature for signature, _ in gpu.launched_ops if signature.op == "aten::_cudnn_rnn")
    assert signature.shapes[0] == (2, 5, 6)
    assert (out.grad_fn.name(), tuple(out.shape), out.stride()) == ("CudnnRnnBackward0", (2, 5, 4), (4, 8, 1))
    (gradient,) = torch.autograd.grad(out.sum(), data)
    assert gradient.stride() == (6, 12, 1)


@pytest.mark.parametrize("cell_class", ["LSTMCell", "GRUCell"])
def test_recurrent_cells_check_sizes_like_pytorch(cell_class: str) -> None:
    use()
    cell, x = getattr(nn, cell_class)(6, 4).cuda(), torch.rand(2, 6, device="cuda")
    for given, hidden, message in (
        (torch.rand(2, 5, device="cuda"), (2, 4), "input has inconsistent input_size: got 5 expected 6"),
        (x, (2, 3), "hidden0 has inconsistent hidden_size: got 3, expected 4"),
        (x, (3, 4), "Input batch size 2 doesn't match hidden0 batch size 3"),
    ):
        state = torch.zeros(hidden, device="cuda")
        with pytest.raises(RuntimeError, match=message):
            cell(given, (state, state) if cell_class == "LSTMCell" else state)


def test_batch_norm_checks_sizes_like_pytorch() -> None:
    use()
    x, three, four = (torch.ones(size, device="cuda") for size in ((2, 3, 5), 3, 4))
    with pytest.raises(RuntimeError, match="running_mean should contain 3 elements not 4"):
        nn.functional.batch_norm(x, four, three, training=True)
    with pytest.raises(RuntimeError, match="weight should contain 3 elements not 4"):
        nn.functional.batch_norm(x, three, three, weight=four, training=True)
    with pytest.raises(RuntimeError, match="running_mean must be defined in evaluation mode"):
        nn.functional.batch_norm(x, None, None, training=False)
    assert nn.BatchNorm1d(3).cuda()(x[:0]).shape == (0, 3, 5)


def test_the_weights_of_a_recurrent_layer_share_one_buffer_like_their_gradients() -> None:
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    layer: Any = nn.LSTM(6, 4, 2, bidirectional=True).cuda()
    weights: list[Any] = list(layer.parameters())
    weight_bytes = sum(weight.nbytes for weight in weights)
    assert len({id(weight.allocation) for weight in weights}) == 1 and gpu.live_bytes() == weight_bytes
    layer(torch.rand(5, 2, 6, device="cuda"))[0].sum().backward()
    assert len({id(weight.grad.allocation) for weight in weights}) == 1 and gpu.live_bytes() == 2 * weight_bytes
    starts = {weight.data_ptr() for weight in weights}
    assert len(starts) == len(weights) and max(starts) - min(starts) == weight_bytes - weights[-1].nbytes
    scattered = copy.deepcopy(layer)
    for weight in scattered.parameters():
        weight.data = weight.data.clone()
    with pytest.warns(UserWarning, match="not part of single contiguous chunk"):
        scattered(torch.rand(5, 2, 6, device="cuda"))


def test_the_backward_pass_of_a_cudnn_rnn_requires_training_mode() -> None:
    use()
    out, _ = nn.LSTM(6, 4).cuda().eval()(torch.rand(5, 2, 6, device="cuda"))
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        out.sum().backward()


def test_autocast_runs_recurrent_layers_in_half_precision() -> None:
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    layer: Any = nn.LSTM(6, 4, 2).cuda()
    x = torch.rand(5, 2, 6, device="cuda")
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=dtype):
            out, (h, c) = layer(x)
        assert {value.dtype for value in (out, h, c)} == {torch.float16}  # for cuDNN, autocast always casts to float16
        out.sum().backward()
    signature = next(signature for signature, _ in gpu.launched_ops if signature.op == "aten::_cudnn_rnn")
    assert set(signature.dtypes) == {"float16"}
    assert all(weight.grad.dtype is torch.float32 for weight in layer.parameters())

    # `Linear` returns bfloat16, and autocast casts this result to float16 for the LSTM.
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out, _ = layer(nn.Linear(3, 6).cuda()(torch.rand(5, 2, 3, device="cuda")))
    assert out.dtype is torch.float16
    out.float().sum().backward()


def test_autocast_casts_the_inputs_of_cudnn_convolutions() -> None:
    use()
    x, weight = torch.rand(2, 3, 8, 8, device="cuda"), torch.rand(4, 3, 3, 3, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = torch.cudnn_convolution(x, weight, [1, 1], [1, 1], [1, 1], 1, False, False, True)
    assert out.dtype is torch.bfloat16


def test_the_channels_last_layout_is_kept_through_a_network() -> None:
    use()
    host = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 4, 2))
    nets: list[Any] = [copy.deepcopy(host).cuda(), host]
    device, host = (net.to(memory_format=torch.channels_last) for net in nets)
    x = torch.rand(2, 3, 9, 9).to(memory_format=torch.channels_last)
    want, have = host(x), device(x.cuda())
    assert have.stride() == want.stride() and have.is_contiguous(memory_format=torch.channels_last)
    want.sum().backward(), have.sum().backward()
    for one, other in zip(device.parameters(), host.parameters(), strict=True):
        assert one.grad.stride() == other.grad.stride()


def test_a_transformer_encoder_uses_its_fast_path_for_inference() -> None:
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    model = _encoder().cuda().eval()
    gpu.launched_ops.clear()
    with torch.inference_mode():
        out = model(torch.rand(2, 5, 8, device="cuda"))
    assert out.shape == (2, 5, 8) and "_transformer_encoder_layer_fwd" in gpu.launched


def test_functorch_transforms_vmap_and_grad_work() -> None:
    use()
    weight, x = torch.rand(4, 6, device="cuda"), torch.rand(3, 6, device="cuda")
    assert torch.func.vmap(lambda row: weight @ row)(x).shape == (3, 4)
    model = nn.Linear(6, 2).cuda()
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, Any], row: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(model, parameters, (row,)).sum()
        return out

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    assert {name: tuple(grad.shape) for name, grad in each.items()} == {"weight": (3, 2, 6), "bias": (3, 2)}
    assert torch.func.jacrev(lambda row: weight @ row)(x[0]).shape == (4, 6)
    assert all(type(grad) is VirtualTensor for grad in each.values())


def test_a_compiled_layer_runs_eagerly() -> None:
    gpu = use()
    model: Any = torch.compile(nn.LSTM(6, 4).cuda())
    assert {"_cudnn_rnn", "_cudnn_rnn_backward"} <= _launched(model, torch.rand(5, 2, 6, device="cuda"), gpu=gpu)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_backward_of_a_16_bit_layer_norm_accepts_float32_statistics(name: str) -> None:
    """A compiled backward pass calls this op with the statistics that the forward pass has returned."""
    use()
    dtype = getattr(torch, name)
    x, weight = torch.ones(8, 64, device="cuda", dtype=dtype), torch.ones(64, device="cuda", dtype=dtype)
    y, mean, rstd = torch.ops.aten.native_layer_norm(x, [64], weight, weight, 1e-5)
    assert (mean.dtype, rstd.dtype) == (torch.float32, torch.float32)
    grads = torch.ops.aten.native_layer_norm_backward(y, x, [64], mean, rstd, weight, weight, [True] * 3)
    assert [grad.dtype for grad in grads] == [dtype] * 3
