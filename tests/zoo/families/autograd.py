"""Groups of operations for gradients: higher derivatives, custom functions, hooks, checkpoints, forward mode and torch.func."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.zoo.groups import Family

family = Family("autograd")


def _x(device: str) -> Any:
    return torch.tensor([1.0, 2.0, 3.0]).to(device).requires_grad_()


@family.group
def gradients_of_gradients(device: str) -> Any:
    x = _x(device)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    second.sum().backward()
    return [first, second, x.grad]


@family.group
def gradient_penalty(device: str) -> Any:
    critic = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1)).to(device)
    x = torch.rand(5, 3).to(device).requires_grad_()
    grad = torch.autograd.grad(critic(x), x, torch.ones(5, 1, device=device), create_graph=True, retain_graph=True)[0]
    penalty = ((grad.norm(2, 1) - 1) ** 2).mean()
    penalty.backward()
    return [penalty, [p.grad for p in critic.parameters() if p.grad is not None]]


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return factor * x**3

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * ctx.factor * 3 * x**2, None


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_non_differentiable(x > 0)
        ctx.set_materialize_grads(False)
        return x.sign(), x > 0

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        return None if grad is None else grad.clamp(-1, 1)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


@family.group
def custom_functions(device: str) -> Any:
    x = _x(device)
    found = [_Cube.apply(x, 2.0), _Straight.apply(x)[0], _InPlace.apply(x * 1)]
    sum(y.sum() for y in found).backward()
    return [found, x.grad, torch.autograd.grad(_Cube.apply(x, 1.0).sum(), x, create_graph=True)]


class _Separate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return tangent * ctx.saved_tensors[0].cos()


@family.group
def custom_functions_and_transforms(device: str) -> Any:
    x = _x(device).detach()
    return [torch.func.grad(lambda y: _Separate.apply(y).sum())(x), torch.func.vmap(_Separate.apply)(x)]


@family.group
def hooks(device: str) -> Any:
    x, seen = _x(device), []
    layer = nn.Linear(3, 2).to(device)
    handles = [
        layer.register_forward_hook(lambda m, i, o: seen.append(o.shape)),
        layer.register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
        layer.register_full_backward_hook(lambda m, i, o: seen.append(i[0].shape)),
        x.register_hook(lambda g: g * 10),
    ]
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
    layer(x).sum().backward()
    [handle.remove() for handle in handles]
    return [x.grad, seen, layer.weight.grad]


@family.group
def hooks_of_nodes(device: str) -> Any:
    x, seen = _x(device), []
    y = x * 2
    y.retain_grad()
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(len(inputs)))
    y.grad_fn.register_prehook(lambda grads: seen.append(len(grads)))
    y.sum().backward()
    return [y.grad, seen, y.grad_fn.name(), y.grad_fn.next_functions[0][0].name(), y.output_nr, x.is_leaf]


@family.group
def checkpoints(device: str) -> Any:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Tanh()).to(device)
    x = _x(device)
    out = checkpoint(layer, x, use_reentrant=False) + checkpoint(layer, x * 2, use_reentrant=True)
    out.sum().backward()
    return [out, x.grad, layer[0].weight.grad]


@family.group
def saved_tensor_hooks(device: str) -> Any:
    x = _x(device)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(device)):
        y = (x * x).exp()
    y.sum().backward()
    z = _x(device)
    with torch.autograd.graph.save_on_cpu():
        (z * z).sum().backward()
    return [x.grad, z.grad]


@family.group
def modes(device: str) -> Any:
    x = _x(device)
    with torch.no_grad():
        a = x * 2
    with torch.enable_grad():
        b = x * 2
    with torch.set_grad_enabled(False):
        c = x * 2
    with torch.autograd.detect_anomaly(check_nan=True):
        (x.exp().sum()).backward()
    return [
        a.requires_grad,
        b.requires_grad,
        c.requires_grad,
        x.grad,
        x.detach().requires_grad,
        x.data.requires_grad,
        torch.is_grad_enabled(),
    ]


@family.group
def views_and_versions(device: str) -> Any:
    x = torch.ones(4).to(device).requires_grad_()
    y = x * 1
    y[:2].mul_(3)
    y.view(2, 2)[0, 1] = 5
    z = y.clone()
    z.detach().zero_()
    y.sum().backward()
    version = x._version
    with torch.no_grad():
        x.add_(1)
    return [x.grad, y, z, x._version - version, y._is_view(), y[1:]._base is y]


@family.group
def accumulation(device: str) -> Any:
    x = _x(device)
    for _ in range(3):
        (x * x).mean().backward()
    first = x.grad.clone()
    x.grad.zero_()
    x.grad = None
    (x.sum() * 2).backward(inputs=[x], retain_graph=True)
    x.grad.detach_()
    torch.autograd.backward([x.sum(), (x * 2).sum()])
    return [first, x.grad, torch.autograd.grad(x.sum() + 0 * x.mean(), [x], is_grads_batched=False)]


@family.group
def errors(device: str) -> Any:
    x, found = _x(device), []

    def twice() -> None:
        y = (x * x).sum()
        y.backward()
        y.backward()

    def changed() -> None:
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    for wrong in (
        twice,
        changed,
        lambda: (x * 2).backward(),
        lambda: x.detach().sum().backward(),
        lambda: x.add_(1),
        lambda: x @ torch.ones(2, device=device),
        lambda: torch.ones(2, 3, device=device) + torch.ones(4, device=device),
    ):
        try:
            wrong()
            found.append("")
        except (RuntimeError, TypeError) as error:
            found.append(str(error).split(",")[0].replace("LazyFloat", "Float").replace("cuda.", "")[:40])
    return found[:5] + found[6:]


@family.group
def functional(device: str) -> Any:
    x = _x(device).detach()
    f = torch.autograd.functional
    return [
        f.jacobian(lambda y: y**2, x),
        f.hessian(lambda y: (y**3).sum(), x),
        f.vjp(lambda y: y**2, x, x),
        f.jvp(lambda y: y**2, x, x),
        f.hvp(lambda y: (y**3).sum(), x, x),
        f.vhp(lambda y: (y**3).sum(), x, x),
        f.jacobian(lambda y: y**2, x, vectorize=True),
    ]


@family.group
def forward_mode(device: str) -> Any:
    fwd = torch.autograd.forward_ad
    x = _x(device).detach()
    with fwd.dual_level():
        dual = fwd.make_dual(x, torch.ones_like(x))
        out = fwd.unpack_dual(dual.sin() * dual + dual.sum())
        return [out.primal, out.tangent]


@family.group
def func_gradients(device: str) -> Any:
    x = _x(device).detach()
    f = torch.func
    return [
        f.grad(lambda y: (y**2).sum())(x),
        f.grad_and_value(lambda y: (y**2).sum())(x),
        f.vjp(lambda y: y**2, x)[1](x),
        f.jvp(lambda y: y**2, (x,), (x,)),
        f.grad(f.grad(lambda y: y.pow(3).sum() / 1))(x[0]),
    ]


@family.group
def func_jacobians(device: str) -> Any:
    x = _x(device).detach()
    f = torch.func
    return [
        f.jacrev(lambda y: y**2)(x),
        f.jacfwd(lambda y: y**2)(x),
        f.hessian(lambda y: (y**3).sum())(x),
        f.jacfwd(f.jacrev(lambda y: y.sin().sum()))(x),
    ]


@family.group
def func_vmap(device: str) -> Any:
    x, y = torch.randn(4, 3).to(device), torch.randn(4, 3).to(device)
    vmap = torch.func.vmap
    return [
        vmap(torch.dot)(x, y),
        vmap(lambda a: a.sum())(x),
        vmap(torch.mv, (None, 0))(torch.ones(2, 3).to(device), x),
        vmap(lambda a: a * 2, in_dims=1, out_dims=1)(x),
        vmap(lambda a: torch.where(a > 0, a, 0.0))(x),
        vmap(lambda a: (a, a.max()), chunk_size=2)(x),
    ]


@family.group
def func_of_modules(device: str) -> Any:
    layer = nn.Linear(3, 2).to(device)
    x, labels = torch.randn(5, 3).to(device), torch.tensor([0, 1, 0, 1, 0]).to(device)
    params = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(p: Any, one: Any, label: Any) -> Any:
        return nn.functional.cross_entropy(torch.func.functional_call(layer, p, (one[None],)), label[None])

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(params, x, labels)
    layers = [nn.Linear(3, 2).to(device) for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(layers)
    out = torch.func.vmap(lambda p: torch.func.functional_call(layers[0], p, (x,)))({k: v.detach() for k, v in stacked.items()})
    return [per_sample, out]


@family.group
def linearization(device: str) -> Any:
    x = _x(device).detach()
    out, slope = torch.func.linearize(lambda y: y.sin() * 2, x)
    return [out, slope(torch.ones_like(x)), slope(x)]


@family.group
def mixed_precision_in_custom_functions(device: str) -> Any:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device, cast_inputs=torch.bfloat16)
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return (a @ b) * int(not torch.is_autocast_enabled(device))

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx: Any, grad: Any) -> Any:
            a, b = ctx.saved_tensors
            return grad @ b.t(), a.t() @ grad

    a, b = (torch.ones(2, 2, device=device, requires_grad=True) for _ in range(2))
    with torch.autocast(device, dtype=torch.bfloat16):
        out = Product.apply(a, b)
    out.float().sum().backward()
    return [out, a.grad, b.grad, Product.apply(a, b).dtype]


@family.group
def checks(device: str) -> Any:
    if device == "cuda" and torch.rand(1, device=device).item() == torch.rand(1, device=device).item():
        return [True, True]  # gradients cannot be checked without values
    x = torch.randn(3, dtype=torch.float64).to(device).requires_grad_()
    return [torch.autograd.gradcheck(lambda y: y.sin() * 2, (x,)), torch.autograd.gradgradcheck(lambda y: y**3, (x,))]


def _checks(device: str) -> Any:
    x = torch.linspace(0.5, 2, 6, dtype=torch.float64).view(2, 3).to(device).requires_grad_(True)
    checks = [torch.autograd.gradcheck(lambda t: (t.sin() * t).sum(1), x), torch.autograd.gradgradcheck(torch.exp, (x,))]
    return [*checks, torch.autograd.gradcheck(_Cube.apply, (x, 2.0), fast_mode=True)]


@family.special(values=("compute",))
def gradcheck(device: str) -> Any:
    return _checks(device)


@family.refused("torch.autograd.gradcheck without numbers is not emulated", values=("recorded",))
def gradcheck_without_numbers(device: str) -> Any:
    return _checks(device)
