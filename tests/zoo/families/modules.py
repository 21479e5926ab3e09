"""Groups of operations with modules and parameters: moving, parametrizations, lazy modules, tensor subclasses, copies and
checkpoints."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from typing import Any

import torch
from torch import nn

from tests.zoo.groups import Family

family = Family("modules")


def _x(device: str) -> Any:
    return torch.ones(2, 4).to(device)


@family.group
def moving(device: str) -> Any:
    layer = nn.Linear(4, 3)
    before = [id(p) for p in layer.parameters()]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.to(device)
    layer(_x(device)).sum().backward()
    optimizer.step()
    same = [id(p) for p in layer.parameters()] == before
    back = copy.deepcopy(layer).cpu()
    return [
        same,
        layer.weight,
        back.weight,
        layer.half().weight,
        layer.float().weight,
        layer.to(device, torch.float64).weight,
        layer.bfloat16().bias,
        layer.double().cpu().weight.device.type,
    ]


@family.group
def moving_by_hand(device: str) -> Any:
    layer = nn.Linear(4, 3)
    owners = [weakref.ref(p) for p in layer.parameters()]
    for p in layer.parameters():
        p.data = p.data.to(device)
    other = nn.Linear(4, 3)
    for name, p in list(other._parameters.items()):
        other._parameters[name] = nn.Parameter(p.to(device), requires_grad=p.requires_grad)
    third = nn.Linear(4, 3)
    third.weight.data, third.bias.data = third.weight.data.to(device), third.bias.to(device).data
    loss = (layer(_x(device)) + other(_x(device)) + third(_x(device))).sum()
    loss.backward()
    layer.weight.data = layer.weight.data.cpu()
    return [
        loss,
        other.weight.grad,
        third.weight.grad,
        layer.weight,
        [p.device.type for p in layer.parameters()][:1],
        owners[0]() is layer.weight,
    ]


@family.group
def moving_with_weak_references(device: str) -> Any:
    layer = nn.Linear(4, 3)
    seen = weakref.WeakValueDictionary({i: p for i, p in enumerate(layer.parameters())})
    held = weakref.ref(layer.weight)
    layer.to(device)
    layer(_x(device)).sum().backward()
    return [held() is layer.weight, len(seen), layer.weight.grad, layer.bias.device.type == device]


@family.group
def moving_with_gradients_of_another_shape(device: str) -> Any:
    """Move a parameter, although its gradient has another shape. FSDP does this with sharded gradients."""
    p = nn.Parameter(torch.arange(2.0).to(device))
    p.grad = torch.ones_like(p)
    p.data = torch.arange(4.0).to(device)
    p.data = p.data.to("cpu")
    there = [p.shape, p.grad.shape, p.device.type]
    p.data = p.data.to(device)
    return [*there, p.detach(), p.grad, p.device.type == device, p.grad.device.type == device]


@family.group
def moving_with_gradients(device: str) -> Any:
    layer = nn.Linear(4, 3)
    layer(torch.ones(2, 4)).sum().backward()
    layer.to(device)
    first = layer.weight.grad.clone()
    layer(_x(device)).sum().backward()
    shared = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    shared[1].weight = shared[0].weight
    shared.to(device)
    return [first, layer.weight.grad, shared[0].weight is shared[1].weight, layer.cpu().weight.grad.device.type]


@family.special(close=1e-4)
def weight_norm_of_old(device: str) -> Any:
    layer = nn.utils.weight_norm(nn.Conv1d(4, 3, 2)).to(device)
    out = layer(torch.ones(2, 4, 5).to(device))
    out.sum().backward()
    named = [layer.weight_g.grad, layer.weight_v.grad, sorted(layer.state_dict())]
    nn.utils.remove_weight_norm(layer)
    return [out, named, layer(torch.ones(2, 4, 5).to(device))]


@family.special(close=1e-4)
def parametrizations(device: str) -> Any:
    found = []
    for wrap in (
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
    ):
        layer = wrap(nn.Linear(4, 4)).to(device)
        out = layer(_x(device))
        out.sum().backward()
        found.append([out.shape, [p.grad.shape for p in layer.parameters()], sorted(layer.state_dict())])
        nn.utils.parametrize.remove_parametrizations(layer, "weight")
    return found


@family.group
def spectral_norm_of_old(device: str) -> Any:
    layer = nn.utils.spectral_norm(nn.Linear(4, 3)).to(device)
    out = layer(_x(device))
    out.sum().backward()
    return [out.shape, layer.weight_orig.grad.shape, sorted(layer.state_dict())]


class _Symmetric(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.triu() + x.triu(1).transpose(-1, -2)


@family.group
def own_parametrization(device: str) -> Any:
    layer = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(layer, "weight", _Symmetric())
    layer.to(device)
    with nn.utils.parametrize.cached():
        out = layer(_x(device)) + layer(_x(device))
    out.sum().backward()
    return [out, layer.parametrizations.weight.original.grad]


@family.group
def lazy_modules(device: str) -> Any:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).to(device)
    out = model(torch.ones(2, 3, 6, 6, device=device))
    out.sum().backward()
    return [
        out.shape,
        [type(m).__name__ for m in model],
        [p.grad.shape for p in model.parameters()],
        [p.device.type == device for p in model.parameters()],
    ]


@family.group
def lazy_modules_made_there(device: str) -> Any:
    layer = nn.LazyLinear(3, device=device)
    out = layer(_x(device))
    return [out.shape, layer.weight.shape, layer.in_features]


@family.group
def made_there(device: str) -> Any:
    with torch.device(device):
        layer = nn.Linear(4, 3)
        x = torch.ones(2, 4)
    other = nn.Linear(4, 3, device=device, dtype=torch.float64)
    hollow = nn.Linear(4, 3, device="meta").to_empty(device=device)
    skipped = nn.utils.skip_init(nn.Linear, 4, 3, device=device)
    return [
        layer(x).shape,
        other.weight.dtype,
        hollow.weight.shape,
        skipped.weight.device.type == device,
        x.device.type == device,
    ]


class Tagged(torch.Tensor):
    """A tensor subclass that differs from torch.Tensor only in its name."""


@family.group
def subclasses(device: str) -> Any:
    x = torch.ones(3).to(device).as_subclass(Tagged)
    y = x * 2
    z = Tagged(torch.ones(3)).to(device)
    found = [
        type(x).__name__,
        type(y).__name__,
        type(y[0]).__name__,
        type(z).__name__,
        isinstance(y, Tagged),
        type(x.as_subclass(torch.Tensor)) is Tagged,
        (y + z).sum().item(),
        x.shape,
        x.device.type == device,
    ]
    return [
        *found,
        y.as_subclass(torch.Tensor),
        (x + torch.ones(3).to(device)).as_subclass(torch.Tensor),
        torch.stack([x, y]).as_subclass(torch.Tensor),
    ]


class Counted(torch.Tensor):
    """A tensor subclass that counts the functions that are called with it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counted.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@family.group
def subclasses_with_functions(device: str) -> Any:
    x = torch.randn(3, 3).to(device).as_subclass(Counted).requires_grad_()
    before = Counted.calls
    y = (x @ x).relu().sum()
    y.backward()
    return [Counted.calls > before, type(y).__name__, x.grad.as_subclass(torch.Tensor), y.detach().as_subclass(torch.Tensor)]


class ScaledParameter(nn.Parameter):
    """A parameter with an additional attribute, like parameters of quantized or sharded models."""

    def __new__(cls, data: Any, scale: float = 1.0) -> Any:
        made = super().__new__(cls, data)
        made.scale = scale
        return made


@family.group
def parameter_subclasses(device: str) -> Any:
    layer = nn.Linear(4, 3)
    layer.weight = ScaledParameter(layer.weight.data, 2.0)
    layer.to(device)
    made = ScaledParameter(torch.ones(3).to(device), 3.0)
    out = layer(_x(device)) * made
    out.sum().backward()
    return [
        out,
        layer.weight.grad,
        made.grad,
        made.scale,
        isinstance(made, nn.Parameter),
        isinstance(layer.weight, nn.Parameter),
    ]


@family.group
def parameters_and_buffers(device: str) -> Any:
    module = nn.Module()
    module.scale = nn.Parameter(torch.ones(2, device=device))
    module.register_buffer("seen", torch.zeros(2, device=device), persistent=False)
    module.register_buffer("kept", torch.zeros(2))
    module.to(device)
    module.seen += 1
    module.kept = module.kept + 1
    facts = [
        isinstance(module.scale, nn.Parameter),
        module.scale.requires_grad,
        nn.Parameter(torch.ones(1, device=device)).is_leaf,
    ]
    return [*facts, sorted(module.state_dict()), module.seen, module.kept, nn.Buffer(torch.ones(2, device=device)) + 1]


@family.group
def state_dicts(device: str) -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(device)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    model(_x(device))
    other = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    missing = other.load_state_dict(state)
    other.to(device).load_state_dict(model.state_dict(), assign=True)
    model.load_state_dict({k: v.cpu() for k, v in state.items()})
    return [
        list(missing.missing_keys),
        model[1].num_batches_tracked,
        other[1].num_batches_tracked,
        other[0].weight,
        model[0].weight,
    ]


@family.group
def files(device: str) -> Any:
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(_x(device)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, file)
    found = []
    for where in ("cpu", device, torch.device(device)):
        file.seek(0)
        loaded = torch.load(file, map_location=where, weights_only=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        found.append([loaded["model"]["weight"], loaded["epoch"], loaded["optimizer"]["state"][0]["step"]])
    whole = io.BytesIO()
    torch.save(model, whole)
    whole.seek(0)
    return [found, torch.load(whole, weights_only=False).weight, pickle.loads(pickle.dumps(model)).bias]


@family.group
def copies(device: str) -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(device)
    twin = copy.deepcopy(model)
    x = _x(device).requires_grad_()
    shallow = copy.copy(x)
    return [
        twin[0].weight,
        twin[0].weight is not model[0].weight,
        shallow,
        copy.deepcopy(x),
        copy.deepcopy({"a": [x, x]})["a"][0].requires_grad,
        x.clone().detach(),
        copy.copy(model)[0] is model[0],
    ]


@family.group
def averages_of_weights(device: str) -> Any:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(device)
    with_floats = copy.deepcopy(model)
    with_floats[1].num_batches_tracked = torch.zeros((), device=device)  # on a GPU, PyTorch cannot average integers
    found = []
    for of, averaged in (
        (model, AveragedModel(model)),
        (model, AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))),
        (with_floats, AveragedModel(with_floats, use_buffers=True)),
    ):
        for _ in range(2):
            averaged.update_parameters(of)
        update_bn([_x("cpu") for _ in range(2)], averaged, device=device)
        found.append(
            [averaged.n_averaged, averaged(_x(device)).shape, averaged.module[0].weight, averaged.module[1].num_batches_tracked]
        )
    return found


@family.group
def own_average(device: str) -> Any:
    model = nn.Linear(4, 3).to(device)
    mean = copy.deepcopy(model).eval().requires_grad_(False)
    with torch.no_grad():
        for a, b in zip(mean.parameters(), model.parameters(), strict=True):
            a.mul_(0.9).add_(b, alpha=0.1)
            a.lerp_(b.detach(), 0.1)
            a.copy_(b)
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    for k, v in model.state_dict().items():
        state[k].mul_(0.99).add_(v * 0.01)
    return [mean.weight, state["bias"], nn.utils.parameters_to_vector(model.parameters()), len(list(mean.parameters()))]


@family.group
def pruning(device: str) -> Any:
    from torch.nn.utils import prune

    layer = nn.Linear(4, 3).to(device)
    prune.random_unstructured(layer, "weight", 2)
    prune.l1_unstructured(layer, "bias", amount=1)
    out = layer(_x(device))
    out.sum().backward()
    prune.remove(layer, "weight")
    return [out.shape, layer.weight.shape, sorted(layer.state_dict())]


@family.group
def swapped_tensors(device: str) -> Any:
    a, b = torch.ones(2).to(device), torch.zeros(3).to(device)
    torch.utils.swap_tensors(a, b)
    layer = nn.Linear(2, 2).to(device)
    vector = nn.utils.parameters_to_vector(layer.parameters())
    nn.utils.vector_to_parameters(vector * 2, layer.parameters())
    return [a, b, layer.weight, nn.utils.clip_grad_norm_(layer.parameters(), 1.0) * 0]


@family.group
def low_rank_adapters(device: str) -> Any:
    base = nn.Linear(4, 3).to(device).requires_grad_(False)
    down, up = nn.Parameter(torch.randn(2, 4).to(device)), nn.Parameter(torch.zeros(3, 2, device=device))
    out = base(_x(device)) + (_x(device) @ down.t() @ up.t()) * 0.5
    out.sum().backward()
    merged = base.weight.data + up @ down
    base.weight.data += 0.5 * (up @ down)
    return [out, up.grad, base.weight.grad, merged, sum(p.numel() for p in base.parameters() if p.requires_grad)]
