"""Tests which phases of profiled steps are compared with which phases of clean steps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.traces.profiled_traces import UNIX_NS, Step, add_ops, clean_phases, recorded
from traces.analyses.waits import host_waits
from traces.combining.compared_phases import comparable_steps, noise_of_median_ns
from traces.combining.profiled_steps import HostEvents, ProfiledSteps
from traces.combining.profiler_cost import with_clean_pace
from traces.comparison.thresholds import FEWEST_ALIKE, LEAST_NOISE, STEPS_BEFORE_WINDOW
from traces.model.run import Run
from traces.model.trace import DeviceKind, DeviceSpans, HostKind, StepKind, Trace


@pytest.mark.parametrize(
    ("forward_ms", "end_ms", "own_ms"),
    [
        ((2, 2, 2, 5, 5, 5), (5, 10, 15, 20, 25, 30), 2),  # from step 2 on, 900 launches are queued
        ((2, 2, 2, 5, 5, 5), (4.99, 9.98, 14.97, 19.96, 24.95, 29.94), 3.5),  # at most 899 launches are queued: no waits
        ((2, 3, 1, 8), (5, 10, 15, 20), 2.5),  # the last step begins with 900 queued launches and ends with 600
        ((0, 0, 5, 5, 5), (5, 10, 15, 20, 25), 4),  # 1000 launches are always queued, so the profiled step decides
        ((20, 20, 20, 20), (30, 50, 70, 90), 20),  # at most 750 launches are queued, and the GPU waits for another rank
    ],
)
def test_unprofiled_phases_that_may_wait_for_a_full_launch_queue_are_ignored(
    forward_ms: tuple[int, ...], end_ms: tuple[float, ...], own_ms: float
) -> None:
    """GIVEN steps that launch 500 kernels of 10 us WHEN the host runs ahead and 900 launches are queued THEN the host may have
    waited for the queue, so the phase is ignored. A step of 0 ms is a warm-up step."""
    count = len(forward_ms)
    steps = [(StepKind.STEADY, [("forward", int(ms * 1e6) + 1)]) for ms in forward_ms]
    trace = recorded([*steps, (StepKind.PROFILED, [("forward", 4_000_000)])])
    trace.steps.kind[:count][np.array(forward_ms) == 0] = StepKind.WARMUP
    begin_ns = int(trace.steps.start_ns[-1])
    add_ops(trace, [(begin_ns - UNIX_NS + 8000 * i, 1) for i in range(500)], HostKind.RUNTIME, "cudaLaunchKernel")
    trace.device = DeviceSpans.of(
        device=[0] * 500, stream=[7] * 500, kind=[DeviceKind.KERNEL] * 500, name=[0] * 500, launch=range(500),
        start_ns=[begin_ns + 5000 + 10_000 * i for i in range(500)], duration_ns=[10_000] * 500,
    )  # fmt: skip
    phases = trace.phases
    phases.device_end_ns[:count] = phases.start_ns[0] + (np.array(end_ms) * 1e6).astype(np.int64)
    phases.device_start_ns[:count] = phases.device_end_ns[:count] - 5_000_000
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, count)["forward"] == pytest.approx(own_ms * 1e6, rel=0.01)


@pytest.mark.parametrize(
    ("call", "wait_us", "own_us"),
    [
        ("cudaLaunchKernel", 100, 40_000), ("cudaLaunchKernel", 200, 40_000), ("cudaLaunchKernel", 201, 39_799),
        ("cudaStreamSynchronize", 100, 39_900),
    ],
)  # fmt: skip
def test_a_short_wait_in_a_launch_call_may_be_a_coincidence(call: str, wait_us: int, own_us: int) -> None:
    """GIVEN a phase of 40 ms in clean steps with a wait for the GPU WHEN the wait is in a launch call and lasts at most 0.2 ms
    THEN all 40 ms are host time. A longer wait, or a wait in another call, does not count as host time."""
    wait_ns = wait_us * 1000
    clean, profiled = [("forward", 40_000_000), ("other", 10_000_000)], [("forward", 20_000_000), ("other", 10_000_000)]
    trace = recorded([(StepKind.STEADY, clean)] * 2 + [(StepKind.PROFILED, profiled)] * 2)
    begins = (trace.steps.start_ns[2:] - UNIX_NS).tolist()
    add_ops(trace, [(begin, 1000) for begin in begins], HostKind.RUNTIME, "cudaLaunchKernel")
    add_ops(trace, [(begin + 2000, wait_ns) for begin in begins], HostKind.RUNTIME, call)
    ends_ns = trace.steps.start_ns[2:] + wait_ns + 2000
    rows = 4 if call == "cudaLaunchKernel" else 2
    trace.device = DeviceSpans.of(
        device=[0] * rows, stream=[7] * rows, kind=[DeviceKind.KERNEL] * rows, name=[0] * rows, launch=range(rows),
        start_ns=[*(ends_ns - 99_000), *ends_ns][:rows], duration_ns=[99_000, 99_000, 1, 1][:rows],
    )  # fmt: skip
    waits = host_waits(trace, 0)
    assert (waits.end_ns - waits.start_ns).tolist() == [wait_ns, wait_ns]
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 2, waits.intervals)["forward"] == pytest.approx(own_us * 1000)


@pytest.mark.parametrize(
    ("clean", "profiled", "scale"),
    [
        (  # "other" and the forward pass are scaled by 300 / (300 + 200), and the backward pass by 300 / 700.
            [("forward", 300), ("backward", 300)],
            [("forward", 300), ("other", 200), ("backward", 700)],
            {"forward": 0.6, "other": 0.6, "backward": 3 / 7},
        ),
        (  # The profile shows the launch of a CUDA graph as "forward", so its factor is (50 + 30 + 20) / 400.
            [("other", 100), ("forward", 50), ("loss", 30), ("backward", 20)],
            [("other", 200), ("forward", 400)],
            {"other": 0.5, "forward": 0.25},
        ),
        (  # The recorder noticed only the end of the forward pass. Its factor is (30 + 300 + 2) / (60 + 100 + 504).
            [("other", 30), ("zero_grad", 50), ("other", 300), ("forward", 2), ("backward", 100)],
            [("other", 60), ("zero_grad", 25), ("other", 100), ("forward", 504), ("backward", 200)],
            {"other": 0.5, "forward": 0.5, "zero_grad": 2, "backward": 0.5},
        ),
        ([("h2d", 20), ("forward", 100)], [("forward", 240)], {"forward": 0.5}),  # no phase comes before "h2d"
        ([("forward", 100)], [("other", 150), ("backward", 50)], {"other": 0.5, "backward": 0.5}),  # whole steps are compared
    ],
)
def test_a_phase_that_only_the_profile_contains_is_added_to_the_previous_phase(
    clean: list[tuple[str, int]], profiled: list[tuple[str, int]], scale: dict[str, float]
) -> None:
    trace = recorded([(StepKind.STEADY, clean), (StepKind.STEADY, clean), (StepKind.PROFILED, profiled)])
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx(scale)


def test_correction_factors_have_the_same_order_in_every_process() -> None:
    names = ["h2d", "forward", "loss", "zero_grad", "backward", "optimizer", "other"]
    trace = recorded([(StepKind.STEADY, [("whole", 700)])] * 2 + [(StepKind.PROFILED, [(name, 100) for name in names])])
    assert list(with_clean_pace(trace.runs[0], trace, 0).host_scale) == names


FORWARD: list[tuple[str, int]] = [("forward", 100)]
UPDATE: list[tuple[str, int]] = [*FORWARD, ("backward", 100), ("optimizer", 50)]


def compared(trace: Trace) -> list[tuple[list[int], list[int]]]:
    steps = ProfiledSteps(trace, 0, HostEvents.of(trace, 0))
    return [(profiled.tolist(), clean.tolist()) for profiled, clean in comparable_steps(trace, 0, steps)]


@pytest.mark.parametrize(("clean", "profiled"), [(3, 3), (2, 3), (3, 2)])
def test_a_rarer_kind_of_step_is_compared_if_it_occurs_three_times(clean: int, profiled: int) -> None:
    """GIVEN four clean and four profiled steps that update parameters WHEN three clean and three profiled steps do not update
    them THEN both kinds of steps are compared."""
    assert FEWEST_ALIKE == 3
    steps: list[Step] = [(StepKind.STEADY, UPDATE)] * 4 + [(StepKind.STEADY, FORWARD)] * clean
    steps += [(StepKind.PROFILED, UPDATE)] * 4 + [(StepKind.PROFILED, FORWARD)] * profiled
    begin = 4 + clean
    usual, rare = ([*range(begin, begin + 4)], [0, 1, 2, 3]), ([*range(begin + 4, begin + 4 + profiled)], [*range(4, begin)])
    assert compared(recorded(steps)) == ([usual, rare] if clean == profiled == 3 else [usual])


@pytest.mark.parametrize("kind", [StepKind.STEADY, StepKind.PROFILED])
def test_profiled_and_unprofiled_steps_are_compared_only_if_both_exist(kind: StepKind) -> None:
    assert compared(recorded([(kind, UPDATE)] * 4)) == []


def test_clean_steps_are_compared_with_the_last_earlier_profile_if_profiles_ran_different_ops() -> None:
    """GIVEN two profiles of three steps, of which only the second contains a certain op WHEN eight clean steps run before the
    second profile THEN the first profile is compared with five of these clean steps. The last three clean steps are left
    out."""
    assert STEPS_BEFORE_WINDOW == 3
    clean, profiled = (StepKind.STEADY, UPDATE), (StepKind.PROFILED, UPDATE)
    trace = recorded([clean] * 2 + [profiled] * 3 + [clean] * 6 + [profiled] * 3)
    begins_ns = (trace.steps.start_ns - UNIX_NS).tolist()
    add_ops(trace, [(begins_ns[row], 1) for row in (2, 3)], name="aten::mul")
    add_ops(trace, [(begins_ns[4], 1)], name="aten::sub")  # the steps of a profile may contain different ops
    add_ops(trace, [(begins_ns[row], 1) for row in (11, 12, 13)], name="aten::div")
    assert compared(trace) == [([2, 3, 4], [0, 1, 5, 6, 7])]
    trace.host.name[:] = trace.host.name[0]  # both profiles now contain the same op
    assert compared(trace) == [([2, 3, 4, 11, 12, 13], [0, 1, *range(5, 11)])]


def test_the_noise_of_a_median_is_its_standard_error_or_1_percent_if_larger() -> None:
    """GIVEN quartiles that are 1350 ns apart THEN the standard deviation is 1350 / 1.35 = 1000 ns.

    The error of the median of four values is 1.25 x 1000 / 2 = 625 ns.
    """
    assert noise_of_median_ns(np.array([1000, 1000, 2350, 2350])) == pytest.approx(625)
    assert noise_of_median_ns(np.array([2000, 2000])) == pytest.approx(LEAST_NOISE * 2000)
