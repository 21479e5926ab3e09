"""Tests the import of ranks with different clocks, and of ranks from different runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.traces.handmade import training
from tests.traces.kineto.test_eras import T0, Event, call, kernel, op
from traces.analyses.stragglers import stragglers
from traces.combining.rank_clocks import on_one_clock
from traces.kineto import read_kineto
from traces.model.trace import Trace, TraceImportError

# the times at which the all-reduces of a rank end, in microseconds
ENDS_US = (1_000, 2_500, 4_100)
SECOND_US = 1_000_000


def all_reduces(ends_us: tuple[int, ...], lasting_us: int, **args: object) -> list[Event]:
    events: list[Event] = []
    for number, end_us in enumerate(ends_us, 1):
        begin_us = end_us - lasting_us
        events += [
            op("nccl:all_reduce", begin_us - 20, 10, cat="user_annotation"),
            op("record_param_comms", begin_us - 22, 14, Collective_name="allreduce", **args, Seq=number),
            call(number, begin_us - 15),
            kernel(number, begin_us, lasting_us) | {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"},
        ]
    return events


def imported(folder: Path, *ranks: list[Event], numbers: tuple[int, int] = (1, 1)) -> Trace:
    for rank, events in enumerate(ranks):
        steps = [op(f"ProfilerStep#{numbers[rank]}", min(e["ts"] for e in events) - T0 - 10, 10_000, cat="user_annotation")]
        for event in events:
            event["args"] = {key.replace("_", " "): value for key, value in event["args"].items()}
        document = {"traceEvents": [*steps, *events], "distributedInfo": {"rank": rank, "world_size": len(ranks)}}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return read_kineto(folder)


def later(ends_us: tuple[int, ...], us: int) -> tuple[int, ...]:
    return tuple(end + us for end in ends_us)


def test_ranks_on_machines_with_different_clocks_get_one_clock(tmp_path: Path) -> None:
    """GIVEN a second rank whose clock is 3 ms ahead THEN the collectives of both ranks end together after the import. Rank 1
    waits 300 us longer in each of three all-reduces, so rank 0 is late by 900 us."""
    trace = imported(tmp_path, all_reduces(ENDS_US, 100), all_reduces(later(ENDS_US, 3_000), 400))
    ends_ns = trace.collectives.end_ns.reshape(2, 3)
    assert (ends_ns[0] == ends_ns[1]).all() and ends_ns[0, 0] == (T0 + 1_000) * 1_000
    assert trace.problems == {"rank-clocks": 1}
    assert [(of.rank, of.late_ns) for of in stragglers(trace)] == [(0, 3 * 300_000), (1, 0)]


@pytest.mark.parametrize(("second", "moved"), [(1, True), (2, False)])
def test_clocks_may_differ_by_a_whole_step_if_the_step_numbers_agree(
    tmp_path: Path, second: int, moved: bool
) -> None:
    """GIVEN two ranks with steps of 10 ms WHEN the all-reduces of the second rank end 12 ms later THEN the clocks differ only
    if both ranks recorded the same step numbers."""
    ranks = [all_reduces(ends_us, 100) for ends_us in (ENDS_US, later(ENDS_US, 12_000))]
    for event in (*ranks[0], *ranks[1]):
        event["args"].pop("Seq", None)
    trace = imported(tmp_path, *ranks, numbers=(1, second))
    ends_ns = trace.collectives.end_ns.reshape(2, 3)
    assert (ends_ns[1] - ends_ns[0]).tolist() == [0 if moved else 12_000_000] * 3
    assert trace.problems == ({"rank-clocks": 1} if moved else {"ranks-apart": 1})


def test_collectives_that_end_together_keep_their_times(tmp_path: Path) -> None:
    trace = imported(tmp_path, all_reduces(ENDS_US, 100), all_reduces(later(ENDS_US, 50), 100))
    assert trace.collectives.end_ns[3] - trace.collectives.end_ns[0] == 50_000 and not trace.problems


def test_ranks_whose_collectives_end_at_unrelated_times_are_from_different_runs(tmp_path: Path) -> None:
    """GIVEN two runs that started at the same time WHEN their steps have different lengths THEN the import is rejected."""
    with pytest.raises(TraceImportError, match=r"rank0\.json and rank1.json are from different runs: the collectives"):
        imported(tmp_path, all_reduces(ENDS_US, 100), all_reduces((1_000, 6_500, 18_000), 100))


def test_ranks_that_recorded_different_steps_may_be_from_one_run(tmp_path: Path) -> None:
    """GIVEN collectives without sequence numbers WHEN one rank recorded step 1 and the other rank recorded step 2 THEN the
    collectives may end at unrelated times, although both ranks are from the same run."""
    ranks = [all_reduces(ENDS_US, 100), all_reduces((1_500, 7_000, 19_000), 100)]
    for event in (*ranks[0], *ranks[1]):
        event["args"].pop("Seq", None)
    assert not imported(tmp_path, *ranks, numbers=(1, 2)).problems
    with pytest.raises(TraceImportError, match="are from different runs: the collectives"):
        imported(tmp_path, *ranks)


def test_an_all_to_all_may_end_at_different_times_on_different_ranks(tmp_path: Path) -> None:
    """GIVEN three all-to-alls that end at different times on two ranks, because the parts have different sizes THEN the import
    reports no problem."""
    ranks = [all_reduces(ENDS_US, 100), all_reduces((1_000, 6_500, 13_100), 100)]
    for event in (*ranks[0], *ranks[1]):
        event["name"] = event["name"].replace("all_reduce", "all_to_all").replace("AllReduce_Sum_f32_RING_LL", "SendRecv")
        if "Collective_name" in event["args"]:
            event["args"]["Collective_name"] = "all_to_all"
    trace = imported(tmp_path, *ranks)
    assert {trace.strings[name] for name in trace.collectives.name} == {"all_to_all"} and not trace.problems


@pytest.mark.parametrize("seconds", [100, 3600])
def test_ranks_that_were_recorded_at_different_times_are_from_different_runs(tmp_path: Path, seconds: int) -> None:
    """GIVEN two runs of the same regular program WHEN the second run was recorded at least 100 s after the first THEN the
    import is rejected."""
    says = rf"rank0.json and rank1.json are from different runs: {seconds - 1:,} s passed between"
    with pytest.raises(TraceImportError, match=says):
        imported(tmp_path, all_reduces(ENDS_US, 100), all_reduces(later(ENDS_US, seconds * SECOND_US), 100))


def test_a_note_names_ranks_that_were_recorded_one_after_the_other(tmp_path: Path) -> None:
    """GIVEN two ranks without collectives WHEN the two ranks were recorded 5 s apart THEN the import notes that the ranks may
    be from different runs."""
    trace = imported(tmp_path, [op("aten::add", 0, 5)], [op("aten::add", 5 * SECOND_US, 5)])
    assert trace.problems == {"ranks-apart": 1}


@pytest.mark.parametrize(("late_us", "moved"), [(700, True), (800, False)])
def test_clocks_of_unnumbered_steps_differ_by_less_than_half_a_step(tmp_path: Path, late_us: int, moved: bool) -> None:
    """GIVEN two ranks without step numbers, whose median step takes 1,500 us WHEN the all-reduces of the second rank end later
    THEN the import shifts its times only if they end less than 750 us later."""
    for rank, ends_us in enumerate((ENDS_US, later(ENDS_US, late_us))):
        events = all_reduces(ends_us, 100)
        for event in events:
            event["args"].pop("Seq", None)
        document = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    trace = read_kineto(tmp_path)
    ends_ns = trace.collectives.end_ns.reshape(2, 3)
    assert float(np.median(trace.steps.duration_ns)) == 1_500_000
    assert (ends_ns[1] - ends_ns[0]).tolist() == [0 if moved else late_us * 1_000] * 3


def test_a_rank_is_shifted_only_if_its_clock_differs_by_more_than_100_us() -> None:
    trace = training()
    for ahead_ns, is_shifted in ((0, False), (100_000, False), (-100_000, False), (100_001, True), (-100_001, True)):
        (found,) = on_one_clock([trace], [ahead_ns])
        assert (found is not trace) is is_shifted
        assert (found.steps.start_ns - trace.steps.start_ns == (-ahead_ns if is_shifted else 0)).all()
