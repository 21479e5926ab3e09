"""Tests which workspaces ops allocate."""

from __future__ import annotations

import pytest

from replayer.memory.scratch_memory import ScratchScope, winograd_workspaces
from replayer.op_signature import OpSignature
from tests.replayer.fakes import FakeDevice

MIB = 1 << 20


def sizes_of(device: FakeDevice) -> list[int]:
    """Return the memory requests and frees since the step began, as positive and negative sizes."""
    allocator = device.allocator
    executed = [handle.size_bytes if size_bytes > 0 else -handle.size_bytes for handle, size_bytes, *_ in allocator._events]
    return executed + [-handle.size_bytes for handle in allocator._freed]


@pytest.mark.parametrize(
    ("inputs", "outputs", "has_workspace"), [(64, 128, True), (128, 64, True), (64, 127, False), (63, 128, False)]
)
def test_convolutions_between_at_least_64_and_at_least_128_channels_have_a_workspace(
    inputs: int, outputs: int, has_workspace: bool
) -> None:
    """The convolutions have windows of 3 x 3 in fp32, and two images of 8 x 8. Each image has four tiles."""
    shapes = (2, inputs, 8, 8), (outputs, inputs, 3, 3)
    signature = OpSignature("aten::convolution", shapes, ("float32",) * 2, outputs=((2, outputs, 8, 8),))
    size_bytes = 36 * 4 * (2 * 4 * (inputs + outputs) + inputs * outputs)
    assert winograd_workspaces(signature) == (((), (size_bytes, -size_bytes)) if has_workspace else ())


def test_workspaces_are_allocated_between_outputs_in_the_recorded_order() -> None:
    device = FakeDevice(0, 1 << 30)
    device.allocator.malloc(512, 0)
    device.allocator.end_step()
    scratch = ScratchScope(device.allocator, 0, "aten::mm", ((3 * MIB,), (5 * MIB, -5 * MIB), (-3 * MIB,), (7 * MIB,)))
    scratch.after_output()
    device.allocator.malloc(512, 0)
    scratch.after_output()
    assert sizes_of(device) == [3 * MIB, 512, 5 * MIB, -5 * MIB]
    scratch.end()
    scratch.close()
    assert sizes_of(device) == [3 * MIB, 512, 5 * MIB, -5 * MIB, -3 * MIB, 7 * MIB, -7 * MIB]
    assert device.memory.usage.allocated_bytes == 1024


def test_a_convolution_skips_a_workspace_that_does_not_fit() -> None:
    """If a workspace does not fit, cuDNN selects another algorithm, and the script does not fail."""
    device = FakeDevice(0, 64 * MIB)
    scratch = ScratchScope(device.allocator, 0, "aten::cudnn_convolution", ((80 * MIB, -80 * MIB, 4 * MIB, -4 * MIB),))
    scratch.after_output()
    scratch.end()
    assert device.memory.usage.stats()["num_ooms"] == 1 and device.memory.usage.usage_of_run().ooms == 0
    assert device.memory.usage.usage_of_run().most_allocated_bytes == 4 * MIB


def test_a_convolution_repeats_the_algorithm_of_its_first_call() -> None:
    """Once a workspace did not fit, later calls request only the smaller workspace, even after other memory has been freed."""
    device = FakeDevice(0, 100 * MIB)
    other = device.allocator.malloc(60 * MIB, 0)
    assert other is not None
    for op, sizes in (("aten::cudnn_convolution", (80, 30)), ("aten::cudnn_convolution", (80, 30)), ("aten::mm", (96,))):
        scratch = ScratchScope(device.allocator, 0, op, (tuple(sign * size * MIB for size in sizes for sign in (1, -1)),))
        scratch.after_output()
        scratch.close()
        if other is not None:
            device.allocator.free(other)
            other = None
    assert device.memory.usage.stats()["num_ooms"] == 1  # The workspace of 80 MiB is requested only once.
    assert device.memory.usage.usage_of_run().most_allocated_bytes == 96 * MIB  # The 96 MiB of the matrix product fit.


def test_an_op_other_than_a_convolution_fails_if_its_workspace_does_not_fit() -> None:
    device = FakeDevice(0, 64 * MIB)
    scratch = ScratchScope(device.allocator, 0, "aten::mm", ((4 * MIB, 80 * MIB, -80 * MIB, -4 * MIB),))
    with pytest.raises(MemoryError, match=r"Tried to allocate 80\.00 MiB"):
        scratch.after_output()
    scratch.close()
    assert device.memory.usage.allocated_bytes == 0 and device.memory.usage.usage_of_run().ooms == 1
