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


def test_alerts_about_nondeterministic_kernels_can_be_switched_off() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with without_alerts():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
