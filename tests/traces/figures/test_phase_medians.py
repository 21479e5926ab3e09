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
    """GIVEN every fourth of 12 steps takes 40 ms instead of 10 ms, and begins with a loader phase of 4, 5 or 6 ms THEN the
    loader takes 5 / 4 ms per step, although its own times do not repeat within 5 %."""
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
