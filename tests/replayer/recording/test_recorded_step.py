"""Tests which phases of a recorded step have GPU time, and how two recorded steps are compared and combined."""

from __future__ import annotations

import pytest

from replayer.recording.recorded_step import LEADING, Kernel, RecordedSegment, RecordedStep
from traces.model.trace import NONE, StepKind


@pytest.mark.parametrize(("device_ns", "is_host_only", "has_sum"), [(NONE, True, False), (0, True, True), (1, False, True)])
def test_a_phase_without_gpu_time_takes_only_host_time(device_ns: int, is_host_only: bool, has_sum: bool) -> None:
    segment = RecordedSegment("forward", device_ns=device_ns)
    assert (segment.is_host_only, segment.phase_grained) == (is_host_only, has_sum)


def step(**host_ns: int) -> RecordedStep:
    """Return a step with the given phases. A name like "forward_0" is a phase, and "other_first" is the time before the first
    phase."""
    segments = {}
    for key, time_ns in host_ns.items():
        name, _, count = key.rpartition("_")
        segments[name, LEADING if count == "first" else int(count)] = RecordedSegment(name, host_ns=time_ns)
    return RecordedStep(0, segments, [])


def test_steps_differ_by_the_time_of_phases_that_only_one_step_has() -> None:
    one, other = step(forward_0=5, backward_0=7, forward_1=11), step(forward_0=6, optimizer_0=13)
    assert one.differs_by_ns(other) == other.differs_by_ns(one) == 7 + 11 + 13
    assert one.differs_by_ns(one) == 0


def test_the_additional_phase_of_a_step_is_found_between_the_phases_that_both_steps_have() -> None:
    """The first step also runs its model before the loader, for example to save a picture."""
    one = step(forward_0=5, backward_0=7, forward_1=90, loader_0=2, forward_2=6)
    other = step(forward_0=5, backward_0=7, loader_0=3, forward_1=1)
    assert one.differs_by_ns(other) == other.differs_by_ns(one) == 90


def test_a_slowed_step_takes_the_time_of_the_slow_step_in_each_phase() -> None:
    """If the slow step has no time before its first phase, the slowed step has none. The loader takes exactly the slow step's
    time."""
    fast = step(other_first=3, loader_0=2, forward_0=5, backward_0=7)
    slow = fast.as_slow_as(step(loader_0=20, forward_0=50, optimizer_0=90))
    found = {key: (of.host_ns, of.least_host_ns) for key, of in slow.segments.items()}
    assert found == {
        ("loader", 0): (20, 0), ("forward", 0): (5, 50), ("backward", 0): (7, 0), ("optimizer", 0): (0, 90),
    }  # fmt: skip
    kept = fast.as_slow_as(step(other_first=30))
    assert kept.segments["other", LEADING].least_host_ns == 30


@pytest.mark.parametrize(
    ("kernels", "host_ns", "device_ns", "expected"),
    [([], 0, NONE, True), ([], 0, 0, True), ([3], 0, NONE, False), ([], 1, NONE, False), ([], NONE, 1, False)],
)
def test_a_phase_is_empty_without_kernels_and_without_time(
    kernels: list[int], host_ns: int, device_ns: int, expected: bool
) -> None:
    assert RecordedSegment("forward", host_ns=host_ns, device_ns=device_ns, kernels=kernels).is_empty is expected


@pytest.mark.parametrize(("stream", "edge", "expected"), [(NONE, NONE, True), (7, NONE, False), (NONE, 0, False)])
def test_a_step_has_one_stream_if_no_kernel_is_on_another_stream_or_waits_for_one(
    stream: int, edge: int, expected: bool
) -> None:
    """GIVEN two kernels WHEN the second is on another stream, or waits for one THEN the step has several streams."""
    usual, other = (Kernel(0, 0, 0, 9, of, 0, until, 0, 0, 0, NONE) for of, until in ((NONE, NONE), (stream, edge)))
    assert RecordedStep(0, {}, [usual, other], StepKind.STEADY).one_stream is expected
