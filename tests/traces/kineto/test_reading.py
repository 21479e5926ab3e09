"""Tests how numbers and names of a profile are read at the limits of their ranges, with values worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.kineto.reading.eras import TsUnit, exact_digits
from traces.kineto.reading.event_columns import Threads
from traces.kineto.reading.groups import Groups
from traces.kineto.reading.odd_events import joined_begin_and_end
from traces.kineto.reading.text import _concatenated, _decoded
from traces.kineto.spans.impossible import has_dependent_launch

NO_EVENTS = Groups.of([], Counter())


@pytest.mark.parametrize(
    ("base", "base_ns"),
    [(0, 0), (1, 1), (-1, 0), (True, 0), (4 * 10**18 - 1, 4 * 10**18 - 1), (4 * 10**18, 0), ("5", 0), (5.0, 0)],
)
def test_a_base_time_must_be_a_plausible_integer(base: object, base_ns: int) -> None:
    assert TsUnit.of({"baseTimeNanoseconds": base}, [], False, NO_EVENTS.spans) == TsUnit(False, base_ns, base_ns > 0)


def test_large_timestamps_are_read_as_unix_times() -> None:
    assert [TsUnit.of({}, [5, stamp], False, NO_EVENTS.spans).epochal for stamp in (10**9, 10**9 + 1)] == [False, True]
    assert TsUnit.of({}, [0], True, NO_EVENTS.spans).epochal
    bounds = [TsUnit.name(np.array([start_ns, 2 * 10**18])) for start_ns in (12 * 10**17, 12 * 10**17 + 1)]
    assert bounds == ["recording", "unix"] and TsUnit.name(np.array([], np.int64)) == "recording"


def test_timestamps_from_10_to_the_15_microseconds_are_read_digit_by_digit() -> None:
    assert exact_digits(b'{"ts": 999999999999999.123}') is None
    assert exact_digits(b'{"ts": 1000000000000000.123}') == b'{"ts": 1000000000000000123}'
    assert exact_digits(b'{"ts": 1000000000000000}') is None


@pytest.mark.parametrize(
    ("majors", "is_amd", "has_it"),
    [([9], 0, True), ([8], 0, False), ([8, 9], 0, True), ([9, 8], 0, True), ([], 0, True), ([9], 1, False)],
)
def test_gpus_support_dependent_launches_from_compute_capability_9_on(majors: list[int], is_amd: int, has_it: bool) -> None:
    assert has_dependent_launch([{"computeMajor": major} for major in majors], bool(is_amd)) == has_it


@pytest.mark.parametrize(("stamps_per_us", "duration_us"), [(1, 3000), (1000, 3)])
def test_a_begin_event_and_an_end_event_are_joined_with_a_duration_in_microseconds(
    stamps_per_us: int, duration_us: float
) -> None:
    """GIVEN an inner and an outer event of one thread WHEN another thread has only an end event THEN this end event has no
    partner."""
    thread = {"pid": 1, "tid": 2, "cat": "cpu_op"}
    events = [
        {"ph": "B", "ts": 1000, "name": "outer", **thread},
        {"ph": "B", "ts": 2000, "name": "inner", **thread},
        {"ph": "E", "ts": 5000, **thread},
        {"ph": "E", "ts": 9000, **thread},
        {"ph": "E", "ts": 9500, **thread, "tid": 3},
    ]
    found, unpaired = joined_begin_and_end(events, stamps_per_us)
    durations = {event["name"]: event["dur"] for event in found["cpu_op"]}
    assert durations == {"inner": duration_us, "outer": duration_us / 3 * 8} and unpaired == 1


@pytest.mark.parametrize("named", [True, False])
def test_two_events_that_begin_together_are_nested_correctly_in_any_order(named: bool) -> None:
    """GIVEN a call of 2 us and its op of 7 us that begin together THEN the names, or the launch id of the call, show which
    event ends first."""
    call, op = {"name": "cudaLaunchKernel", "args": {"correlation": 4}}, {"name": "aten::mm", "args": {}}
    events = [
        {"ph": "B", "ts": 10, **call},
        {"ph": "B", "ts": 10, **op},
        {"ph": "E", "ts": 12, **({"name": "cudaLaunchKernel"} if named else {})},
        {"ph": "E", "ts": 17, **({"name": "aten::mm"} if named else {})},
    ]
    found, unpaired = joined_begin_and_end(events, 1)
    assert {kind: [(event["name"], event["dur"]) for event in of] for kind, of in found.items()} == {
        "cuda_runtime": [("cudaLaunchKernel", 2.0)],
        "cpu_op": [("aten::mm", 7.0)],
    }
    assert found["cuda_runtime"][0]["args"] == {"correlation": 4} and unpaired == 0


def test_replacement_characters_in_the_file_are_not_counted_as_invalid_bytes() -> None:
    """GIVEN a text with one replacement character and two invalid bytes THEN two invalid bytes are counted."""
    problems: Counter[str] = Counter()
    assert _decoded("a\ufffdb".encode() + b"\xffc\xff", problems) == "a\ufffdb\ufffdc\ufffd"
    assert problems == {"invalid-utf8": 2}
    assert _decoded("a\ufffd".encode(), problems) == "a\ufffd" and problems == {"invalid-utf8": 2}


def test_only_json_objects_that_contain_events_count_as_separate_files() -> None:
    events, other = b'{"traceEvents": []}\n', b'{"name": 1}\n'
    assert _concatenated(events + events) == [events, events]
    assert _concatenated(events + other) == [events + other]
    assert _concatenated(other + events) == [other + events]
    assert _concatenated(events + other + events) == [events + other, events]


def groups(**held: Any) -> Groups:
    return Groups(**{"complete": {}, "memory": [], "metadata": [], "categories": set(), "stamps": [], "counters": [], **held})


def test_events_of_programs_other_than_pytorch_are_recognized() -> None:
    assert not groups(categories={"cpu_op", "mine"}, memory=[]).is_foreign(bare=True)
    assert groups(categories={"mine"}).is_foreign(bare=True) and groups(categories={"mine"}).is_foreign(bare=False)
    assert not groups(categories={"mine"}, memory=[{}]).is_foreign(bare=True)
    assert groups().is_foreign(bare=True) and not groups().is_foreign(bare=False)
    assert not groups(memory=[{}]).is_foreign(bare=True) and not groups(metadata=[{}]).is_foreign(bare=True)


def test_counter_statistics_ignore_values_that_are_not_numbers() -> None:
    def sample(value: object) -> dict[str, Any]:
        return {"pid": "GPU 0 Counters", "args": {"smsp__inst": value}}

    found = groups(counters=[sample(1), sample(4), sample("7"), sample(True), {"pid": "GPU 0 Counters"}])
    assert found.counter_figures() == {"GPU 0": {"smsp__inst": {"samples": 2, "mean": 2.5, "max": 4}}}


def test_thread_names_that_lack_a_process_or_thread_id_are_ignored() -> None:
    def named(pid: object, tid: object) -> dict[str, Any]:
        return {"name": "thread_name", "pid": pid, "tid": tid, "args": {"name": " main "}}

    assert groups(metadata=[named(1, 2), named(None, 3), named(4, None), named("5", 6)]).thread_names() == {
        (1, 2): "main",
        ("5", 6): "main",
    }


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=12))
def test_threads_have_the_same_numbers_in_arrays_and_in_lists(events: list[tuple[int, int]]) -> None:
    pids, tids = [pid for pid, _ in events], [tid for _, tid in events]
    of_arrays, of_lists = Threads(), Threads()
    rows = of_arrays.rows(np.array(pids, np.int64), np.array(tids, np.int64))
    assert rows.tolist() == of_lists.rows(pids, tids).tolist()
    assert of_arrays.keys == of_lists.keys == list(dict.fromkeys(events))
