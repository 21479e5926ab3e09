"""Tests that workspaces are found in recorded memory events."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from replayer.op_signature import OpSignature
from replayer.recording.recorded_run import RecordedRun
from replayer.recording.workspaces import Workspaces, WorkspaceSequence
from tests.replayer.recordings import US, Op, make_recording
from traces.kineto import read_kineto
from traces.model.trace import MemoryEvents, Trace

MIB = 1 << 20
SHAPES = ((2, 3, 8, 8), (4, 3, 3, 3))


def conv_trace(*events: tuple[int, int], steps: int = 1, addresses: list[int] | None = None) -> Trace:
    """Return a recording of `cudnn_convolution` (10 to 60 us) inside `convolution` (5 to 70 us). The memory events are given
    as (us since the start of the step, bytes)."""
    inner = Op("aten::cudnn_convolution", 10, 50, kernel=(40, 5), shapes=SHAPES)
    ops = [
        Op("aten::convolution", 5, 65, shapes=SHAPES, children=[inner]),
        Op("aten::relu_", 80, 10, kernel=(85, 5), shapes=((2, 4, 6, 6),)),
    ]
    return with_events(make_recording([("forward", 0, 100)], ops, steps=steps), events, steps, addresses)


def with_events(trace: Trace, events: tuple[tuple[int, int], ...], steps: int = 1, addresses: list[int] | None = None) -> Trace:
    rows = [(int(trace.steps.start_ns[s]) + at * US, size) for s in range(steps) for at, size in events]
    trace.memory = MemoryEvents.of(
        thread=[0] * len(rows),
        device=[0] * len(rows),
        time_ns=[at for at, _ in rows],
        bytes=[size for _, size in rows],
        address=addresses or [0] * len(rows),
    )
    return trace


def program(trace: Trace, op: str, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> WorkspaceSequence:
    recording = RecordedRun(trace)
    return Workspaces.of(trace, recording, 0).of_op(recording.keys[OpSignature(op, shapes, ("float32",) * len(shapes))])


def test_memory_allocated_and_freed_within_an_op_is_its_workspace() -> None:
    """GIVEN an op that allocates an output and then frees a second block THEN the second block is a workspace after the first
    output."""
    trace = conv_trace((20, 4 * MIB), (30, 7 * MIB), (50, -7 * MIB))
    assert program(trace, "aten::cudnn_convolution") == ((), (7 * MIB, -7 * MIB))


def test_a_workspace_is_found_although_the_op_has_another_name() -> None:
    trace = conv_trace((20, 7 * MIB), (25, -7 * MIB), (30, 4 * MIB))
    assert program(trace, "aten::_convolution", (*SHAPES, (4,))) == ((7 * MIB, -7 * MIB),)


def test_memory_that_outlives_the_op_or_existed_before_is_not_a_workspace() -> None:
    trace = conv_trace((20, 4 * MIB), (30, -9 * MIB), (90, -4 * MIB))
    assert program(trace, "aten::convolution") == ()


def test_a_result_that_is_freed_when_its_op_returns_is_not_a_workspace() -> None:
    """GIVEN a block that is freed when an inner op returns THEN this block is a result of the inner op and a workspace of the
    outer op."""
    trace = conv_trace((20, 4 * MIB), (30, 7 * MIB), (60, -7 * MIB))
    assert program(trace, "aten::cudnn_convolution") == ()
    assert program(trace, "aten::convolution") == ((), (7 * MIB, -7 * MIB))


def test_addresses_distinguish_a_workspace_from_an_output_of_equal_size() -> None:
    trace = conv_trace((20, 4 * MIB), (30, 4 * MIB), (50, -4 * MIB), addresses=[1, 2, 1])
    assert program(trace, "aten::convolution") == ((4 * MIB,), (-4 * MIB,))


def test_other_shapes_and_ops_have_no_recorded_workspace() -> None:
    trace = conv_trace((20, 4 * MIB), (30, 7 * MIB), (50, -7 * MIB))
    assert program(trace, "aten::convolution", ((4, 3, 8, 8), (4, 3, 3, 3))) == ()
    assert program(trace, "aten::relu_", ((2, 4, 6, 6),)) == ()


def test_the_smallest_observed_workspace_size_is_used() -> None:
    """Up to 1 MiB of a large block may be an unsplit remainder, so workspaces of equal calls may differ in size."""
    trace = conv_trace((20, 4 * MIB), (30, 7 * MIB), (50, -7 * MIB), steps=2)
    trace.memory.bytes[4:] = [7 * MIB - 51_200, -7 * MIB + 51_200]
    assert program(trace, "aten::convolution") == ((), (7 * MIB - 51_200, -7 * MIB + 51_200))


def test_no_workspace_is_known_without_shapes_or_memory_events() -> None:
    trace = conv_trace((20, 4 * MIB), (30, 7 * MIB), (50, -7 * MIB))
    trace.host.shapes = np.full_like(trace.host.shapes, -1)
    assert program(trace, "aten::convolution") == ()
    assert program(conv_trace(), "aten::convolution") == ()


def test_cudnn_workspaces_are_found_in_a_real_recording(shared_traces: Path) -> None:
    """On a V100, a 3x3 convolution of 512 channels of ResNet-50 uses one workspace of 54 MiB in the forward pass. In the
    backward pass, the convolution uses two such workspaces, one after the other."""
    trace = read_kineto(shared_traces / "v100_resnet50_workers0.json.gz")
    image, weight = (32, 512, 7, 7), (512, 512, 3, 3)
    taken = 56_623_104
    assert program(trace, "aten::convolution", (image, weight)) == ((), (taken, -taken))
    backward = program(trace, "aten::convolution_backward", (image, image, weight))
    assert backward == ((), (taken, -taken), (taken, -taken))
    assert program(trace, "aten::native_batch_norm", (image, (512,), (512,), (512,), (512,))) == ()
