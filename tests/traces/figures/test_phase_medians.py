"""Tests how long the host waits in each phase, and the median times of phases."""

from __future__ import annotations

import numpy as np

from tests.traces.handmade import US, training
from traces.figures.phase_medians import PhaseMedians, phase_medians, phase_waits_ns
from traces.model.trace import NONE, Device, Steps, Thread, Trace


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
