# mypy: allow-untyped-calls
"""Tests training with virtual tensors: modules, optimizers, rare features of autograd, autocast, gradient scaling, and exact
memory."""

from __future__ import annotations

import copy
import gc
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import use
from traces.model.machine import Machine

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 3)), (4, 6)),
    "convnet": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten()),
        (2, 3, 8, 8),
    ),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(6), nn.RMSNorm(6), nn.Softmax(-1)), (4, 6)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (2, 3, 8, 8)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "attention": (lambda: _First(nn.MultiheadAttention(8, 2, batch_first=True), 3), (2, 5, 8)),
    "lstm": (lambda: _First(nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True)), (2, 5, 6)),
    "gru": (lambda: _First(nn.GRU(6, 4, dropout=0.1, num_layers=2)), (5, 2, 6)),
    "rnn": (lambda: _First(nn.RNN(6, 4)), (5, 2, 6)),
    "lstm cell": (lambda: _First(nn.LSTMCell(6, 4)), (2, 6)),
    "upsample": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 3, 2, 2), nn.Upsample(scale_factor=2)), (1, 3, 4, 4)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), (4, 6)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)), (4, 6)),
}


class _First(nn.Module):
    """Calls a module `times` times with the same input, and returns the first result."""

    def __init__(self, module: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.module, self.times = module, times

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(*[x] * self.times)[0]


def _train(make: Callable[[], nn.Module], shape: tuple[int, ...], device: str) -> tuple[torch.Tensor, nn.Module]:
    model: Any = make().to(device)
    x = torch.rand(shape).to(device).requires_grad_()
    out = model(x)
    out.sum().backward()
    assert x.grad is not None
    return out, model


def test_modules_train_the_same_on_gpu_and_cpu() -> None:
    use()
    failures = []
    for name, (make, shape) in MODULES.items():
        try:
            want, host = _train(make, shape, "cpu")
            have, device = _train(make, shape, "cuda")
            assert type(have) is VirtualTensor and have.shape == want.shape and have.dtype == want.dtype
            here: Any
            for (key, here), there in zip(device.named_parameters(), host.parameters(), strict=True):
                assert type(here) in {nn.Parameter} and isinstance(here, nn.Parameter) and here.is_leaf, key
                assert here.grad is not None and there.grad is not None and here.grad.shape == there.grad.shape, key
            assert {key: x.shape for key, x in device.state_dict().items()} == {
                key: x.shape for key, x in host.state_dict().items()
            }
        except Exception:
            failures.append(f"--- {name}\n{traceback.format_exc(limit=-3)}")
    assert not failures, "\n".join(failures)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "sgd loop": lambda p: torch.optim.SGD(p, 0.1, foreach=False),
    "adam": lambda p: torch.optim.Adam(p),
    "adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adam fused": lambda p: torch.optim.Adam(p, fused=True),
    "adam capturable": lambda p: torch.optim.Adam(p, capturable=True),
    "adamw": lambda p: torch.optim.AdamW(p),
    "adamw fused": lambda p: torch.optim.AdamW(p, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p),
}


def test_optimizers_launch_the_same_ops_as_with_a_real_gpu() -> None:
    gpu = use()
    failures = []
    for name, make in OPTIMIZERS.items():
        try:
            model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).cuda()
            optimizer = make(model.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.rand(4, 6, device="cuda")).sum().backward()
                gpu.launched_ops.clear()
                optimizer.step()
            loops = name == "sgd loop"
            expected = "_fused_" if "fused" in name else "add_" if loops else "_foreach_"
            assert any(op.startswith(expected) for op in gpu.launched), gpu.launched
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.zero_grad(set_to_none=False)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        except Exception:
            failures.append(f"--- {name}\n{traceback.format_exc(limit=-3)}")
    assert not failures, "\n".join(failures)


def test_an_averaged_model_is_updated_with_foreach_kernels() -> None:
    gpu = use()
    model = nn.Linear(6, 8).cuda()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)  # the first update copies the parameters
    gpu.launched_ops.clear()
    averaged.update_parameters(model)
    assert "_foreach_lerp_" in gpu.launched and "sub" not in gpu.launched, gpu.launched


def test_parameters_stay_the_same_objects_when_a_module_moves() -> None:
    use()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert model.cuda() is model
    for now, then in zip(model.parameters(), before, strict=True):
        assert now is then and now.is_cuda and isinstance(now, nn.Parameter) and now.requires_grad
    assert model[1].running_mean.is_cuda
    model(torch.rand(2, 4).cuda()).sum().backward()
    optimizer.step()
    model.half()
    assert all(now is then and now.dtype == torch.float16 for now, then in zip(model.parameters(), before, strict=True))
    model.cpu()
    assert all(now is then and type(now).__name__ == "Parameter" for now, then in zip(model.parameters(), before, strict=True))
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_a_state_dict_can_be_loaded_while_an_autograd_graph_exists() -> None:
    """If loading swapped the tensors, the backward pass would fail (see swap.py)."""
    use()
    model = nn.Linear(4, 4).cuda()
    best = copy.deepcopy(model.state_dict())
    loss = model(torch.rand(2, 4, device="cuda")).sum()
    model.load_state_dict(best)
    model(torch.rand(2, 4, device="cuda")).sum().backward()
    assert model.weight.grad is not None and loss.requires_grad


def test_rarely_used_features_of_autograd_work() -> None:
    use()
    x = torch.rand(4, 4, device="cuda", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    first.sum().backward()  # this is a second derivative
    assert x.grad is not None
    seen: list[torch.Size] = []
    handle = x.register_hook(lambda grad: seen.append(grad.shape))
    loss = (x[1:] * 2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    handle.remove()
    assert seen == [torch.Size((4, 4))] * 2
    checkpoint(lambda y: y.relu().exp(), x, use_reentrant=False).sum().backward()
    with torch.no_grad():
        assert not (x * 2).requires_grad
        x += 1
    with torch.inference_mode():
        assert (x @ x).is_inference()

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(value)
            return value * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            assert type(ctx.saved_tensors[0]) is VirtualTensor
            return grads[0] * 2

    out: Any = Double.apply(x)
    out.sum().backward()
    jacobian = torch.func.vmap(torch.func.grad(lambda v: (v**2).sum()))(x.detach())
    assert jacobian.shape == x.shape


_CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.__setitem__(0, 1),
    "view": lambda x: x.view(4).add_(1),
    "part": lambda x: x.chunk(2)[0].zero_(),
    "transpose": lambda x: x.t_(),
    "size": lambda x: x.resize_(1),
    "list": lambda x: torch._foreach_add_([x], 1),
    "diagonal": lambda x: x.fill_diagonal_(1),
    "dropout": lambda x: F.dropout(x, inplace=True),
    "output": lambda x: torch.cat([torch.ones(2, 2, device="cuda")], out=x),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_outside_inference_mode_inference_tensors_cannot_be_changed(name: str) -> None:
    use()
    with torch.inference_mode():
        x = torch.ones(2, 2, device="cuda")
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        _CHANGES[name](x)
    with torch.inference_mode():
        _CHANGES[name](x)


def test_outside_inference_mode_views_of_inference_tensors_cannot_be_saved_for_backward() -> None:
    use()
    weight = torch.ones(2, device="cuda", requires_grad=True)
    with torch.inference_mode():
        x = torch.ones(2, 2, device="cuda")
    for view in (x[0], x.t()[0], x.diagonal(), x.unbind()[1], x.detach()[0]):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            view * weight
    assert not (x[0] + weight).is_inference()  # addition saves no tensors


def test_a_detached_inference_tensor_can_be_changed_but_its_views_cannot() -> None:
    use()
    with torch.inference_mode():
        x = torch.ones(2, 2, device="cuda")
    for detached in (x.detach(), x.data, x[0].detach(), nn.Parameter(x, requires_grad=False)):
        detached.add_(1)
        torch._foreach_add_([detached], 1)
        detached.t_()
        assert detached.is_inference()
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            detached[0].add_(1)


def test_the_inference_mode_alone_decides_whether_a_view_of_another_dtype_is_an_inference_tensor() -> None:
    use()
    normal = torch.ones(2, 2, device="cuda")
    weight = torch.ones(2, 2, device="cuda", requires_grad=True)
    with torch.inference_mode():
        x = torch.ones(2, 2, device="cuda")
        assert normal.view(torch.int32).is_inference() and not normal.view(4).is_inference()
    view = x.view(torch.int32)
    view.add_(1)
    (view * weight).sum().backward()
    assert not view.is_inference() and view.data_ptr() == x.data_ptr() and weight.grad is not None


_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(4),
    "reshape": lambda x: x.reshape(4),
    "flatten": torch.flatten,
    "unflatten": lambda x: x.unflatten(0, (2, 1)),
    "transpose": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 1),
    "expand_as": lambda x: x.expand_as(x),
    "chunk": lambda x: x.chunk(2)[0],
    "tensor_split": lambda x: x.tensor_split(2)[0],
}


@pytest.mark.parametrize("name", _VIEWS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_views_of_a_leaf_created_in_inference_mode_cannot_be_changed_outside(name: str, device: str) -> None:
    use()
    weight = torch.ones(2, 2, device=device, requires_grad=True)
    with torch.inference_mode():
        view = _VIEWS[name](weight)
    assert view._is_view() and not view.is_inference()
    with pytest.raises(RuntimeError, match="created in inference mode and is being modified inplace in normal mode"):
        view.add_(1)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_data_of_an_inference_tensor_can_be_assigned(requires_grad: bool) -> None:
    use()
    with torch.inference_mode():
        x = torch.ones(2, 2, device="cuda")
    y = torch.zeros(3, device="cuda", requires_grad=requires_grad)
    y.data = x
    assert y.is_inference() and y.shape == (2, 2) and y.data_ptr() == x.data_ptr()
    assert y.requires_grad is requires_grad and y._version == 0


def test_the_memory_peak_of_an_mlp_is_exact() -> None:
    """After each pass, exactly the tensors are allocated that autograd or the script still needs."""
    gpu = use()
    layers, width, batch = 4, 64, 32
    model = nn.Sequential(*[layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]).cuda()
    parameters = layers * (width * width + width) * 4
    x = torch.rand(batch, width, device="cuda")
    rows = batch * width * 4
    assert gpu.live_bytes() == parameters + rows
    out = model(x)
    # Each linear layer saves its input. Each relu saves its output, which is the next layer's input. Outputs of linear layers
    # are freed.
    assert gpu.live_bytes() == parameters + rows + layers * rows
    loss = out.sum()
    assert gpu.live_bytes() == parameters + rows + layers * rows + 4
    loss.backward()
    del out, loss
    assert gpu.live_bytes() == 2 * parameters + rows
    model.zero_grad()
    assert gpu.live_bytes() == parameters + rows
    del model, x
    gc.collect()
    assert gpu.live_bytes() == 0


def test_the_sum_of_gradients_takes_over_the_memory_of_a_gradient_without_other_owners() -> None:
    """PyTorch's CUDA build makes the same numbers of allocations on the simulated device."""
    assert _allocations_in_backward(lambda y: y * y) == 3  # two gradients of y, and the gradient of x
    assert _allocations_in_backward(lambda y: y * 3 + y * 4 + y * 5) == 4  # three gradients of y, and the gradient of x
    # y and exp(y) get the same tensor as gradient. The sum of this tensor and of exp's gradient needs memory of its own. The
    # other allocations are the gradients of exp and of y * 3, and the gradient of x.
    assert _allocations_in_backward(lambda y: y * 3 + (y + y.exp())) == 4
    # The gradients of y are views, so their sum needs memory of its own. The gradient of x is copied, because it is transposed.
    assert _allocations_in_backward(lambda y: y.t() * y.t()) == 5
    assert _allocations_in_backward(lambda y: y + y) == 2  # both gradients of y are the same tensor
    kept: list[Any] = []  # owns both gradients of y
    assert _allocations_in_backward(lambda y: _Kept.apply(y, kept) * _Kept.apply(y, kept)) == 6


def test_the_sum_of_temporary_tensors_in_the_backward_function_of_var_mean_gets_memory_of_its_own() -> None:
    """PyTorch's CUDA build makes the same numbers of allocations on the simulated device."""

    def product(y: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(y, 1, keepdim=True)
        return variance * mean

    # one gradient of the product, two of its factors, five temporary tensors of var_mean's backward function and their sum, and
    # the gradient of x
    assert _allocations_in_backward(lambda y: product(y).expand(32, 32)) == 10
    # y gets a second gradient from its multiplication with the product. Autograd adds both gradients of y in place.
    assert _allocations_in_backward(lambda y: y * product(y)) == 12
    # If the script uses only one result, the backward function adds nothing. `var` and `mean` need the same memory.
    for result, single in enumerate((torch.var, torch.mean)):
        alone = _allocations_in_backward(lambda y, single=single: y * single(y, 1, keepdim=True))  # type: ignore[misc]
        assert _allocations_in_backward(lambda y, i=result: y * torch.var_mean(y, 1, keepdim=True)[i]) == alone  # type: ignore[misc]
        assert alone == (8, 5)[result]


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        ctx.kept = kept
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.kept.append(gradient * 2)
        return ctx.kept[-1], None


@pytest.mark.parametrize(("release", "allocations"), [(None, 3), ("1.13.1", 4), ("2.0.0", 3)])
def test_the_recorded_release_decides_whether_autograd_adds_in_place(release: str | None, allocations: int) -> None:
    """Up to PyTorch 1.13, the sum of two gradients needs memory of its own."""
    assert _allocations_in_backward(lambda y: y * y, Machine(torch=release)) == allocations


def _allocations_in_backward(compute: Callable[[torch.Tensor], Any], machine: Machine | None = None) -> int:
    gpu = use()
    gpu.machine = machine or gpu.machine
    x = torch.ones(32, 32, device="cuda", requires_grad=True)
    result, gradient = compute(x * 2), torch.ones(32, 32, device="cuda")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    result.backward(gradient)
    return int(torch.cuda.memory_stats()["allocation.all.allocated"] - before)


def test_a_full_device_raises_the_out_of_memory_error_of_torch() -> None:
    gpu = use()
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 32\.00 GiB"):
        torch.empty(8 << 30, device="cuda")
    assert gpu.live_bytes() == 0


def test_autocast_casts_as_cuda_does() -> None:
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).cuda()
    x = torch.rand(4, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = model[0](x)
        assert hidden.dtype == torch.bfloat16
        assert model[1](hidden).dtype == torch.float32
        gpu.launched_ops.clear()
        model[0](x)
        casts = gpu.launched.count("copy_")
        assert casts == 1  # only the input is cast, because the cast of the weight is cached
        assert (hidden @ hidden.t()).dtype == torch.bfloat16
        assert hidden.sum().dtype == hidden.softmax(-1).dtype == torch.float32
        assert F.mse_loss(hidden, hidden).dtype == torch.float32
        assert torch.addcmul(x, hidden, hidden).dtype == torch.float32
        assert (hidden + x).dtype == torch.float32
        loss = F.cross_entropy(model(x), torch.zeros(4, dtype=torch.int64, device="cuda"))
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, x)
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    live = gpu.live_bytes()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        model[0](x)
        assert gpu.live_bytes() > live
    assert gpu.live_bytes() == live  # the cached casts have been freed


def test_the_gradient_scaler_finds_no_infinite_gradients() -> None:
    use()
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.rand(2, 4, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 65536.0
    assert float(optimizer.state[model.weight]["step"]) == 3.0


def test_attention_launches_the_kernel_that_cuda_selects() -> None:
    def launched(name: str, capability: tuple[int, int], dtype: torch.dtype, masked: bool = False, size: int = 16) -> str:
        gpu = use(name=name, major=capability[0], minor=capability[1])
        q = torch.rand(2, 4, 8, size, device="cuda", dtype=dtype, requires_grad=True)
        mask = torch.ones(8, 8, dtype=torch.bool, device="cuda") if masked else None
        gpu.launched_ops.clear()
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask).sum().backward()
        assert q.grad is not None
        return next(op for op in gpu.launched if "attention" in op or op == "bmm")

    flash, efficient = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"
    ampere, volta = ("NVIDIA A100-SXM4-40GB", (8, 0)), ("Tesla V100-SXM2-16GB", (7, 0))
    assert launched(*ampere, torch.float16) == flash
    assert launched(*ampere, torch.bfloat16, size=20) == flash
    assert launched(*ampere, torch.float32) == efficient
    assert launched(*ampere, torch.float16, masked=True) == efficient
    assert launched(*volta, torch.float16) == efficient
    assert launched(*volta, torch.float64) == "bmm"


def test_errors_in_a_backward_pass_are_raised_in_the_script() -> None:
    """An error in autograd's thread must not end the process."""
    gpu = use()
    x = torch.empty(1 << 30, device="cuda", requires_grad=True)  # this tensor takes 4 of 16 GiB
    for _ in range(2):
        loss = (x * x).exp().sum()  # the forward pass takes 12 GiB, and the backward pass needs 8 GiB more
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as raised:
            loss.backward()
        # Only `x`, `loss` and its gradient are left, so the error keeps no large tensor alive.
        assert gpu.live_bytes() == (4 << 30) + 8
        del loss, raised
        assert x.grad is None and gpu.live_bytes() == 4 << 30
    small = torch.rand(4, device="cuda", requires_grad=True)
    (small * 2).sum().backward()
    assert small.grad is not None

    def interrupt(grad: torch.Tensor) -> None:
        raise KeyboardInterrupt

    small.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        (small * 2).sum().backward()


def test_record_stream_marks_the_block_as_used_by_the_stream() -> None:
    use()
    side: Any = torch.cuda.Stream()
    x: Any = torch.empty(1 << 20, device="cuda")
    assert x.data_ptr() != 0  # the address is known at this point
    x.record_stream(side)
    x.allocation.block.allocator.flush()
    assert list(x.allocation.block.block.users) == [side.virtual.number]
