"""Groups of operations for matrix products, decompositions and transforms."""

from __future__ import annotations

from typing import Any

import torch

from tests.zoo.groups import Family

family = Family("linalg")


def _square(device: str) -> tuple[Any, Any]:
    a = torch.randn(3, 3)
    return a.to(device), (a @ a.t() + 3 * torch.eye(3)).to(device)


@family.group
def products(device: str) -> Any:
    a, b = torch.randn(3, 4).to(device), torch.randn(4, 2).to(device)
    v = torch.randn(4).to(device)
    batch = torch.randn(2, 3, 4).to(device)
    found = [
        a @ b,
        torch.mm(a, b),
        a @ v,
        a.mv(v),
        v @ v,
        v.dot(v),
        batch @ b,
        torch.bmm(batch, batch.mT),
        torch.matmul(batch, v),
        torch.outer(v, v),
        torch.inner(v, v),
    ]
    return [
        *found,
        torch.addmm(a @ b, a, b, beta=0.5),
        torch.baddbmm(batch @ batch.mT, batch, batch.mT),
        torch.addmv(a @ v, a, v),
        torch.addbmm(a @ a.t(), batch, batch.mT),
        torch.addr(torch.ones(4, 4, device=device), v, v),
        torch.linalg.multi_dot([a, b, b.t()]),
        torch.chain_matmul(a, b),
        a.t().mm(a),
        torch.vdot(v, v),
    ]


@family.group
def einsum(device: str) -> Any:
    x, y = torch.randn(2, 3, 4).to(device), torch.randn(2, 4, 5).to(device)
    found = [torch.einsum(how, x, y) for how in ("bij,bjk->bik", "bij,bjk->b", "bij,ajk->abik")]
    return [
        *found,
        torch.einsum("bii->b", torch.randn(2, 3, 3).to(device)),
        torch.tensordot(x, y, dims=([2], [1])),
        torch.kron(x[0], y[0]),
    ]


@family.group
def solving(device: str) -> Any:
    a, p = _square(device)
    b = torch.randn(3, 2).to(device)
    found = [
        torch.linalg.solve(p, b),
        torch.linalg.inv(p),
        torch.linalg.pinv(a),
        torch.linalg.lstsq(p, b).solution,
        torch.inverse(p),
        torch.linalg.solve_triangular(p.tril(), b, upper=False),
    ]
    return [
        *found,
        torch.cholesky_solve(b, torch.linalg.cholesky(p)),
        torch.linalg.inv_ex(p),
        torch.linalg.matrix_power(p, 3),
        torch.linalg.tensorinv(p.view(3, 3), 1),
    ]


@family.special(close=1e-3)
def decompositions(device: str) -> Any:
    a, p = _square(device)
    values = torch.linalg.eigvalsh(p), torch.linalg.svdvals(a), torch.linalg.eigh(p)[0], torch.linalg.svd(a)[1], torch.svd(a)[1]
    return [
        *values,
        torch.linalg.cholesky(p),
        torch.linalg.qr(a),
        torch.linalg.lu(p),
        torch.linalg.lu_factor(p)[0],
        torch.linalg.eig(p)[0].real.sort()[0],
        torch.linalg.ldl_factor(p)[0],
    ]


@family.special(close=1e-3)
def gradients_of_decompositions(device: str) -> Any:
    _, p = _square(device)
    p.requires_grad_()
    found = [torch.linalg.cholesky(p), torch.linalg.eigvalsh(p), torch.linalg.inv(p), torch.logdet(p), torch.linalg.svdvals(p)]
    sum(x.sum() for x in found).backward()
    return p.grad


@family.group
def determinants_and_norms(device: str) -> Any:
    a, p = _square(device)
    found = [
        torch.det(a),
        torch.slogdet(p),
        torch.logdet(p),
        torch.linalg.norm(a),
        torch.linalg.matrix_norm(a, "nuc"),
        torch.linalg.vector_norm(a, 3, 1),
        torch.linalg.cond(p),
    ]
    return [
        *found,
        torch.linalg.matrix_rank(p),
        torch.matrix_exp(a),
        torch.linalg.norm(a, 2),
        torch.linalg.cross(a, p),
        torch.trace(a),
        torch.linalg.matrix_norm(a, 1),
        torch.linalg.eigvalsh(p)[0],
    ]


@family.group
def householder_and_others(device: str) -> Any:
    a, p = _square(device)
    qr, tau = torch.geqrf(a)
    return [
        torch.linalg.householder_product(qr, tau),
        torch.cholesky_inverse(torch.linalg.cholesky(p)),
        torch.linalg.cholesky_ex(p),
        torch.linalg.vecdot(a, p),
        torch.linalg.vander(a[0]),
        torch.lu_solve(a, *torch.linalg.lu_factor(p)),
    ]


@family.group
def fourier(device: str) -> Any:
    x = torch.randn(2, 8).to(device)
    f = torch.fft
    found = [
        f.fft(x),
        f.ifft(f.fft(x)),
        f.rfft(x),
        f.irfft(f.rfft(x)),
        f.fft2(x),
        f.rfft2(x),
        f.irfft2(f.rfft2(x)),
        f.fftn(x),
        f.hfft(x),
        f.fftshift(x),
        f.ifftshift(x),
    ]
    return [*found, f.fftfreq(8, device=device), f.rfftfreq(8, device=device), f.fft(x, n=5), f.rfftn(x), f.ihfft(x)]


@family.group
def spectrograms(device: str) -> Any:
    x = torch.randn(2, 64).to(device)
    window = torch.hann_window(16, device=device)
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
    back = torch.istft(spectrum, 16, 4, window=window, length=64)
    return [
        spectrum.abs(),
        back,
        torch.hamming_window(8, device=device),
        torch.blackman_window(8, device=device),
        torch.bartlett_window(8, device=device),
        torch.kaiser_window(8, device=device),
    ]


@family.group
def spectrogram_loss(device: str) -> Any:
    x = torch.randn(2, 64).to(device).requires_grad_()
    spectrum = torch.stft(x, 16, 4, window=torch.hann_window(16, device=device), return_complex=True)
    magnitude = spectrum.abs().clamp(min=1e-5)
    (magnitude.log() - 1).abs().mean().backward()
    return [magnitude, x.grad]


@family.group
def low_rank(device: str) -> Any:
    a, b = torch.randn(4, 2).to(device), torch.randn(2, 4).to(device)
    u, s, v = torch.svd_lowrank(a @ b, q=2)
    return [
        u.shape,
        s.shape,
        v.shape,
        torch.pca_lowrank(a @ b, q=2)[1].shape,
        torch.linalg.matrix_rank(torch.eye(3, device=device)),
    ]
