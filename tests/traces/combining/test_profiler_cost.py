"""The host time that the profiler costs: found from clean and profiled steps, and subtracted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traces.analyses.waits import host_waits
from traces.combining.profiler_cost import CleanPace, HostEvents, _fitted_cost, _noise_ns, _Phase, _stages, with_clean_pace
from traces.comparison.thresholds import EVENT_COSTS, LEAST_NOISE
from traces.model.intervals import Intervals
from traces.model.run import ProfilerCost, Run
from traces.model.trace import (
    NONE,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Parts,
    Phases,
    StepKind,
    Steps,
    Thread,
    Trace,
)

UNIX_NS = 1_700_000_000 * 10**9
NO_WAITS = Intervals([], [])

Step = tuple[StepKind, list[tuple[str, int]]]  # phases in order, each with its time in ns


def recorded(steps: list[Step], start_ns: int = UNIX_NS) -> Trace:
    """Steps one after another on one rank with one GPU, without host spans."""
    trace = Trace(devices=[Device(0, 0, "GPU")], threads=[Thread(0, 1, "python", "main")], runs={0: Run(clock="unix")})
    phases: dict[str, list[int]] = {"step": [], "name": [], "start_ns": [], "duration_ns": []}
    begins, at_ns = [], start_ns
    for row, (_, parts) in enumerate(steps):
        begins.append(at_ns)
        for name, took_ns in parts:
            for column, value in zip(phases, (row, trace.strings.add(name), at_ns, took_ns), strict=True):
                phases[column].append(value)
            at_ns += took_ns
    durations = np.diff([*begins, at_ns])
    numbers = range(len(steps))
    kinds = [kind for kind, _ in steps]
    trace.steps = Steps.of(rank=[0] * len(steps), number=numbers, start_ns=begins, duration_ns=durations, kind=kinds)
    trace.phases = Phases.of(**phases)
    return trace


def add_ops(trace: Trace, spans: list[tuple[int, int]], kind: HostKind = HostKind.OP, name: str = "aten::add") -> None:
    """Host spans with shapes on the main thread, each (start, duration) in ns since the trace's first step."""
    zero_ns = int(trace.steps.start_ns[0])
    shapes = trace.strings.add("2,2") if kind == HostKind.OP else NONE
    rows = HostSpans.of(
        thread=[0] * len(spans),
        kind=[kind] * len(spans),
        name=[trace.strings.add(name)] * len(spans),
        start_ns=[zero_ns + start for start, _ in spans],
        duration_ns=[took for _, took in spans],
        shapes=[shapes] * len(spans),
    )
    trace.host = HostSpans.concatenated([trace.host, rows])


def clean_phases(trace: Trace, step: int, waits: Intervals = NO_WAITS) -> dict[str, float]:
    """By phase of a step, its host time without waits and without the profiler."""
    pace, phases = CleanPace(trace, 0, waits), trace.phases
    rows = np.flatnonzero(phases.step == step)
    own_ns = (pace.own_ns(phases.end_ns[rows]) - pace.own_ns(phases.start_ns[rows])) * pace.scale[rows]
    return dict(zip([trace.strings[name] for name in phases.name[rows].tolist()], own_ns.tolist(), strict=True))


def test_the_profiler_cost_of_an_op_is_subtracted_from_the_gaps_around_it() -> None:
    """GIVEN a phase of 10 us with ops at 1000..3000, 3200..4000 and 9000..9500, and a cost of 500 ns per op THEN the first op
    begins at 500. The second follows at the minimum gap of 100, so 400 of its 500 remain and are subtracted from its own 800.
    """
    trace = recorded([(StepKind.STEADY, [("forward", 8_500)]), (StepKind.PROFILED, [("forward", 10_000)])])
    zero_ns = 8_500
    add_ops(trace, [(zero_ns + 1000, 2000), (zero_ns + 3200, 800), (zero_ns + 9000, 500)])
    trace.runs[0] = replace(trace.runs[0], profiler_cost=ProfilerCost(op_ns=500))
    pace = CleanPace(trace, 0, NO_WAITS)
    start_ns = int(trace.steps.start_ns[1])
    moments = np.array([0, 1000, 3000, 3200, 4000, 9000, 9500, 10_000]) + start_ns
    assert (pace.own_ns(moments) - start_ns).tolist() == [0, 500, 2500, 2600, 3000, 7500, 8000, 8500]
    assert pace.scale.tolist() == [1.0, 1.0]
    assert pace.own_ns(np.array([start_ns - 70]))[0] == start_ns - 70


def test_profiler_cost_distinguishes_kinds_of_events() -> None:
    trace = recorded([(StepKind.PROFILED, [("forward", 100), ("backward", 100)])])
    add_ops(trace, [(10, 50), (130, 5)])
    trace.host.shapes[1] = NONE
    add_ops(trace, [(12, 40)], HostKind.OP, "nn.Module: Linear_0")
    add_ops(trace, [(0, 200)], HostKind.ANNOTATION, "ProfilerStep#0")
    add_ops(trace, [(20, 5), (30, 5)], HostKind.RUNTIME, "cudaLaunchKernel")
    trace.device = DeviceSpans.of(device=[0], stream=[7], name=[0], start_ns=[UNIX_NS + 30], duration_ns=[5], launch=[4])
    trace.memory = MemoryEvents.of(thread=[0, 0, 1], time_ns=[UNIX_NS + 40, UNIX_NS + 150, UNIX_NS + 60], bytes=[1, -1, 1])
    trace.threads.append(Thread(0, 2, "pin_memory"))  # which neither trains nor launches
    counts = HostEvents.of(trace, 0).counts(trace.phases.start_ns, trace.phases.end_ns)
    # op, op without shapes, range, module, runtime call, launch, memory event
    assert counts.tolist() == [[1, 0, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0, 1]]


def slowed(
    op_ns: int, ops: dict[str, int], clean: dict[str, int], steps: int = 4, longer_ns: dict[str, int] | None = None
) -> Trace:
    """Clean steps, and profiled ones whose phases have so many ops of 2 us, each `op_ns` later than in the clean steps.

    The profiled phases in `longer_ns` take this much longer.
    """
    profiled = [(name, took_ns + op_ns * ops[name] + (longer_ns or {}).get(name, 0)) for name, took_ns in clean.items()]
    trace = recorded([(StepKind.STEADY, list(clean.items()))] * steps + [(StepKind.PROFILED, profiled)] * steps)
    spans = []
    for step in range(steps, 2 * steps):
        for phase in np.flatnonzero(trace.phases.step == step).tolist():
            begin_ns = int(trace.phases.start_ns[phase]) - UNIX_NS
            count = ops[trace.strings[int(trace.phases.name[phase])]]
            spans += [(begin_ns + (2_500 + op_ns) * n + op_ns + 500, 2_000) for n in range(count)]
    add_ops(trace, spans)
    return trace


def test_the_profiler_cost_per_op_is_computed_and_subtracted_at_each_op() -> None:
    """GIVEN a forward pass of 100 ops in 300 us and a backward pass of 200 ops in 600 us WHEN the profiler took 600 ns per op
    THEN this cost is found, the remaining factor is 1, and the last op of the forward pass begins 100 x 600 ns earlier."""
    trace = slowed(600, {"forward": 100, "backward": 200}, {"forward": 300_000, "backward": 600_000})
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == pytest.approx(600, abs=1)
    assert run.host_scale == pytest.approx({"forward": 1.0, "backward": 1.0}, abs=1e-3)
    assert clean_phases(trace, 5) == pytest.approx({"forward": 300_000, "backward": 600_000}, rel=1e-5)
    assert clean_phases(trace, 1) == {"forward": 300_000, "backward": 600_000}
    begin_ns = int(trace.steps.start_ns[4])
    last_ns = begin_ns + (2_500 + 600) * 99 + 600 + 500
    own_ns = CleanPace(trace, 0, NO_WAITS).own_ns(np.array([begin_ns, last_ns]))
    assert own_ns[1] - own_ns[0] == pytest.approx(2_500 * 99 + 500, abs=200)


def test_the_subtracted_profiler_costs_never_exceed_the_slowdown_of_the_step() -> None:
    """GIVEN a loss of 10 ops that became 25 us slower and a backward pass of 1000 ops that became 480 us slower THEN 1010 ops
    cost 505 us, although the length of the short phase is known better."""
    ops, clean = {"loss": 10, "backward": 1000}, {"loss": 100_000, "backward": 5_000_000}
    trace = slowed(500, ops, clean, longer_ns={"loss": 20_000, "backward": -20_000})
    run = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == pytest.approx(500, abs=1)


def test_the_remaining_slowdown_is_removed_by_scaling() -> None:
    """GIVEN a phase that was longer in clean steps and one that was shorter THEN both get the length they have in
    clean steps."""
    clean = [("forward", 300), ("optimizer", 100)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, [("forward", 200), ("optimizer", 200)])] * 3)
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx({"forward": 1.5, "optimizer": 0.5})
    assert clean_phases(trace, 4) == pytest.approx(dict(clean))


def test_a_phase_without_time_in_profiled_steps_is_not_scaled() -> None:
    """GIVEN a loss that takes 10 in clean steps and no time in profiled steps WHEN the forward takes 1000 and 2000."""
    trace = recorded(
        [(StepKind.STEADY, [("forward", 1000), ("loss", 10)])] * 2 + [(StepKind.PROFILED, [("forward", 2000), ("loss", 0)])] * 2
    )
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 2) == pytest.approx({"forward": 1000, "loss": 0})


def test_clean_phase_times_add_up_to_the_median_step() -> None:
    """GIVEN three clean steps, each with one slow phase: medians of 100, 100 and 100 in steps of 350 THEN they are 350 / 3."""
    slow = [
        [("forward", a), ("backward", b), ("optimizer", c)] for a, b, c in ((150, 100, 100), (100, 150, 100), (100, 100, 150))
    ]
    profiled = (StepKind.PROFILED, [("forward", 200), ("backward", 200), ("optimizer", 200)])
    trace = recorded([*((StepKind.STEADY, phases) for phases in slow), profiled])
    trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert clean_phases(trace, 3) == pytest.approx(dict.fromkeys(("forward", "backward", "optimizer"), 350 / 3))


@pytest.mark.parametrize(
    ("call", "lag_us", "own_us"),
    [
        ("cudaStreamSynchronize", 800, 500),  # 200 before the call, a wait of up to 600, 300 after it: 1000 or more
        ("cudaStreamSynchronize", 550, 750),  # 300 before the call, a wait of 250, 450 after it
        ("cudaStreamSynchronize", 300, 900),  # 360 before the call, so the GPU has caught up
        ("cudaLaunchKernel", 300, 700),  # in clean steps, an earlier launch may have waited for 300
    ],
)
def test_a_scaled_wait_for_the_gpu_stays_within_its_limits(call: str, lag_us: int, own_us: int) -> None:
    """GIVEN a phase that takes 1000 us in clean steps and 600 us in profiled steps, with a wait of 100 us after 200 us WHEN the
    other phase was not slowed down THEN its own time is at most 900 us, and at least as long as the GPU's lag requires."""
    trace = recorded(
        [(StepKind.STEADY, [("forward", 2_000_000), ("other", 1_000_000)])] * 2
        + [(StepKind.PROFILED, [("forward", 2_000_000), ("other", 600_000)])] * 2
    )
    begins_ns = trace.phases.start_ns[trace.phases.step >= 2][1::2]
    add_ops(trace, [(begin - UNIX_NS - 50_000, 10) for begin in begins_ns.tolist()], HostKind.RUNTIME, "cudaLaunchKernel")
    add_ops(trace, [(begin - UNIX_NS + 200_000, 100_000) for begin in begins_ns.tolist()], HostKind.RUNTIME, call)
    rows = 4 if call == "cudaLaunchKernel" else 2
    trace.device = DeviceSpans.of(
        device=[0] * rows, stream=[7] * rows, kind=[DeviceKind.KERNEL] * rows, name=[0] * rows, launch=range(rows),
        start_ns=[*(begins_ns - 40_000), *(begins_ns + 300_000)][:rows], duration_ns=[340_000, 340_000, 1, 1][:rows],
    )  # fmt: skip
    waits = host_waits(trace, 0).intervals
    assert (waits.start_ns - begins_ns).tolist() == [200_000, 200_000] and waits.total_ns == 200_000
    of_other = np.flatnonzero((trace.phases.name == trace.strings.find("other")) & (trace.phases.step < 2))
    trace.phases.device_start_ns[of_other] = trace.phases.start_ns[of_other] + lag_us * 1000
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 2, waits) == pytest.approx({"forward": 2_000_000, "other": own_us * 1000}, abs=5)


@pytest.mark.parametrize(
    ("launched_us", "kernels_us", "lag_us", "own_us"),
    [
        # with a factor f, the last kernel ends after 800 f + 400, and the phase 50 f later: f = 600 / 850
        ((0, 400, 800), (100, 100, 400), 0, 900 * 600 / 850),
        ((0, 0, 0), (100, 100, 790), 0, 450),  # the GPU works for 990, so the host may be as fast as in the other phase
        ((0, 0, 0), (100, 100, 360), 400, 720),  # the GPU ends after 400 + 560, and 50 f remain: f = 0.8
    ],
)
def test_launches_and_waits_are_repeated_with_scaled_host_times(
    launched_us: tuple[int, ...], kernels_us: tuple[int, ...], lag_us: int, own_us: float
) -> None:
    """GIVEN a phase of 1000 us in clean steps WHEN its profiled steps launch three kernels, wait after 850 us of host time and
    end 50 us after the wait THEN its factor is 0.5, as in the other phase, or the least factor with which it takes 1000 us."""
    starts_us, free_us = [], lag_us
    for at_us, took_us in zip(launched_us, kernels_us, strict=True):
        starts_us.append(max(at_us, free_us))
        free_us = starts_us[-1] + took_us
    clean, profiled = [("forward", 1_000_000), ("other", 1_000_000)], [("forward", 2_000_000), ("other", (free_us + 50) * 1000)]
    trace = recorded([(StepKind.STEADY, clean)] * 2 + [(StepKind.PROFILED, profiled)])
    begin_ns = int(trace.phases.start_ns[-1])
    add_ops(trace, [(begin_ns - UNIX_NS + at * 1000, 10) for at in launched_us], HostKind.RUNTIME, "cudaLaunchKernel")
    wait = begin_ns - UNIX_NS + 850_000, (free_us - 850) * 1000
    add_ops(trace, [wait], HostKind.RUNTIME, "cudaStreamSynchronize")
    trace.device = DeviceSpans.of(
        device=[0] * 3, stream=[7] * 3, kind=[DeviceKind.KERNEL] * 3, name=[0] * 3, launch=range(3),
        start_ns=begin_ns + np.array(starts_us) * 1000, duration_ns=np.array(kernels_us) * 1000,
    )  # fmt: skip
    trace.phases.device_start_ns[[1, 3]] = trace.phases.start_ns[[1, 3]] + lag_us * 1000
    waits = host_waits(trace, 0).intervals
    assert waits.total_ns == (free_us - 850) * 1000
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 2, waits) == pytest.approx({"forward": 1_000_000, "other": own_us * 1000}, rel=1e-3)


@pytest.mark.parametrize(
    ("forward_ms", "lag_ms", "own_ms"),
    [
        ((2, 2, 8, 8), (3, 6, 9.5, 9.5), 2),  # 300, 600, 950 and 950 queued launches
        ((2, 2, 8, 2), (3, 6, 9.5, 8), 2),  # the last step begins with 950 queued launches
        ((8, 8, 8, 8), (9.5, 9.5, 9.5, 9.5), 4),  # every step may have waited: the profiled step decides
        ((2, 2, 8, 8), (3, 6, 8.5, 8.5), 5),  # never more than 850: nothing waited
    ],
)
def test_clean_phases_with_a_full_launch_queue_are_ignored(
    forward_ms: tuple[int, ...], lag_ms: tuple[float, ...], own_ms: int
) -> None:
    """GIVEN steps that launch 500 kernels of 10 us, and whose host runs ahead WHEN the queue has 900 launches or more THEN the
    phase may have waited, and its time is not the host's own."""
    steps = [(StepKind.STEADY, [("forward", 1)]), *((StepKind.STEADY, [("forward", int(ms * 1e6))]) for ms in forward_ms)]
    trace = recorded([*steps, (StepKind.PROFILED, [("forward", 4_000_000)])])
    trace.steps.kind[0] = StepKind.WARMUP
    begin_ns = int(trace.steps.start_ns[-1])
    add_ops(trace, [(begin_ns - UNIX_NS + 8000 * i, 1) for i in range(500)], HostKind.RUNTIME, "cudaLaunchKernel")
    trace.device = DeviceSpans.of(
        device=[0] * 500, stream=[7] * 500, kind=[DeviceKind.KERNEL] * 500, name=[0] * 500, launch=range(500),
        start_ns=[begin_ns + 5000 + 10_000 * i for i in range(500)], duration_ns=[10_000] * 500,
    )  # fmt: skip
    phases = trace.phases
    phases.device_end_ns[1:5] = phases.end_ns[1:5] + np.array(lag_ms) * 1e6
    phases.device_start_ns[1:5] = phases.device_end_ns[1:5] - 5_000_000
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 5)["forward"] == pytest.approx(own_ms * 1e6, rel=0.01)


@pytest.mark.parametrize(("call", "own_us"), [("cudaLaunchKernel", 40_000), ("cudaStreamSynchronize", 39_900)])
def test_a_short_wait_in_a_launch_call_may_be_a_coincidence(call: str, own_us: int) -> None:
    """GIVEN a phase of 40 ms in clean steps and of 20 ms in profiled steps, with a call that waited for 0.1 ms WHEN the other
    phase is as long in both THEN all 40 ms are host time if the call was a launch, and 0.1 ms are a wait otherwise."""
    clean, profiled = [("forward", 40_000_000), ("other", 10_000_000)], [("forward", 20_000_000), ("other", 10_000_000)]
    trace = recorded([(StepKind.STEADY, clean)] * 2 + [(StepKind.PROFILED, profiled)] * 2)
    begins = (trace.steps.start_ns[2:] - UNIX_NS).tolist()
    add_ops(trace, [(begin, 1000) for begin in begins], HostKind.RUNTIME, "cudaLaunchKernel")
    add_ops(trace, [(begin + 2000, 100_000) for begin in begins], HostKind.RUNTIME, call)
    ends_ns = trace.steps.start_ns[2:] + 102_000
    rows = 4 if call == "cudaLaunchKernel" else 2
    trace.device = DeviceSpans.of(
        device=[0] * rows, stream=[7] * rows, kind=[DeviceKind.KERNEL] * rows, name=[0] * rows, launch=range(rows),
        start_ns=[*(ends_ns - 99_000), *ends_ns][:rows], duration_ns=[99_000, 99_000, 1, 1][:rows],
    )  # fmt: skip
    waits = host_waits(trace, 0)
    assert (waits.end_ns - waits.start_ns).tolist() == [100_000, 100_000]
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 2, waits.intervals)["forward"] == pytest.approx(own_us * 1000)


def test_profiled_steps_with_the_same_ops_get_their_median_time() -> None:
    clean = (StepKind.STEADY, [("forward", 1000)])
    trace = recorded([clean, *((StepKind.PROFILED, [("forward", took_ns)]) for took_ns in (2000, 1500, 2500, 4000))])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    # ops of the same start and end as the phase, whose cost is nothing here
    add_ops(trace, [(begins[step], 1000) for step in (1, 2, 3, 4, 4)])
    trace.runs[0] = Run(profiler_cost=ProfilerCost(), host_scale={"forward": 0.5})
    assert [clean_phases(trace, step)["forward"] for step in range(1, 5)] == pytest.approx([1000, 1000, 1000, 2000])


def test_an_interrupted_gap_becomes_as_long_as_in_other_steps() -> None:
    """GIVEN phases of 1000 with an op after 200 WHEN the third is interrupted for 9000 before its op THEN all ops begin after
    200 of 1000."""
    trace = recorded([(StepKind.PROFILED, [("forward", took_ns)]) for took_ns in (1000, 1000, 10_000)])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    add_ops(trace, [(begins[step] + after_ns, 100) for step, after_ns in enumerate((200, 200, 9200))])
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    pace, phases = CleanPace(trace, 0, NO_WAITS), trace.phases
    begin_ns, op_ns, end_ns = (pace.own_ns(times_ns) for times_ns in (phases.start_ns, trace.host.start_ns, phases.end_ns))
    assert (op_ns - begin_ns).tolist() == [200] * 3 and (end_ns - begin_ns).tolist() == [1000] * 3


def test_profiler_cost_is_subtracted_from_median_gaps() -> None:
    """GIVEN three phases of 16000 with gaps of 4000 before the first op and of 2000, 2000 and 8000, in another order in each
    phase WHEN an op costs 2000 THEN the median gaps 4000, 2000, 2000 and 2000 are 6400, 3200, 3200 and 3200 of 16000, and
    4400, 1200, 1200 and 3200 without the three costs."""
    trace = recorded([(StepKind.PROFILED, [("forward", 16_000)])] * 3)
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    ops_ns = ((4000, 12_000, 14_000), (4000, 6000, 14_000), (4000, 6000, 8000))
    add_ops(trace, [(begin + after_ns, 0) for begin, of_step in zip(begins, ops_ns, strict=True) for after_ns in of_step])
    trace.runs[0] = Run(profiler_cost=ProfilerCost(op_ns=2000, plain_op_ns=2000))
    pace, phases = CleanPace(trace, 0, NO_WAITS), trace.phases
    begin_ns, op_ns, end_ns = (pace.own_ns(times_ns) for times_ns in (phases.start_ns, trace.host.start_ns, phases.end_ns))
    assert (op_ns.reshape(3, 3) - begin_ns[:, None]).tolist() == [[4400, 5600, 6800]] * 3
    assert (end_ns - begin_ns).tolist() == [10_000] * 3


def test_profiled_steps_take_the_batch_waits_of_clean_steps() -> None:
    """GIVEN clean waits of 100, 300 and 500 WHEN two profiled steps waited 20 and 10 THEN the first, which waited longer, gets
    the upper quartile, 400, and the second the lower quartile, 200. The loader does not affect the factors of other phases."""
    steps: list[Step] = [(StepKind.STEADY, [("loader", ns), ("forward", 100)]) for ns in (300, 100, 500)]
    steps += [(StepKind.PROFILED, [("loader", ns), ("forward", 200)]) for ns in (20, 10)]
    trace = recorded(steps)
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx({"forward": 0.5})
    assert clean_phases(trace, 3) == pytest.approx({"loader": 400, "forward": 100})
    assert clean_phases(trace, 4) == pytest.approx({"loader": 200, "forward": 100})


def test_a_clean_wait_includes_ops_that_the_recorder_did_not_see() -> None:
    """GIVEN a wait of 100 in clean steps WHEN ops of 40 x 0.5 come before the wait in the profile THEN 80 are the wait, and
    "other" is compared without these ops."""
    clean, profiled = [("other", 10), ("h2d", 50)], [("other", 20), ("h2d", 50), ("other", 40)]
    steps: list[Step] = [(StepKind.STEADY, [*clean, ("loader", 100), ("forward", 300)])] * 2
    trace = recorded([*steps, (StepKind.PROFILED, [*profiled, ("loader", 20), ("forward", 600)])])
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx({"other": 0.5, "h2d": 1, "forward": 0.5})
    pace, phases = CleanPace(trace, 0, NO_WAITS), trace.phases
    assert (phases.duration_ns * pace.scale)[-5:].tolist() == pytest.approx([10, 50, 20, 80, 300])


def test_batch_waits_and_other_phases_add_up_to_the_median_step() -> None:
    """GIVEN clean steps of 200, 400 and 400, with medians of 100 for waiting and 100 for the rest THEN a profiled step waits
    300."""
    clean = [(100, 100), (100, 300), (300, 100)]
    steps: list[Step] = [(StepKind.STEADY, [("loader", wait), ("forward", rest)]) for wait, rest in clean]
    trace = recorded([*steps, (StepKind.PROFILED, [("loader", 50), ("forward", 500)])])
    trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert clean_phases(trace, 3) == pytest.approx({"loader": 300, "forward": 100})


@pytest.mark.parametrize("kind", [StepKind.PROFILED, StepKind.EVALUATION])
def test_a_profiled_phase_that_takes_far_longer_than_all_clean_phases_gets_a_typical_time(kind: StepKind) -> None:
    """GIVEN clean phases of 100 to 200, and profiled ones of 110, 150 and 130 with other ops WHEN one more takes 50 000 THEN it
    gets the median, 130."""
    clean = StepKind.STEADY if kind is StepKind.PROFILED else kind
    times_ns = [110, 50_000, 150, 130]
    trace = recorded([(clean, [("loss", ns)]) for ns in (100, 100, 200)] + [(kind, [("loss", ns)]) for ns in times_ns])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    add_ops(trace, [(begins[3 + step] + 10 * op, 5) for step in range(4) for op in range(3)])
    trace.host.shapes[[3, 6, 7, 9, 10, 11]] = NONE  # 0 to 3 of each step's ops lack shapes
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    assert [round(clean_phases(trace, step)["loss"]) for step in range(3, 7)] == [110, 130, 150, 130]


@pytest.mark.parametrize(
    ("clean", "profiled"),
    [
        ([100, 100, 100], [90, 110, 1000]),  # ten ops may take longer than one or two
        ([1, 1, 1], [100, 110, 120]),  # the recorder saw only the end of the clean phases
        ([100, 100], [100, 5000, 110]),  # two clean phases do not show how much they vary
        ([100, 5000, 100], [100, 5000, 110]),  # a clean step is as long
    ],
)
def test_long_profiled_phases_keep_their_times_if_clean_phases_are_long_too(clean: list[int], profiled: list[int]) -> None:
    steps: list[Step] = [(StepKind.STEADY, [("loss", ns)]) for ns in clean]
    trace = recorded([*steps, *((StepKind.PROFILED, [("loss", ns)]) for ns in profiled)])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    add_ops(trace, [(begins[len(clean) + step] + 2 * op, 1) for step in range(3) for op in range((1, 2, 10)[step])])
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    assert [round(clean_phases(trace, len(clean) + step)["loss"]) for step in range(3)] == profiled


def test_phases_with_the_same_name_get_separate_factors() -> None:
    """GIVEN two backward passes of 300 and 100 WHEN the profiled ones take 600 and 400 THEN their factors are 1/2 and 1/4, and
    the factor of steps with another number of backward passes is 400 of 1000."""
    clean, profiled = [("backward", 300), ("loss", 50), ("backward", 100)], [("backward", 600), ("loss", 50), ("backward", 400)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, profiled)] * 3 + [(StepKind.PROFILED, profiled[:2])])
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    scale = {"backward": 0.4, "backward#1/2": 0.5, "backward#2/2": 0.25, "loss": 1.0}
    assert run.host_scale == pytest.approx(scale)
    assert CleanPace(trace, 0, NO_WAITS).scale.tolist() == pytest.approx([1, 1, 1] * 3 + [0.5, 1, 0.25] * 3 + [0.4, 1])


def test_with_fewer_than_three_profiled_steps_phases_are_compared_by_name() -> None:
    clean, profiled = [("backward", 300), ("backward", 100)], [("backward", 600), ("backward", 400)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, profiled)] * 2)
    assert with_clean_pace(trace.runs[0], trace, 0).host_scale == pytest.approx({"backward": 0.4})


def test_phases_are_compared_by_name_if_clean_steps_have_more_or_fewer() -> None:
    """GIVEN a profile that shows one more phase "other" than the recorder THEN "other" has one factor: 100 of 50 + 150."""
    clean, profiled = [("other", 100), ("forward", 100)], [("other", 50), ("forward", 100), ("other", 150)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, profiled)] * 3)
    assert with_clean_pace(trace.runs[0], trace, 0).host_scale == pytest.approx({"other": 0.5, "forward": 1.0})


def test_kinds_of_steps_with_different_numbers_of_phases_get_separate_factors() -> None:
    """GIVEN steps with one and with two backward passes, which alternate WHEN the profile slows them by other factors THEN each
    kind has its own factors. A file of an earlier version, with factors by name only, still applies to both."""
    one, two = [("backward", 100)], [("backward", 100), ("backward", 200)]
    steps: list[Step] = [(StepKind.STEADY, one), (StepKind.STEADY, two)] * 3
    steps += [(StepKind.PROFILED, [("backward", 200)])] * 4 + [(StepKind.PROFILED, [("backward", 400), ("backward", 250)])] * 3
    trace = recorded(steps)
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx({"backward": 0.5, "backward#1/2": 0.25, "backward#2/2": 0.8})
    assert CleanPace(trace, 0, NO_WAITS).scale[9:].tolist() == pytest.approx([0.5] * 4 + [0.25, 0.8] * 3)
    trace.runs[0] = Run(host_scale={"backward": 0.5})
    assert CleanPace(trace, 0, NO_WAITS).scale[9:].tolist() == [0.5] * 10


@pytest.mark.parametrize(
    ("clean", "profiled", "scale"),
    [
        (  # "other" is compared together with the forward pass: 300 of 300 + 200, then 300 of 700
            [("forward", 300), ("backward", 300)],
            [("forward", 300), ("other", 200), ("backward", 700)],
            {"forward": 0.6, "other": 0.6, "backward": 3 / 7},
        ),
        (  # the profile names the launch of a CUDA graph only "forward": 50 + 30 + 20 of 400
            [("other", 100), ("forward", 50), ("loss", 30), ("backward", 20)],
            [("other", 200), ("forward", 400)],
            {"other": 0.5, "forward": 0.25},
        ),
        (  # the recorder enters the forward pass just before the backward pass: 30 + 300 + 2 of 60 + 100 + 504
            [("other", 30), ("zero_grad", 50), ("other", 300), ("forward", 2), ("backward", 100)],
            [("other", 60), ("zero_grad", 25), ("other", 100), ("forward", 504), ("backward", 200)],
            {"other": 0.5, "forward": 0.5, "zero_grad": 2, "backward": 0.5},
        ),
        ([("h2d", 20), ("forward", 100)], [("forward", 240)], {"forward": 0.5}),  # no phase comes before "h2d"
        ([("forward", 100)], [("other", 150), ("backward", 50)], {"other": 0.5, "backward": 0.5}),  # whole steps
    ],
)
def test_a_phase_that_only_the_profile_has_is_compared_with_the_previous_phase(
    clean: list[tuple[str, int]], profiled: list[tuple[str, int]], scale: dict[str, float]
) -> None:
    trace = recorded([(StepKind.STEADY, clean), (StepKind.STEADY, clean), (StepKind.PROFILED, profiled)])
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx(scale)


def test_an_old_recording_with_only_scale_factors_is_scaled_by_them() -> None:
    trace = recorded([(StepKind.STEADY, [("forward", 100)]), (StepKind.PROFILED, [("forward", 200), ("loss", 50)])])
    trace.runs[0] = Run(host_scale={"forward": 0.5, "loss": float("nan")})
    assert clean_phases(trace, 1) == {"forward": 100, "loss": 50}


def test_without_clean_steps_the_profiler_cost_is_unknown() -> None:
    trace = recorded([(StepKind.PROFILED, [("forward", 100)])] * 2)
    assert with_clean_pace(trace.runs[0], trace, 0) == trace.runs[0]


def add_stages(trace: Trace, step: int, spans: list[tuple[str, int, int]]) -> None:
    """DataParallel stages of the first phase of a step: name, start and end since the phase began."""
    phase = int(np.flatnonzero(trace.phases.step == step)[0])
    begin_ns = int(trace.phases.start_ns[phase])
    rows = Parts.of(
        phase=[phase] * len(spans),
        name=[trace.strings.add(name) for name, _, _ in spans],
        thread=[0] * len(spans),
        start_ns=[begin_ns + start for _, start, _ in spans],
        duration_ns=[end - start for _, start, end in spans],
    )
    trace.parts = Parts.concatenated([trace.parts, rows])


def test_in_profiled_steps_stages_take_the_same_share_of_a_phase_as_in_clean_steps() -> None:
    """GIVEN clean steps in which scatter begins at 100 and ends at 200 of 1000 ns, and two replicas run from 500 to 900
    WHEN a profiled step took 2000 ns THEN its scatter, too, begins at 100 and ends at 200, and its replicas, in another order,
    run from 500 to 900. A moment in the middle of the replicas stays in the middle."""
    clean = (StepKind.STEADY, [("forward", 1000)])
    trace = recorded([clean, clean, (StepKind.PROFILED, [("forward", 2000)])])
    for step in (0, 1):
        add_stages(trace, step, [("scatter", 100, 200), ("parallel_apply", 500, 700), ("parallel_apply", 650, 900)])
    add_stages(trace, 2, [("scatter", 400, 800), ("parallel_apply", 1000, 1300), ("parallel_apply", 1200, 1800)])
    trace.runs[0] = Run(profiler_cost=ProfilerCost(), host_scale={"forward": 0.5})
    pace, start_ns = CleanPace(trace, 0, NO_WAITS), int(trace.steps.start_ns[2])
    moments = np.array([0, 400, 800, 1000, 1400, 1800, 2000]) + start_ns
    assert ((pace.own_ns(moments) - start_ns) * pace.scale[2]).tolist() == [0, 100, 200, 500, 700, 900, 1000]

    waited = CleanPace(trace, 0, Intervals([start_ns + 1850], [start_ns + 1950]))
    assert (waited.own_ns(moments) - start_ns).tolist() == [0, 400, 800, 1000, 1400, 1800, 1900]


def test_overlapping_stages_are_not_used_to_divide_a_phase() -> None:
    """GIVEN stages at 0..200, 200..500 and 499..900, and one that ends after its phase THEN the two that follow each other
    count."""
    trace = recorded([(StepKind.STEADY, [("forward", 1000)])])
    add_stages(trace, 0, [("scatter", 0, 200), ("replicate", 200, 500), ("gather", 499, 900), ("late", 500, 1001)])
    names, moments_ns = _stages(trace, 0)
    assert [trace.strings[name] for name in names] == ["forward", "scatter", "replicate"]
    assert (moments_ns - UNIX_NS).tolist() == [0, 0, 200, 200, 500, 1000]
    add_stages(trace, 0, [("last", 500, 1000)])
    assert len(_stages(trace, 0)[0]) == 4


def test_a_phase_with_concurrent_threads_does_not_determine_the_cost_per_op() -> None:
    """GIVEN an op cost of 600 ns in backward, and a forward pass of DataParallel that took 1 ms longer than its ops explain
    THEN the cost is 600 ns, and the factor of the forward pass covers the rest: 300 of 1300 us."""
    ops = {"forward": 100, "backward": 200}
    trace = slowed(600, ops, {"forward": 300_000, "backward": 600_000}, longer_ns={"forward": 1_000_000})
    for step in range(8):
        add_stages(trace, step, [("replicate", 0, 1000)])
    run = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == pytest.approx(600, abs=1)
    assert run.host_scale == pytest.approx({"forward": 300 / 1300, "backward": 1.0}, rel=1e-3)


def test_the_cost_per_op_is_computed_without_waits_for_the_gpu() -> None:
    """GIVEN a forward pass of 300 us, of which 25 us are a wait for the GPU WHEN the profiler took 600 ns for each of 100 ops

    THEN the profiled time without the wait (335 us) is 60 us longer than the clean time without the wait (275 us). The 100 ops,
    one launch and one synchronization together cost these 60 us.
    """
    trace = slowed(600, {"forward": 100}, {"forward": 300_000})
    begins_ns = trace.steps.start_ns[4:] - UNIX_NS
    add_ops(trace, [(begin_ns + 320_000, 30_000) for begin_ns in begins_ns], HostKind.RUNTIME, "cudaStreamSynchronize")
    launches = np.arange(4) + len(trace.host)
    add_ops(trace, [(begin_ns + 100, 10) for begin_ns in begins_ns], HostKind.RUNTIME, "cudaLaunchKernel")
    trace.device = DeviceSpans.of(
        device=[0] * 4, stream=[7] * 4, kind=[DeviceKind.KERNEL] * 4, name=[0] * 4,
        start_ns=begins_ns + UNIX_NS + 200, duration_ns=[345_000 - 200] * 4, launch=launches,
    )  # fmt: skip
    assert host_waits(trace, 0).intervals.total_ns == 4 * 25_000
    cost = with_clean_pace(Run(), trace, 0).profiler_cost
    assert cost is not None and 100 * cost.op_ns + cost.launch_ns + cost.runtime_ns == pytest.approx(60_000, abs=102)


def test_with_concurrent_threads_the_cost_of_ops_is_limited_by_the_slowdown() -> None:
    """GIVEN an op cost of 600 ns in backward, and a forward pass of DataParallel whose 100 ops took 10 us longer, not 60 us
    THEN the op cost is lowered to the 10 us and the noise of the forward pass, divided by its 100 ops."""
    ops = {"forward": 100, "backward": 200}
    trace = slowed(600, ops, {"forward": 300_000, "backward": 600_000}, longer_ns={"forward": -50_000})
    for step in range(8):
        add_stages(trace, step, [("replicate", 0, 1000)])
    run = with_clean_pace(trace.runs[0], trace, 0)
    noise_ns = LEAST_NOISE * np.hypot(300_000, 310_000)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == pytest.approx((10_000 + noise_ns) / 100, abs=1)
    # what is left of 310 us is the factor's part
    assert run.host_scale["forward"] == pytest.approx(300_000 / (310_000 - 10_000 - noise_ns), rel=1e-3)


def test_a_phase_that_takes_no_time_does_not_determine_the_cost() -> None:
    counts = np.zeros(len(EVENT_COSTS))
    counts[0] = 100
    known = _Phase(
        ("backward",), clean_ns=300_000, noise_ns=3_000, profiled_ns=360_000, waits=False, has_threads=False, wait_ns=0,
        lag_ns=0, work_ns=0, is_full=False, counts=counts,
    )  # fmt: skip
    empty = replace(known, names=("zero_grad",), clean_ns=0, noise_ns=0, profiled_ns=0, counts=np.zeros(len(EVENT_COSTS)))
    assert _fitted_cost([known, empty]) == _fitted_cost([known]) != ProfilerCost()
    assert _fitted_cost([empty]) == ProfilerCost()


def test_the_noise_of_a_median_is_its_standard_error_or_at_least_1_percent() -> None:
    """GIVEN quartiles that are 1350 ns apart THEN the standard deviation is 1350 / 1.35 = 1000 ns.

    The error of the median of four values is 1.25 x 1000 / 2 = 625 ns.
    """
    assert _noise_ns(np.array([1000, 1000, 2350, 2350])) == pytest.approx(625)
    assert _noise_ns(np.array([2000, 2000])) == pytest.approx(LEAST_NOISE * 2000)
