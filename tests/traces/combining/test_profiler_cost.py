"""Tests how the profiler's cost per event is computed from clean and profiled steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.traces.profiled_traces import NO_WAITS, UNIX_NS, Step, add_ops, add_stages, clean_phases, recorded, slowed
from traces.analyses.waits import host_waits
from traces.combining.clean_pace import CleanPace
from traces.combining.compared_phases import ComparedPhase
from traces.combining.profiled_steps import RANGE
from traces.combining.profiler_cost import _fitted_cost, with_clean_pace
from traces.comparison.thresholds import EVENT_COSTS, LEAST_NOISE
from traces.figures.measure import phases_per_step
from traces.model.run import ProfilerCost, Run
from traces.model.trace import DeviceKind, DeviceSpans, HostKind, StepKind


def test_the_profiler_cost_per_op_is_computed_and_subtracted_at_each_op() -> None:
    """GIVEN a forward pass of 100 ops and a backward pass of 200 ops WHEN the profiler took 600 ns per op THEN this cost is
    found and subtracted at each op. No other slowdown remains, and the last op of the forward pass begins 100 x 600 ns
    earlier."""
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
    """GIVEN a loss phase of 10 ops that became 25 us slower and a backward pass of 1000 ops that became 480 us slower THEN the
    cost of all ops is 505 us. The cost per op does not come from the short phase alone, although its time is known more
    exactly."""
    ops, clean = {"loss": 10, "backward": 1000}, {"loss": 100_000, "backward": 5_000_000}
    trace = slowed(500, ops, clean, longer_ns={"loss": 20_000, "backward": -20_000})
    run = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == pytest.approx(500, abs=1)


def test_scaling_removes_slowdown_that_the_profiler_cost_does_not_explain() -> None:
    """GIVEN one phase that was longer in clean steps and one that was shorter THEN both phases get their times from clean
    steps."""
    clean = [("forward", 300), ("optimizer", 100)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, [("forward", 200), ("optimizer", 200)])] * 3)
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx({"forward": 1.5, "optimizer": 0.5})
    assert clean_phases(trace, 4) == pytest.approx(dict(clean))


def test_a_phase_that_takes_no_time_in_profiled_steps_is_not_scaled() -> None:
    """GIVEN a loss phase that takes 10 ns in clean steps and no time in profiled steps WHEN the forward pass is twice as long
    in profiled steps THEN only the forward pass is scaled."""
    trace = recorded(
        [(StepKind.STEADY, [("forward", 1000), ("loss", 10)])] * 2 + [(StepKind.PROFILED, [("forward", 2000), ("loss", 0)])] * 2
    )
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 2) == pytest.approx({"forward": 1000, "loss": 0})


def test_the_corrected_phase_times_add_up_to_the_median_step() -> None:
    """GIVEN three clean steps of 350 ns WHEN a different phase is slow in each step THEN each corrected phase takes 350 / 3 ns,
    so the phases add up to the step. The median of each phase is 100 ns."""
    slow = [
        [("forward", a), ("backward", b), ("optimizer", c)] for a, b, c in ((150, 100, 100), (100, 150, 100), (100, 100, 150))
    ]
    profiled = (StepKind.PROFILED, [("forward", 200), ("backward", 200), ("optimizer", 200)])
    trace = recorded([*((StepKind.STEADY, phases) for phases in slow), profiled])
    trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert clean_phases(trace, 3) == pytest.approx(dict.fromkeys(("forward", "backward", "optimizer"), 350 / 3))


def test_profiled_steps_with_different_work_keep_their_times_without_profiler_slowdown() -> None:
    """GIVEN steps with a long forward pass, with a long backward pass, or without a long phase WHEN profiled steps take as long
    as clean steps THEN no phase is scaled. The profiled steps differ in their ops."""
    work = [[("forward", a), ("backward", b)] for a, b in ((300, 100), (100, 300), (100, 100))]
    trace = recorded([*((StepKind.STEADY, work[kind]) for kind in (0, 0, 1, 1, 2)), *((StepKind.PROFILED, of) for of in work)])
    begins_ns = trace.phases.start_ns[trace.phases.step >= 5] - trace.steps.start_ns[0]
    for ops, begin in enumerate(begins_ns.tolist()):
        add_ops(trace, [(begin + 10 * n, 5) for n in range(ops)], name=f"aten::op_{ops}")
    trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert [clean_phases(trace, step) for step in (5, 6, 7)] == [pytest.approx(dict(of)) for of in work]


@pytest.mark.parametrize(
    ("call", "lag_us", "late_us", "own_us"),
    [
        ("cudaStreamSynchronize", 800, 0, 350),  # the wait ends after 800 us, and the rest takes 210 us
        ("cudaStreamSynchronize", 550, 0, 750),  # 300 us before the call, a wait of 250 us, and 450 us after it
        ("cudaStreamSynchronize", 300, 0, 900),  # the call comes after 360 us, when the GPU has caught up
        ("cudaStreamSynchronize", 550, 130, 750),  # no phase begins without lag, so 130 us are an error of the clocks
        ("cudaLaunchKernel", 300, 0, 700),  # in clean steps, an earlier launch may have waited for 300 us
        ("cudaLaunchKernel", 170, 130, 700),  # without synchronous calls, the GPU may always be late
    ],
)
def test_a_scaled_wait_for_the_gpu_stays_within_its_limits(call: str, lag_us: int, late_us: int, own_us: int) -> None:
    """GIVEN a phase of 1000 us in clean steps WHEN a call in the phase waits 100 us for the GPU THEN the host time of the phase
    is at most 900 us. A lag of the GPU makes the wait longer and the host time shorter."""
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
    trace.phases.device_start_ns[:4] = trace.phases.start_ns[:4] + np.array((0, lag_us) * 2) * 1000 + late_us * 1000
    trace.runs[0] = with_clean_pace(Run(), trace, 0)
    assert clean_phases(trace, 2, waits) == pytest.approx({"forward": 2_000_000, "other": own_us * 1000}, abs=5)


@pytest.mark.parametrize(
    ("launched_us", "kernels_us", "lag_us", "own_us"),
    [
        # With a factor f, the last kernel ends after 800 f + 400 us, and the phase ends 50 f later. Therefore f is 600 / 850.
        ((0, 400, 800), (100, 100, 400), 0, 900 * 600 / 850),
        # The GPU works for 990 us, and 50 f remain. The factor is as near to 0.5 as a phase of 1010 us allows.
        ((0, 0, 0), (100, 100, 790), 0, 900 * 20 / 50),
        ((0, 0, 0), (100, 100, 770), 0, 900 * 30 / 50),  # with a factor of 0.5, the phase would take less than 1000 us
        ((0, 0, 0), (100, 100, 360), 400, 720),  # the GPU ends after 400 + 560 us, so 50 f are 40 us
    ],
)
def test_the_scale_factor_of_a_phase_accounts_for_its_waits_for_the_gpu(
    launched_us: tuple[int, ...], kernels_us: tuple[int, ...], lag_us: int, own_us: float
) -> None:
    """GIVEN a phase of 1000 us in clean steps WHEN profiled steps wait for three kernels after 850 us of host time THEN the
    phase takes 1000 to 1010 us with its factor. Within this limit, the factor is as near as possible to 0.5, the factor of the
    other phase."""
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


def test_two_phases_with_the_same_name_get_separate_scale_factors() -> None:
    """GIVEN two backward passes of 300 and 100 ns WHEN the backward passes take 600 and 400 ns in profiled steps THEN their
    factors are 1/2 and 1/4. The factor of steps with another number of backward passes is 400 / 1000."""
    clean, profiled = [("backward", 300), ("loss", 50), ("backward", 100)], [("backward", 600), ("loss", 50), ("backward", 400)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, profiled)] * 3 + [(StepKind.PROFILED, profiled[:2])])
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    scale = {"backward": 0.4, "backward#1/2": 0.5, "backward#2/2": 0.25, "loss": 1.0}
    assert run.host_scale == pytest.approx(scale)
    assert CleanPace(trace, 0, NO_WAITS).scale.tolist() == pytest.approx([1, 1, 1] * 3 + [0.5, 1, 0.25] * 3 + [0.4, 1])


def test_consecutive_backward_passes_are_compared_with_the_single_recorded_pass() -> None:
    """GIVEN a step that computes two gradients in a row, and then trains WHEN only the profile shows ops between the gradients
    THEN these ops and the gradients have one common factor. This factor is 400 / (500 + 100 + 200), and the factor of the later
    backward pass is 100 / 400."""
    clean = [("forward", 100), ("backward", 400), ("loss", 50), ("backward", 100)]
    profiled = [("forward", 100), ("backward", 500), ("other", 100), ("backward", 200), ("loss", 50), ("backward", 400)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, profiled)] * 3)
    assert phases_per_step(trace, "backward").tolist() == [2] * 6
    trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert CleanPace(trace, 0, NO_WAITS).scale[12:18].tolist() == pytest.approx([1, 0.5, 0.5, 0.5, 1, 0.25])


def test_phases_are_compared_by_name_if_fewer_than_three_steps_were_profiled() -> None:
    clean, profiled = [("backward", 300), ("backward", 100)], [("backward", 600), ("backward", 400)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, profiled)] * 2)
    assert with_clean_pace(trace.runs[0], trace, 0).host_scale == pytest.approx({"backward": 0.4})


def test_phases_are_compared_by_name_if_their_number_differs_in_profiled_steps() -> None:
    """GIVEN a profile with one more phase "other" than the recording THEN both phases "other" have the factor 100 / (50 +
    150)."""
    clean, profiled = [("other", 100), ("forward", 100)], [("other", 50), ("forward", 100), ("other", 150)]
    trace = recorded([(StepKind.STEADY, clean)] * 3 + [(StepKind.PROFILED, profiled)] * 3)
    assert with_clean_pace(trace.runs[0], trace, 0).host_scale == pytest.approx({"other": 0.5, "forward": 1.0})


def test_steps_with_different_numbers_of_phases_get_separate_scale_factors() -> None:
    """GIVEN steps with one and with two backward passes in turn WHEN the profiler slows the two kinds of steps by different
    factors THEN each kind has its own factors. Files of an earlier version, with one factor per name, still apply to both
    kinds."""
    one, two = [("backward", 100)], [("backward", 100), ("loss", 50), ("backward", 200)]
    steps: list[Step] = [(StepKind.STEADY, one), (StepKind.STEADY, two)] * 3
    steps += [(StepKind.PROFILED, [("backward", 200)])] * 4
    steps += [(StepKind.PROFILED, [("backward", 400), ("loss", 50), ("backward", 250)])] * 3
    trace = recorded(steps)
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    scale = {"backward": 0.5, "backward#1/2": 0.25, "loss": 1.0, "loss#1/1": 1.0, "backward#2/2": 0.8}
    assert run.host_scale == pytest.approx(scale)
    assert CleanPace(trace, 0, NO_WAITS).scale[12:].tolist() == pytest.approx([0.5] * 4 + [0.25, 1.0, 0.8] * 3)
    trace.runs[0] = Run(host_scale={"backward": 0.5})
    assert CleanPace(trace, 0, NO_WAITS).scale[12:].tolist() == [0.5] * 4 + [0.5, 1.0, 0.5] * 3


@pytest.mark.parametrize(
    ("before", "ops", "later", "op_ns", "later_ns"),
    [
        (8, 2, 3, 100, 800),  # the first window has more clean steps, so an op costs 200 - 100 ns
        (4, 2, 3, 300, 400),  # the second window has more clean steps, so two ops cost 1000 - 400 ns
        (4, 2, 1, 100, 800),  # one profiled step in the second window is too few
        (4, 1, 3, 200, 400),  # both windows have the same work, so their medians, 400 and 600 ns, count
    ],
)
def test_profiled_steps_are_compared_only_with_unprofiled_steps_of_the_same_work(
    before: int, ops: int, later: int, op_ns: int, later_ns: int
) -> None:
    """GIVEN two windows of profiled steps WHEN the steps of the second window call two other ops instead of one THEN the window
    with more clean steps decides the cost of an op."""
    steps: list[Step] = [(StepKind.STEADY, [("forward", 100)])] * before + [(StepKind.PROFILED, [("forward", 200)])] * 3
    steps += [(StepKind.STEADY, [("forward", 400)])] * 3 + [(StepKind.PROFILED, [("forward", 1000)])] * later
    trace = recorded([*steps, *[(StepKind.STEADY, [("forward", 400)])] * 3])
    begins_ns = (trace.steps.start_ns[trace.steps.kind == StepKind.PROFILED] - UNIX_NS).tolist()
    add_ops(trace, [(begin_ns, 0) for begin_ns in begins_ns[:3]])
    for place in range(ops):
        add_ops(trace, [(begin_ns + place, 0) for begin_ns in begins_ns[3:]], name="aten::mm" if ops > 1 else "aten::add")
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == op_ns
    assert clean_phases(trace, before + 6)["forward"] == pytest.approx(later_ns)


def test_a_window_with_the_same_op_in_another_shape_has_other_work() -> None:
    """GIVEN clean steps of 100 ns before profiled steps of 200 ns WHEN later steps of 400 and 1000 ns call the op with another
    shape, and fewer of them are clean THEN the op costs 200 - 100 ns."""
    steps: list[Step] = [(StepKind.STEADY, [("forward", 100)])] * 8 + [(StepKind.PROFILED, [("forward", 200)])] * 3
    steps += [(StepKind.STEADY, [("forward", 400)])] * 3 + [(StepKind.PROFILED, [("forward", 1000)])] * 3
    trace = recorded([*steps, *[(StepKind.STEADY, [("forward", 400)])] * 3])
    begins_ns = (trace.steps.start_ns[trace.steps.kind == StepKind.PROFILED] - UNIX_NS).tolist()
    add_ops(trace, [(begin_ns, 0) for begin_ns in begins_ns])
    trace.host.shapes[3:] = trace.strings.add("4,2")
    cost = with_clean_pace(trace.runs[0], trace, 0).profiler_cost
    assert cost is not None and cost.op_ns == 100


def test_work_at_the_end_of_an_epoch_does_not_make_a_window_different() -> None:
    """GIVEN a second profile with a single step, which saves a checkpoint before it loads its batch WHEN the clean steps after
    this profile take 150 ns THEN their median counts, so an op costs 205 - 150 ns."""
    early, later = ((StepKind.STEADY, [("loader", 10), ("forward", ns)]) for ns in (100, 150))
    parts = [("loader", 10), ("zero_grad", 5), ("forward", 200)]
    window: list[Step] = [(StepKind.PROFILED, parts)] * 3
    trace = recorded([*[early] * 3, *window, later, (StepKind.PROFILED, [("other", 90), *parts]), *[later] * 6])
    begins_ns = (trace.steps.end_ns[trace.steps.kind == StepKind.PROFILED] - 200 - UNIX_NS).tolist()
    add_ops(trace, [(begin_ns, 0) for begin_ns in begins_ns])
    add_ops(trace, [(begins_ns[-1] - 50, 0)], name="aten::copy_")
    run = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == 55


def test_profiler_cost_compares_steps_that_have_the_same_phases() -> None:
    """GIVEN a second profile without the phase "other" WHEN the clean steps after it have this phase THEN these clean steps are
    compared with the first profile, which also has it. The cost of one op is 200 - 150 ns."""
    usual: list[Step] = [(StepKind.STEADY, [("other", 50), ("forward", 150)])] * 6
    profiled: list[Step] = [(StepKind.PROFILED, [("other", 50), ("forward", 200)])] * 3
    early: list[Step] = [(StepKind.STEADY, [("other", 50), ("forward", 100)])] * 4
    trace = recorded([*early, *profiled, early[0], (StepKind.PROFILED, [("forward", 1000)]), *usual])
    begins_ns = (trace.steps.start_ns[trace.steps.kind == StepKind.PROFILED] - UNIX_NS).tolist()
    add_ops(trace, [(begin_ns + 50, 0) for begin_ns in begins_ns])
    add_ops(trace, [(begins_ns[-1] + 60, 0)])
    run = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == 50


def test_the_profiler_cost_ignores_steps_with_an_unusual_number_of_ops() -> None:
    """GIVEN clean steps of 100 ns and profiled steps of 200 ns with one op WHEN two profiled steps have two ops and take 1000
    ns THEN the cost of an op is still 100 ns. A single slow step of 900 ns does not change the cost."""
    lasts_ns = [200, 200, 900, 1000, 1000]
    trace = recorded(
        [(StepKind.STEADY, [("forward", 100)])] * 3 + [(StepKind.PROFILED, [("forward", lasts)]) for lasts in lasts_ns]
    )
    begins_ns = (trace.steps.start_ns[3:] - UNIX_NS).tolist()
    add_ops(trace, [(begin_ns, 0) for begin_ns in begins_ns])
    add_ops(trace, [(begin_ns + 500, 0) for begin_ns in begins_ns[3:]], name="aten::mm")
    run = with_clean_pace(Run(), trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == 100 and run.host_scale == {"forward": 1.0}


def test_the_profiler_cost_is_unknown_if_all_steps_were_profiled() -> None:
    trace = recorded([(StepKind.PROFILED, [("forward", 100)])] * 2)
    assert with_clean_pace(trace.runs[0], trace, 0) == trace.runs[0]


def test_the_profiler_cost_per_op_ignores_phases_with_concurrent_threads() -> None:
    """GIVEN a forward pass of DataParallel that became 1 ms slower than its ops explain WHEN the backward pass shows a cost of
    600 ns per op THEN the cost is 600 ns. A factor of 300 / 1300 removes the rest of the slowdown."""
    ops = {"forward": 100, "backward": 200}
    trace = slowed(600, ops, {"forward": 300_000, "backward": 600_000}, longer_ns={"forward": 1_000_000})
    for step in range(8):
        add_stages(trace, step, [("replicate", 0, 1000)])
    run = with_clean_pace(trace.runs[0], trace, 0)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == pytest.approx(600, abs=1)
    assert run.host_scale == pytest.approx({"forward": 300 / 1300, "backward": 1.0}, rel=1e-3)


def test_the_profiler_cost_per_op_excludes_waits_for_the_gpu() -> None:
    """GIVEN a forward pass of 100 ops in 300 us, of which 25 us are a wait for the GPU WHEN the profiler took 600 ns per op
    THEN this cost is found.

    Without the wait, the profiled time is 335 us and the clean time is 275 us. The difference of 60 us is the cost of 100 ops,
    one launch and one synchronization.
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
    """GIVEN a cost of 600 ns per op in the backward pass WHEN the forward pass of DataParallel became only 10 us slower THEN
    the cost of its 100 ops is limited to this slowdown and its noise."""
    ops = {"forward": 100, "backward": 200}
    trace = slowed(600, ops, {"forward": 300_000, "backward": 600_000}, longer_ns={"forward": -50_000})
    for step in range(8):
        add_stages(trace, step, [("replicate", 0, 1000)])
    run = with_clean_pace(trace.runs[0], trace, 0)
    noise_ns = LEAST_NOISE * np.hypot(300_000, 310_000)
    assert run.profiler_cost is not None and run.profiler_cost.op_ns == pytest.approx((10_000 + noise_ns) / 100, abs=1)
    # The factor scales the rest of the 310 us.
    assert run.host_scale["forward"] == pytest.approx(300_000 / (310_000 - 10_000 - noise_ns), rel=1e-3)


def test_phases_without_duration_do_not_affect_the_profiler_cost() -> None:
    counts = np.zeros(len(EVENT_COSTS))
    counts[0] = 100
    known = ComparedPhase(
        ("backward",), [], clean_ns=300_000, noise_ns=3_000, profiled_ns=360_000, waits=False, has_threads=False, wait_ns=0,
        lag_ns=0, work_ns=0, is_full=False, counts=counts,
    )  # fmt: skip
    empty = replace(known, names=("zero_grad",), clean_ns=0, noise_ns=0, profiled_ns=0, counts=np.zeros(len(EVENT_COSTS)))
    all_kinds = np.ones(len(EVENT_COSTS), dtype=bool)
    assert _fitted_cost([known, empty], all_kinds) == _fitted_cost([known], all_kinds) != ProfilerCost()
    assert _fitted_cost([empty], all_kinds) == ProfilerCost()


def test_an_event_kind_that_was_not_recorded_has_no_profiler_cost() -> None:
    """GIVEN a recording that contains only ops THEN only ops have a cost. WHEN one step also contains a range THEN ranges have
    their usual cost."""
    trace = slowed(600, {"forward": 100}, {"forward": 300_000})
    assert with_clean_pace(trace.runs[0], trace, 0).profiler_cost == ProfilerCost(op_ns=600)
    trace.phases.name[-1] = trace.strings.add("h2d")
    start_ns = int(trace.steps.start_ns[-1] - trace.steps.start_ns[0])
    add_ops(trace, [(start_ns, 360_000)], HostKind.ANNOTATION, "evaluation")
    cost = with_clean_pace(trace.runs[0], trace, 0).profiler_cost
    assert cost == ProfilerCost(op_ns=600, range_ns=round(EVENT_COSTS[RANGE] * 600))
