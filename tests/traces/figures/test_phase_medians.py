"""Tests how long the host waits in each phase, and the median times of phases."""

from __future__ import annotations

import numpy as np

from tests.traces.handmade import US, training
from traces.figures.phase_medians import PhaseMedians, phase_medians, phase_waits_ns
from traces.model.trace import NONE, Device, Phases, Steps, Thread, Trace


def _two_ranks() -> Trace:
    """Return a trace of two ranks with two steps each. Only rank 0 waits: in its first step, it waits for a copy from 27 to 30
    us."""
    trace = training(steps=4)
    trace.devices.append(Device(1, 0, "GPU"))
    trace.threads.append(Thread(1, 100, "main", "main"))
    trace.steps = Steps.concatenated([trace.steps])
    trace.steps.rank[2:] = 1
    call = int(trace.device.launch[0])
    trace.host.name[call] = trace.strings.add("cudaMemcpyAsync")
    trace.host.duration_ns[call] = 8 * US
    return trace


def test_waits_for_the_gpu_are_added_up_by_rank_and_step_and_phase() -> None:
    trace = _two_ranks()
    assert {name: ns.tolist() for name, ns in phase_waits_ns(trace).items() if ns.any()} == {"h2d": [3 * US, 0, 0, 0]}
    assert phase_waits_ns(training(steps=1)) == {}


def test_phase_medians_ignore_unknown_gpu_times() -> None:
    trace = training(steps=3, jitter_us=(0, 4, 20))
    optimizer = np.flatnonzero(trace.phases.name == trace.strings.find("optimizer"))
    assert phase_medians(trace, np.arange(3), np.arange(3))["optimizer"] == PhaseMedians(24 * US, 31 * US, 10 * US)
    trace = training(steps=3, jitter_us=(0, 4, 20))
    trace.phases.device_end_ns[optimizer[2]] = NONE
    found = phase_medians(trace, np.arange(3), np.array([0]))
    assert found["optimizer"] == PhaseMedians(24 * US, (27 + 31) // 2 * US, 10 * US)
    assert found["loader"] == PhaseMedians(20 * US, None, 0)


def test_phase_times_are_averaged_over_the_period_of_the_steps() -> None:
    """GIVEN 12 steps, in which every fourth step takes 40 ms instead of 10 ms, and begins with a loader phase of 4, 5 or 6 ms
    THEN the loader phase takes 5 / 4 ms per step, although the loader times do not repeat within 5 %."""
    lasts = np.array([10, 10, 10, 40] * 3) * 1_000_000
    trace = Trace(grain="kernel", threads=[Thread(0, 100, "main", "main")])
    trace.steps = Steps.of(number=np.arange(12), start_ns=np.cumsum(lasts) - lasts, duration_ns=lasts)
    long = np.arange(3, 12, 4)
    trace.phases = Phases.of(
        step=long,
        name=[trace.strings.add("loader")] * 3,
        start_ns=trace.steps.start_ns[long],
        duration_ns=np.array([4, 5, 6]) * 1_000_000,
    )
    assert phase_medians(trace, np.arange(12), np.arange(12))["loader"].median_ns == 1_250_000


def _phased(rank: list[int], **times_ms: list[int]) -> Trace:
    """Return a trace with one time for each phase and step."""
    steps, lasts = len(rank), np.array(list(times_ms.values())) * 1_000_000
    trace = Trace(grain="kernel", threads=[Thread(of, 100, "main", "main") for of in sorted(set(rank))])
    of_step = lasts.sum(axis=0)
    starts = np.cumsum(of_step) - of_step
    trace.steps = Steps.of(rank=rank, number=np.arange(steps), start_ns=starts, duration_ns=of_step)
    trace.phases = Phases.of(
        step=np.repeat(np.arange(steps), len(lasts)),
        name=[trace.strings.add(name) for name in times_ms] * steps,
        start_ns=(starts + np.cumsum(lasts, axis=0) - lasts).T.ravel(),
        duration_ns=lasts.T.ravel(),
    )
    return trace


def test_phase_times_add_up_to_the_median_step_time() -> None:
    """GIVEN steps of 10, 2, 2 and 14 ms WHEN the first step has a long forward phase and the last step has a long loader phase
    THEN the phase times are means of the two median steps, the third and the first, and add up to the median step time, 6 ms.
    The medians of the two phases would add up to only 2 ms, and the means of all steps to 7 ms."""
    trace = _phased([0] * 4, loader=[1, 1, 1, 13], forward=[9, 1, 1, 1])
    found = phase_medians(trace, np.arange(4), np.arange(4))
    assert {name: of.median_ns for name, of in found.items()} == {"loader": 1_000_000, "forward": 5_000_000}


def test_phase_times_are_the_means_of_three_steps_if_only_the_median_step_is_near_the_median() -> None:
    """GIVEN steps of 90, 100, 110, 200 and 40 ms WHEN only the median step, of 100 ms, has no h2d THEN the phase times are the
    means of the three middle steps, so h2d takes (30 + 0 + 60) / 3 = 30 ms and backward (60 + 100 + 50) / 3 = 70 ms."""
    trace = _phased([0] * 5, h2d=[30, 0, 60, 150, 1], backward=[60, 100, 50, 50, 39])
    found = phase_medians(trace, np.arange(5), np.arange(5))
    assert {name: of.median_ns for name, of in found.items()} == {"h2d": 30_000_000, "backward": 70_000_000}


def test_phase_times_are_the_means_of_all_steps_near_the_median_step_time() -> None:
    """GIVEN steps of 100, 99, 101, 200 and 60 ms WHEN the medians of the two phases (10 and 55 ms) do not add up to 100 ms THEN
    the phase times are the means of the first three steps, which are near the median. In the first step alone, the phases take
    90 and 10 ms."""
    trace = _phased([0] * 5, loader=[90, 9, 80, 10, 5], forward=[10, 90, 21, 190, 55])
    found = phase_medians(trace, np.arange(5), np.arange(5))
    assert {name: of.median_ns for name, of in found.items()} == {"loader": 59_666_667, "forward": 40_333_333}


def test_phase_times_of_several_ranks_are_the_means_of_the_ranks() -> None:
    """GIVEN three steps of rank 0 and two steps of rank 1, in which backward takes 7 and 14 ms, and the optimizer 8 and 1 ms
    THEN backward takes 10.5 ms and the optimizer 4.5 ms, and both add up to the step time of 15 ms."""
    trace = _phased([0, 1, 0, 1, 0], backward=[7, 14, 7, 14, 7], optimizer=[8, 1, 8, 1, 8])
    found = phase_medians(trace, np.arange(5), np.arange(5))
    assert {name: of.median_ns for name, of in found.items()} == {"backward": 10_500_000, "optimizer": 4_500_000}
