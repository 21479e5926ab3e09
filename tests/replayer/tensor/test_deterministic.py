"""Tests that deterministic mode fills new memory, and that its alerts can be switched off. tests/zoo/mixed_devices.tsv lists
the alerts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from replayer.tensor.planning.deterministic import without_alerts
from replayer.tensor.planning.results import _freed_at_once
from tests.replayer.fake_gpu import use


@pytest.mark.parametrize(
    ("sizes", "freed"),
    [((), True), ((512, -512), True), ((512, -512, 8, -8), True), ((512, -8), False), ((512, -512, 8), False), ((8,), False)],
)
def test_memory_counts_as_freed_immediately_if_a_release_follows_each_request(sizes: list[int], freed: bool) -> None:
    assert _freed_at_once(tuple(sizes)) is freed


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "bool", "uint8", "int32", "int64"])
def test_deterministic_mode_fills_new_memory_with_the_same_values_on_gpu_and_cpu(dtype: str) -> None:
    use()
    of = {"dtype": getattr(torch, dtype)}
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.empty(3, device=x.device, **of),
        lambda x: torch.empty_strided((2, 2), (2, 1), device=x.device, **of),
        torch.empty_like,
        lambda x: torch.empty_like(torch.zeros(3, device=x.device), **of),
        lambda x: x.new_empty(3),
        lambda x: torch.zeros(3, device=x.device).new_empty((2, 2), **of),
        lambda x: x.new_empty_strided((2, 2), (2, 1)),
        lambda x: torch.zeros(3, device=x.device).new_empty_strided((2, 2), (2, 1), **of),
        lambda x: x.clone().resize_(2),
    ]
    host = torch.tensor([1, 0, 1], **of)
    torch.use_deterministic_algorithms(True)
    for number, call in enumerate(calls):
        assert repr(call(host.cuda()).tolist()) == repr(call(host).tolist()), number


_CALLS: dict[str, tuple[bool, Callable[[torch.Tensor, torch.Tensor], object]]] = {
    "scatter: products of elements of a tensor": (True, lambda x, at: x.scatter(0, at, x, reduce="multiply")),
    "scatter: products with a number": (False, lambda x, at: x.scatter(0, at, 2.0, reduce="multiply")),
    "scatter: assignment": (False, lambda x, at: x.scatter(0, at, x)),
    "scatter_reduce: products": (True, lambda x, at: x.scatter_reduce(0, at, x, "prod")),
    "scatter_reduce: maxima": (False, lambda x, at: x.scatter_reduce(0, at, x, "amax")),
    "bincount: weighted": (True, lambda x, at: torch.bincount(at, x)),
    "bincount: counts": (False, lambda x, at: torch.bincount(at, minlength=3)),
    "histc: floating point": (True, lambda x, at: torch.histc(x, 3, 0, 1)),
    "histc: integers": (False, lambda x, at: torch.histc(at, 3, 0, 2)),
}


@pytest.mark.parametrize("name", _CALLS)
def test_deterministic_mode_rejects_a_call_only_with_the_arguments_of_a_nondeterministic_kernel(name: str) -> None:
    use()
    is_rejected, call = _CALLS[name]
    x, at = torch.rand(3, device="cuda"), torch.tensor([2, 0, 0]).cuda()
    torch.use_deterministic_algorithms(True)
    if is_rejected:
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            call(x, at)
    else:
        call(x, at)


def test_alerts_about_nondeterministic_kernels_can_be_switched_off() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with without_alerts():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
