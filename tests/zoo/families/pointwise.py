"""Groups of elementwise operations: arithmetic, comparison, rounding, special functions, types, in-place ops and lists of
tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.zoo.groups import Family

family = Family("pointwise")


def _two(device: str) -> tuple[Any, Any]:
    return torch.randn(3, 4).to(device), torch.rand(4).add(0.5).to(device)


@family.group
def arithmetic(device: str) -> Any:
    x, y = _two(device)
    found = [x + y, x - 2, 3 - x, x * y, x / y, y / 2, 1 / y, x // y, x % y, x**2, y**x, 2**x, -x, +x, abs(x)]
    return [*found, torch.add(x, y, alpha=2), torch.sub(x, y, alpha=3), torch.rsub(x, y), torch.true_divide(x, y)]


@family.group
def division(device: str) -> Any:
    x, y = _two(device)
    modes = [torch.div(x, y, rounding_mode=mode) for mode in (None, "trunc", "floor")]
    whole = torch.arange(-6, 6, device=device)
    return [*modes, torch.fmod(x, y), torch.remainder(x, y), whole // 4, whole / 4, whole % 4, torch.floor_divide(whole, 5)]


@family.group
def fused_arithmetic(device: str) -> Any:
    x, y = _two(device)
    z = torch.addcmul(x, x, y, value=0.5), torch.addcdiv(x, x, y, value=2), torch.lerp(x, y.expand(3, 4), 0.3)
    return [*z, torch.hypot(x, y), torch.ldexp(x, torch.ones(4, dtype=torch.int32, device=device)), torch.logaddexp(x, y)]


@family.group
def comparison(device: str) -> Any:
    x, y = _two(device)
    found = [x < y, x <= 0.1, x > y, x >= y, x == y, x != y, torch.isclose(x, x + 1e-9), torch.eq(x, 1), torch.maximum(x, y)]
    return [*found, torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y), torch.ne(x, x), torch.logical_and(x > 0, y > 1)]


@family.group
def logic_and_bits(device: str) -> Any:
    a = torch.arange(8, device=device)
    m = a > 3
    found = [a & 3, a | 4, a ^ 5, ~a, a << 1, a >> 1, m & ~m, m | m, m ^ m, ~m, m.logical_not(), m.logical_xor(m)]
    return [*found, torch.bitwise_and(a, 1), torch.bitwise_left_shift(a, 2), a.gcd(a + 2), a.lcm(a + 2)]


@family.group
def rounding(device: str) -> Any:
    x = torch.randn(9).mul(3).to(device)
    found = [x.floor(), x.ceil(), x.round(), x.trunc(), x.frac(), x.round(decimals=1), x.sign(), x.sgn(), x.signbit()]
    return [*found, torch.copysign(x, -x), torch.nextafter(x, x + 1), x.positive(), x.heaviside(x)]


@family.group
def exponentials(device: str) -> Any:
    x = torch.rand(5).add(0.1).to(device)
    return [x.exp(), x.exp2(), x.expm1(), x.log(), x.log2(), x.log10(), x.log1p(), x.sqrt(), x.rsqrt(), x.square(),
        x.pow(0.3),
            x.float_power(2), x.reciprocal(), x.sigmoid(), x.logit(), x.xlogy(x)]  # fmt: skip


@family.group
def trigonometry(device: str) -> Any:
    x = torch.rand(5).mul(0.9).to(device)
    return [x.sin(), x.cos(), x.tan(), x.asin(), x.acos(), x.atan(), x.sinh(), x.cosh(), x.tanh(), x.asinh(),
        (x + 1).acosh(),
            x.atanh(), x.atan2(x + 1), x.deg2rad(), x.rad2deg(), x.sinc()]  # fmt: skip


@family.group
def special_functions(device: str) -> Any:
    x = torch.rand(5).add(0.5).to(device)
    s = torch.special
    return [x.erf(), x.erfc(), x.mul(0.4).erfinv(), x.lgamma(), x.digamma(), x.polygamma(1), x.mvlgamma(1), x.i0(), s.i1(x),
            s.i0e(x), s.ndtr(x), s.ndtri(x * 0.4), s.entr(x), s.zeta(x + 2, x), s.gammainc(x, x), s.gammaincc(x, x),
            s.bessel_j0(x), s.log_ndtr(x), s.expit(x), s.erfcx(x)]  # fmt: skip


@family.group
def choosing(device: str) -> Any:
    x, y = _two(device)
    found = [
        x.clamp(-0.5, 0.5),
        x.clamp(min=0),
        x.clamp(max=y),
        x.clip(0, 1),
        torch.where(x > 0, x, y),
        torch.where(x > 0, x, 0.0),
    ]
    return [*found, torch.where(x > 0, 1, 0), x.masked_fill(x < 0, -1), x.nan_to_num(0.0), torch.threshold(x, 0.1, 20)]


@family.group
def activations(device: str) -> Any:
    x = torch.randn(4, 6).to(device)
    names = "relu relu6 elu celu selu gelu silu mish softplus softsign hardtanh hardswish hardsigmoid leaky_relu logsigmoid"
    found = [getattr(F, name)(x) for name in f"{names} tanhshrink softshrink hardshrink".split()]
    return [*found, F.gelu(x, approximate="tanh"), F.glu(x), F.prelu(x, torch.tensor([0.2]).to(device)), F.softmin(x, 1),
            F.normalize(x), F.threshold(x, 0.0, 1.0), F.rrelu(x)]  # fmt: skip


@family.group
def activation_gradients(device: str) -> Any:
    found = []
    names = "relu relu6 elu celu selu gelu silu mish softplus softsign hardtanh hardswish hardsigmoid leaky_relu glu"
    for name in names.split():
        x = torch.linspace(-2, 2, 8).to(device).requires_grad_()
        getattr(F, name)(x).sum().backward()
        found.append(x.grad)
    return found


@family.group
def in_place(device: str) -> Any:
    x, y = _two(device)
    x.add_(y).mul_(2).sub_(1).div_(y).clamp_(-3, 3).relu_().sqrt_().neg_().exp_().pow_(2).lerp_(x, 0.5)
    x.masked_fill_(x > 0.5, 0.5).copy_(x * 2).addcmul_(x, x).addcdiv_(x, y, value=-1).fmod_(1).floor_().sigmoid_()
    z = x.clone().zero_()
    z += 1
    z *= y
    z -= x
    z /= 2
    z **= 2
    return [x, z, F.relu(z, inplace=True), F.silu(z, inplace=True), F.leaky_relu_(z, 0.1), F.elu_(z), F.hardtanh_(z)]


@family.group
def given_outputs(device: str) -> Any:
    x, y = _two(device)
    out = torch.empty(3, 4, device=device)
    torch.add(x, y, out=out)
    torch.mul(x, 2, out=out[1:].resize_(0))
    mask = torch.empty(3, 4, dtype=torch.bool, device=device)
    torch.gt(x, y, out=mask)
    total = torch.empty((), device=device)
    torch.sum(x, (0, 1), out=total)
    return [out, mask, total, torch.matmul(x, x.t(), out=torch.empty(3, 3, device=device)), torch.exp(x, out=x)]


@family.group
def promotion(device: str) -> Any:
    i, f, h = torch.arange(3, device=device), torch.ones(3, device=device), torch.ones(3, device=device, dtype=torch.float16)
    b, d = i > 1, f.double()
    found = [i + f, i + h, h + f, i / 2, i * 1.5, b + i, b * 2.0, d + f, f + torch.tensor(2.0, dtype=torch.float64), i + True]
    return [*found, torch.result_type(i, f), torch.can_cast(torch.float, torch.int), i.to(torch.uint8) - 1, h.bfloat16() + 1]


@family.group
def conversions(device: str) -> Any:
    x = torch.randn(4).to(device)
    found = [
        x.half(),
        x.double(),
        x.bfloat16(),
        x.int(),
        x.long(),
        x.bool(),
        x.short(),
        x.char(),
        x.byte(),
        x.cfloat(),
        x.type_as(x.half()),
    ]
    return [
        *found,
        x.to(torch.float64),
        x.to(x.half()),
        x.type(torch.float16),
        x.view(torch.int32),
        x.to(torch.float8_e4m3fn).float(),
    ]


@family.group
def complex_numbers(device: str) -> Any:
    z = torch.complex(torch.arange(4.0), torch.ones(4)).to(device)
    found = [
        z.real,
        z.imag,
        z.abs(),
        z.angle(),
        z.conj(),
        z * z,
        z / (z + 1),
        z.exp(),
        torch.view_as_real(z),
        z.conj().resolve_conj(),
    ]
    pairs = torch.view_as_complex(torch.ones(4, 2).to(device))
    written = z.clone()
    written.conj()[1:].mul_(1 + 2j)
    written.conj().imag[0] = 7.0
    return [
        *found,
        written,
        pairs + z,
        torch.polar(z.abs(), z.angle()),
        z @ z.conj(),
        z.sum(),
        z.is_complex(),
        z.mH if z.dim() > 1 else z.sgn(),
    ]


@family.group
def complex_gradients(device: str) -> Any:
    z = torch.complex(torch.arange(4.0), torch.ones(4)).to(device).requires_grad_()
    (z * z.conj()).real.sum().backward()
    w = torch.randn(3, 3).to(device).requires_grad_()
    torch.fft.ifft(torch.fft.fft(w) * 2).abs().sum().backward()
    return [z.grad, w.grad, z.grad.imag, z.detach().conj() * 2]


@family.group
def lists_of_tensors(device: str) -> Any:
    xs = [torch.rand(n + 1).to(device) for n in range(3)]
    torch._foreach_add_(xs, 1.0)
    torch._foreach_mul_(xs, xs)
    torch._foreach_lerp_(xs, [x * 2 for x in xs], 0.3)
    found = [torch._foreach_norm(xs), torch._foreach_sqrt(xs), torch._foreach_add(xs, xs, alpha=2), torch._foreach_div(xs, 2.0)]
    torch._foreach_zero_(xs)
    torch._foreach_copy_(xs, [x + 3 for x in xs])
    return [
        *found,
        xs,
        torch._foreach_maximum(xs, 1.0),
        torch._foreach_clamp_min(xs, 2.0),
        torch._foreach_addcmul(xs, xs, xs, 0.1),
    ]


@family.group
def not_a_number(device: str) -> Any:
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]).to(device)
    found = [x.isnan(), x.isinf(), x.isfinite(), x.isposinf(), x.isneginf(), x.nan_to_num(), x.nansum(), x.nanmean(), x == x]
    return [*found, x.isreal(), torch.nan_to_num(x, 1, 2, 3), bool(x.isnan().any()), bool(x.isfinite().all())]
