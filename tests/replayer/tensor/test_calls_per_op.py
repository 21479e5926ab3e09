# mypy: allow-untyped-calls
"""Tests how many Python functions the virtual GPU calls for each op. A call takes about 50 ns, and a step has 700 ops or
more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch

from tests.replayer.fake_gpu import use


def _calls(op: Callable[[], object]) -> list[str]:
    """Return the names of the called Python functions, except `op` itself."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        op()
    finally:
        sys.setprofile(None)
    return calls[1:]


def test_an_op_that_creates_a_tensor_needs_six_python_calls() -> None:
    gpu = use()
    x = torch.empty(1 << 20, device="cuda")  # the host computes no values of so large a tensor
    for _ in range(8):  # after some steps, the allocator recognizes that they repeat
        torch.relu(x)
        torch.relu(x)
        gpu.devices[0].allocator.end_step()
    torch.relu(x)
    # The calls are torch's search for a rule, the dispatch, the op signature, the allocation, the launch, and the deletion of
    # the tensor.
    calls = _calls(lambda: torch.relu(x))
    assert len(calls) <= 6, calls
    assert "Allocation.__del__" in calls and "TensorAllocator._execute" not in calls


def test_an_in_place_add_needs_ten_python_calls() -> None:
    """In training, each batch norm layer calls such an add."""
    use()
    steps = torch.zeros((), dtype=torch.int64, device="cuda")
    steps.add_(1)
    calls = _calls(lambda: steps.add_(1))
    assert len(calls) <= 10, calls
    assert steps.item() == 2
