"""Tests how the cost of the profiler is removed from the host times of profiled steps. Times are in ns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.traces.profiled_traces import NO_WAITS, UNIX_NS, Step, add_ops, add_stages, clean_phases, recorded
from traces.combining.clean_pace import CleanPace, _stages
from traces.combining.profiler_cost import with_clean_pace
from traces.model.intervals import Intervals
from traces.model.run import ProfilerCost, ProfilerUse, Run
from traces.model.trace import StepKind, Thread


def test_the_profiler_cost_of_an_op_is_subtracted_before_and_after_the_op() -> None:
    """GIVEN a phase of 10 us with three ops WHEN the profiler costs 500 ns per op THEN each op begins earlier by the cost so
    far. The gap before the second op cannot shrink below 100 ns. The remaining 400 ns of the second op's cost are subtracted
    from its duration of 800 ns."""
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


def test_an_interrupted_step_with_an_additional_op_gets_the_times_of_other_steps() -> None:
    """GIVEN phases of 2000 ns with an op after 500 ns WHEN the fourth phase is interrupted for 10 000 ns before this op, and
    contains another op of 400 ns THEN the fourth phase takes 2400 ns."""
    trace = recorded([(StepKind.PROFILED, [("forward", took_ns)]) for took_ns in (2000, 2000, 2000, 12_400)])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    add_ops(trace, [(begins[step] + after_ns, 500) for step, after_ns in enumerate((500, 500, 500, 10_500))])
    add_ops(trace, [(begins[3] + 11_000, 400)], name="aten::mm")
    trace.runs[0] = Run(profiler_cost=ProfilerCost(), host_scale={"forward": 0.5})
    assert [clean_phases(trace, step)["forward"] for step in range(4)] == pytest.approx([1000, 1000, 1000, 1200])


def test_a_gap_lengthened_by_an_interruption_gets_its_length_from_other_steps() -> None:
    """GIVEN phases of 1000 ns with an op after 200 ns WHEN the third phase is interrupted for 9000 ns before its op THEN all
    ops begin after 200 ns."""
    trace = recorded([(StepKind.PROFILED, [("forward", took_ns)]) for took_ns in (1000, 1000, 10_000)])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    add_ops(trace, [(begins[step] + after_ns, 100) for step, after_ns in enumerate((200, 200, 9200))])
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    pace, phases = CleanPace(trace, 0, NO_WAITS), trace.phases
    begin_ns, op_ns, end_ns = (pace.own_ns(times_ns) for times_ns in (phases.start_ns, trace.host.start_ns, phases.end_ns))
    assert (op_ns - begin_ns).tolist() == [200] * 3 and (end_ns - begin_ns).tolist() == [1000] * 3


def test_if_two_threads_call_ops_at_the_same_time_the_gaps_between_ops_keep_their_lengths() -> None:
    """GIVEN three phases of 1000 ns in which two threads call two ops each WHEN the other thread is faster in the third phase
    THEN all ops begin at their recorded times."""
    trace = recorded([(StepKind.PROFILED, [("forward", 1000)])] * 3)
    trace.threads.append(Thread(0, 2, "python", "main"))
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    for after_ns in (100, 500):
        add_ops(trace, [(begin + after_ns, 50) for begin in begins])
    for moments_ns in ((300, 300, 160), (700, 700, 560)):
        add_ops(trace, [(begins[step] + after_ns, 50) for step, after_ns in enumerate(moments_ns)], name="aten::mm")
        trace.host.thread[-3:] = 1
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    pace = CleanPace(trace, 0, NO_WAITS)
    assert pace.own_ns(trace.host.start_ns).tolist() == trace.host.start_ns.tolist()


@pytest.mark.parametrize(
    ("profiled", "clean", "found"),
    [
        ([1, 1, 1, 11], [1, 1, 1, 11] * 3, [1, 1, 1, 11]),  # one clean step in four is equally long
        ([1, 11, 1, 11], [1, 11] * 6, [1, 11, 1, 11]),
        ([11, 1, 11, 11], [11, 1, 11, 11] * 3, [11, 1, 11, 11]),
        ([1, 1, 1, 11], [1, 1, 1, 6] * 3, [1, 1, 1, 6]),  # the long clean steps are only six times as long
        ([1, 1, 1, 6], [1, 1, 1, 11] * 3, [1, 1, 1, 6]),  # no phase gets longer
        ([1, 1, 1, 1.9], [1, 1, 1, 1.9] * 3, [1, 1, 1, 1]),  # less than twice as long
        ([11, 1, 11, 11, 1], [11, 1, 11, 11, 1] * 3, [11, 1, 11, 11, 1]),
        ([1, 1, 1, 11], [1] * 11 + [11], [1, 1, 1, 1]),  # one clean step in twelve is an interruption, too
        ([1, 11, 1, 11], [1] * 12, [1, 1, 1, 1]),
        ([1, 1, 1, 11], [1, 11], [1, 1, 1, 1]),  # two clean steps do not show how often a step is long
    ],
)
def test_a_long_profiled_phase_keeps_its_length_if_as_many_clean_phases_are_long(
    profiled: list[float], clean: list[float], found: list[float]
) -> None:
    """GIVEN phases of 1000 or 11 000 ns with an op after 200 ns WHEN the long phases wait for 10 000 ns before this op THEN a
    profiled phase keeps its wait if clean phases of the same rank have such a wait. Steps after the profile do not count."""
    kinds = ((StepKind.STEADY, clean), (StepKind.PROFILED, profiled), (StepKind.AFTER_PROFILE, [11] * 12))
    trace = recorded([(kind, [("forward", int(1000 * us))]) for kind, of_kind in kinds for us in of_kind])
    ends_ns = (trace.steps.end_ns[len(clean) : -12] - UNIX_NS).tolist()
    add_ops(trace, [(end_ns - 800, 100) for end_ns in ends_ns])
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    steps = range(len(clean), len(clean) + len(profiled))
    assert [round(clean_phases(trace, step)["forward"]) for step in steps] == [1000 * us for us in found]


def test_an_interrupted_phase_is_shortened_although_another_thread_calls_ops_in_this_phase_only() -> None:
    """GIVEN phases of 1000 ns with ops after 100, 300 and 500 ns WHEN the fourth phase is interrupted for 10 000 ns before its
    last op, and another thread calls two ops THEN the fourth phase takes 1000 ns."""
    trace = recorded([(StepKind.PROFILED, [("forward", took_ns)]) for took_ns in (1000, 1000, 1000, 11_000)])
    trace.threads.append(Thread(0, 2, "prefetch", "main"))
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    add_ops(trace, [(begin + after_ns, 50) for begin in begins[:3] for after_ns in (100, 300, 500)])
    add_ops(trace, [(begins[3] + after_ns, 50) for after_ns in (100, 300, 10_500)])
    add_ops(trace, [(begins[3] + after_ns, 10) for after_ns in (200, 400)], name="aten::copy_")
    trace.host.thread[-2:] = 1
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    assert round(clean_phases(trace, 3)["forward"]) == 1000


def test_profiler_cost_is_subtracted_from_median_gaps() -> None:
    """GIVEN three phases with the same three ops, but gaps of different lengths WHEN the profiler costs 2000 ns per op THEN the
    gaps of all phases are the median gaps without this cost.

    The median gaps are 4000, 2000, 2000 and 2000 ns. Scaled to the 16000 ns of a phase, the gaps are 6400, 3200, 3200 and 3200
    ns. Without the costs of three ops, the gaps are 4400, 1200, 1200 and 3200 ns.
    """
    trace = recorded([(StepKind.PROFILED, [("forward", 16_000)])] * 3)
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    ops_ns = ((4000, 12_000, 14_000), (4000, 6000, 14_000), (4000, 6000, 8000))
    add_ops(trace, [(begin + after_ns, 0) for begin, of_step in zip(begins, ops_ns, strict=True) for after_ns in of_step])
    trace.runs[0] = Run(profiler_cost=ProfilerCost(op_ns=2000, plain_op_ns=2000))
    pace, phases = CleanPace(trace, 0, NO_WAITS), trace.phases
    begin_ns, op_ns, end_ns = (pace.own_ns(times_ns) for times_ns in (phases.start_ns, trace.host.start_ns, phases.end_ns))
    assert (op_ns.reshape(3, 3) - begin_ns[:, None]).tolist() == [[4400, 5600, 6800]] * 3
    assert (end_ns - begin_ns).tolist() == [10_000] * 3


@pytest.mark.parametrize(("factor", "found"), [(3, [300, 240, 300, 1200]), (0.5, [50, 40, 50, 500])])
def test_work_that_the_profile_lacks_adds_the_same_time_to_a_longer_phase(factor: float, found: list[int]) -> None:
    """GIVEN phases of 100, 80, 100 and 1000 ns with different ops WHEN their factor is 3 THEN the median phase becomes 200 ns
    longer, and so does the longest phase. A factor below 1 applies to the whole phase."""
    trace = recorded([(StepKind.PROFILED, [("other", ns)]) for ns in (100, 80, 100, 1000)])
    for step, begin_ns in enumerate((trace.steps.start_ns - UNIX_NS).tolist()):
        add_ops(trace, [(begin_ns, 5), (begin_ns + 20, 5)], name=f"aten::op_{step}")
    trace.runs[0] = Run(profiler_cost=ProfilerCost(), host_scale={"other": factor})
    assert [round(clean_phases(trace, step)["other"]) for step in range(4)] == found


def test_profiled_steps_get_the_waits_for_data_of_unprofiled_steps() -> None:
    """GIVEN clean steps that wait 100, 300 and 500 ns for data WHEN two profiled steps wait 20 and 10 ns THEN their waits
    become 400 and 200 ns, the quartiles of the clean waits. The waits do not change the factors of other phases. Steps after
    the profile do not count."""
    steps: list[Step] = [(StepKind.STEADY, [("loader", ns), ("forward", 100)]) for ns in (300, 100, 500)]
    steps += [(StepKind.PROFILED, [("loader", ns), ("forward", 200)]) for ns in (20, 10)]
    steps += [(StepKind.AFTER_PROFILE, [("loader", 9000), ("forward", 100)])] * 3
    trace = recorded(steps)
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx({"forward": 0.5})
    assert clean_phases(trace, 3) == pytest.approx({"loader": 400, "forward": 100})
    assert clean_phases(trace, 4) == pytest.approx({"loader": 200, "forward": 100})


def test_evaluation_steps_get_separate_waits_and_factors() -> None:
    """GIVEN clean training steps that wait 300 ns and clean evaluation steps that wait 7 ns WHEN steps of both kinds are
    profiled THEN each kind gets its own clean times."""
    training: Step = (StepKind.STEADY, [("loader", 300), ("forward", 100)])
    evaluation: Step = (StepKind.EVALUATION, [("loader", 7), ("forward", 30)])
    profiled: Step = (StepKind.PROFILED, [("loader", 20), ("forward", 200)])
    evaluated: Step = (StepKind.EVALUATION, [("loader", 10), ("forward", 120)])
    trace = recorded([*[training] * 3, *[evaluation] * 3, training, *[profiled] * 3, *[evaluated] * 3])
    trace.runs[0] = replace(trace.runs[0], profiler=ProfilerUse(steps=tuple(range(7, 13))))
    add_ops(trace, [(begin_ns, 0) for begin_ns in (trace.steps.start_ns[10:] - UNIX_NS).tolist()])
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    factors = {"forward": 0.5, "evaluation forward": 0.25, "evaluation forward#1/1": 0.25}
    assert run.host_scale == pytest.approx(factors)
    assert clean_phases(trace, 9) == pytest.approx({"loader": 300, "forward": 100})
    assert clean_phases(trace, 12) == pytest.approx({"loader": 7, "forward": 30})


def test_waits_in_unprofiled_steps_include_ops_that_only_the_profiler_recorded() -> None:
    """GIVEN a wait of 100 ns in clean steps WHEN the profile shows ops of 40 ns at half the pace before the wait THEN 80 ns
    remain as the wait. The phase "other" is compared without these ops."""
    clean, profiled = [("other", 10), ("h2d", 50)], [("other", 20), ("h2d", 50), ("other", 40)]
    steps: list[Step] = [(StepKind.STEADY, [*clean, ("loader", 100), ("forward", 300)])] * 2
    trace = recorded([*steps, (StepKind.PROFILED, [*profiled, ("loader", 20), ("forward", 600)])])
    run = trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert run.host_scale == pytest.approx({"other": 0.5, "h2d": 1, "forward": 0.5})
    pace, phases = CleanPace(trace, 0, NO_WAITS), trace.phases
    assert (phases.duration_ns * pace.scale)[-5:].tolist() == pytest.approx([10, 50, 20, 80, 300])


def test_phases_before_the_wait_for_a_batch_are_left_out_unless_most_clean_steps_have_them() -> None:
    """GIVEN clean steps with a copy of 50 ns and a forward pass of 300 ns WHEN the profiled step has another phase "forward"
    before its wait, as only one of four clean steps has THEN copy and forward pass are compared with 50 and 600 ns. It does not
    matter that this clean step waits for two batches, and has such a phase before each wait."""
    later = [("loader", 100), ("h2d", 50), ("forward", 300)]
    steps: list[Step] = [(StepKind.STEADY, [("other", 10), *later])] * 3
    steps.append((StepKind.STEADY, [("other", 10), ("forward", 900), ("loader", 100), ("forward", 900), *later]))
    profiled = [("other", 20), ("forward", 40), ("loader", 20), ("h2d", 50), ("forward", 600)]
    trace = recorded([*steps, (StepKind.PROFILED, profiled)])
    run = with_clean_pace(trace.runs[0], trace, 0, ["forward"])
    assert run.host_scale["h2d"] == run.host_scale["forward"] == pytest.approx(350 / 650)


def test_evaluation_steps_do_not_use_factors_of_training_steps_above_1() -> None:
    evaluation: Step = (StepKind.EVALUATION, [("h2d", 10), ("forward", 100)])
    trace = recorded([(StepKind.PROFILED, [("h2d", 10), ("forward", 100), ("backward", 10)]), evaluation])
    trace.runs[0] = Run(host_scale={"h2d": 90, "forward": 0.5, "backward": 1})
    assert clean_phases(trace, 0) == {"h2d": 900, "forward": 50, "backward": 10}
    assert clean_phases(trace, 1) == {"h2d": 10, "forward": 50}


def test_batch_waits_and_other_phases_add_up_to_the_median_step() -> None:
    """GIVEN clean steps of 200, 400 and 400 ns WHEN all phases except the wait take 100 ns THEN a profiled step waits 300 ns,
    so its times add up to the median step."""
    clean = [(100, 100), (100, 300), (300, 100)]
    steps: list[Step] = [(StepKind.STEADY, [("loader", wait), ("forward", rest)]) for wait, rest in clean]
    trace = recorded([*steps, (StepKind.PROFILED, [("loader", 50), ("forward", 500)])])
    trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert clean_phases(trace, 3) == pytest.approx({"loader": 300, "forward": 100})


@pytest.mark.parametrize(("long_ns", "own_ns"), [(50_000, 130), (601, 130), (600, 600)])
@pytest.mark.parametrize("kind", [StepKind.PROFILED, StepKind.EVALUATION])
def test_an_outlier_among_profiled_phases_gets_a_typical_time(kind: StepKind, long_ns: int, own_ns: int) -> None:
    """GIVEN clean phases of 100 to 200 ns and profiled phases of 110, 150 and 130 ns with different ops WHEN another profiled
    phase takes more than 600 ns THEN this phase gets the median time, 130 ns."""
    clean = StepKind.STEADY if kind is StepKind.PROFILED else kind
    times_ns = [110, long_ns, 150, 130]
    trace = recorded([(clean, [("loss", ns)]) for ns in (100, 100, 200)] + [(kind, [("loss", ns)]) for ns in times_ns])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    for step in range(4):
        add_ops(trace, [(begins[3 + step] + 10 * op, 5) for op in range(3)], name=f"aten::op_{step}")
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    assert [round(clean_phases(trace, step)["loss"]) for step in range(3, 7)] == [110, own_ns, 150, 130]


@pytest.mark.parametrize(
    ("clean", "profiled"),
    [
        ([1, 1, 1], [100, 110, 120]),  # the recorder saw only the end of the clean phases
        ([100, 100], [100, 5000, 110]),  # two clean phases are too few to show how much phases vary
        ([100, 5000, 100], [100, 5000, 110]),  # a clean step is equally long
    ],
)
def test_long_profiled_phases_keep_their_times_if_unprofiled_phases_are_equally_long(
    clean: list[int], profiled: list[int]
) -> None:
    steps: list[Step] = [(StepKind.STEADY, [("loss", ns)]) for ns in clean]
    trace = recorded([*steps, *((StepKind.PROFILED, [("loss", ns)]) for ns in profiled)])
    begins = (trace.steps.start_ns - UNIX_NS).tolist()
    for step, ops in enumerate((1, 2, 10)):
        add_ops(trace, [(begins[len(clean) + step] + 2 * op, 1) for op in range(ops)], name=f"aten::op_{step}")
    trace.runs[0] = Run(profiler_cost=ProfilerCost())
    assert [round(clean_phases(trace, len(clean) + step)["loss"]) for step in range(3)] == profiled


@pytest.mark.parametrize(("profiled", "forward", "loss"), [(10_000, 1000, 100), (10_100, 1000 * 11 / 111, 10_100 * 11 / 111)])
def test_a_phase_is_compared_separately_if_at_least_a_hundredth_of_it_was_recorded(
    profiled: int, forward: float, loss: float
) -> None:
    """GIVEN clean steps with a loss phase of 100 ns WHEN the loss of a profiled step takes more than 10 000 ns THEN loss and
    forward pass are scaled together."""
    kinds = ((StepKind.STEADY, 100), (StepKind.PROFILED, profiled)) * 2
    trace = recorded([(kind, [("forward", 1000), ("loss", ns)]) for kind, ns in kinds])
    trace.runs[0] = with_clean_pace(trace.runs[0], trace, 0)
    assert clean_phases(trace, 3) == pytest.approx({"forward": forward, "loss": loss})


def test_phases_of_old_recordings_are_scaled_by_the_stored_factors() -> None:
    trace = recorded([(StepKind.STEADY, [("forward", 100)]), (StepKind.PROFILED, [("forward", 200), ("loss", 50)])])
    trace.runs[0] = Run(host_scale={"forward": 0.5, "loss": float("nan")})
    assert clean_phases(trace, 1) == {"forward": 100, "loss": 50}


def test_stages_of_profiled_steps_get_the_relative_times_of_unprofiled_steps() -> None:
    """GIVEN clean steps of 1000 ns with a scatter and two replicas WHEN a profiled step takes 2000 ns THEN its stages begin and
    end at the same times as in clean steps. Scatter runs from 100 to 200 ns, and the replicas run from 500 to 900 ns. The order
    of the replicas does not matter."""
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


def test_a_phase_is_not_divided_by_stages_that_overlap() -> None:
    """GIVEN two stages that follow each other WHEN a third stage overlaps the second, and a fourth ends after the phase THEN
    only the first two stages divide the phase."""
    trace = recorded([(StepKind.STEADY, [("forward", 1000)])])
    add_stages(trace, 0, [("scatter", 0, 200), ("replicate", 200, 500), ("gather", 499, 900), ("late", 500, 1001)])
    names, moments_ns = _stages(trace, 0)
    assert [trace.strings[name] for name in names] == ["forward", "scatter", "replicate"]
    assert (moments_ns - UNIX_NS).tolist() == [0, 0, 200, 200, 500, 1000]
    add_stages(trace, 0, [("last", 500, 1000)])
    assert len(_stages(trace, 0)[0]) == 4
