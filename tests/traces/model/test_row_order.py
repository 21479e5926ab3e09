"""Tests the order of rows in a trace, and that references between rows stay correct when rows are sorted or removed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.sound_traces import differences, traces
from traces.model.invariants import REFERENCES, column_at, fault
from traces.model.row_order import distinct, grouped, in_order, with_rows
from traces.model.trace import NONE, TABLES, DeviceSpans, HostKind, HostSpans, MemoryEvents, Trace

spans = st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20))


@given(
    st.lists(spans, max_size=20),
    st.lists(st.tuples(spans, st.integers(-1, 30)), max_size=20),
    st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 9))),
)
def test_after_sorting_references_still_point_to_the_same_events(
    hosts: list[tuple[int, int, int]], devices: list[tuple[tuple[int, int, int], int]], requests: list[tuple[int, int]]
) -> None:
    launches = [launch if launch < len(hosts) else NONE for _, launch in devices]
    trace = Trace(
        host=HostSpans.of(
            thread=[h[0] for h in hosts],
            start_ns=[h[1] for h in hosts],
            duration_ns=[h[2] for h in hosts],
            name=range(len(hosts)),
            parent=[i - 1 for i in range(len(hosts))],
        ),
        device=DeviceSpans.of(
            device=[d[0] for d, _ in devices],
            stream=[d[2] for d, _ in devices],
            start_ns=[d[1] for d, _ in devices],
            name=range(len(devices)),
            launch=launches,
        ),
        memory=MemoryEvents.of(device=[r[0] for r in requests], time_ns=[r[1] for r in requests]),
    )
    ordered = in_order(trace)
    host, device = ordered.host, ordered.device
    starts = np.stack([host.thread, host.start_ns], axis=1).tolist()
    assert starts == sorted(starts)
    lasting = host.take(host.duration_ns > 0)
    keys = np.stack([lasting.thread, lasting.start_ns, -lasting.duration_ns], axis=1).tolist()
    assert keys == sorted(keys)
    tracks = list(zip(device.device, device.stream, device.start_ns, strict=True))
    assert tracks == sorted(tracks)
    memory = zip(ordered.memory.device.tolist(), ordered.memory.time_ns.tolist(), strict=True)
    assert list(memory) == sorted(requests)
    for name, parent in zip(host.name, host.parent, strict=True):
        assert (NONE if parent == NONE else int(host.name[parent])) == int(name) - 1
    for name, launch in zip(device.name, device.launch, strict=True):
        assert (NONE if launch == NONE else int(host.name[launch])) == launches[int(name)]


@given(trace=traces(), seed=st.integers(0, 2**32 - 1))
def test_sorting_shuffled_rows_restores_order_and_references(trace: Trace, seed: int) -> None:
    random = np.random.default_rng(seed)
    ordered = in_order(trace)
    assert fault(ordered) is None and differences(in_order(ordered), ordered) == []

    # The mark of a row is its original position.
    marks = {name: np.arange(len(getattr(trace, name))) for name in TABLES}
    orders = {name: random.permutation(rows) for name, rows in marks.items()}
    shuffled = with_rows(trace, orders)
    for where, target in REFERENCES.items():
        table = where.partition(".")[0]
        before, after = column_at(trace, where)[orders[table]], column_at(shuffled, where)
        if target in TABLES:
            assert (np.append(orders[target], NONE)[after] == before).all(), where
        else:
            assert (after == before).all(), where

    again = in_order(shuffled)
    for keys in (("steps", "start_ns"), ("parts", "start_ns")):
        assert (np.diff(getattr(getattr(again, keys[0]), keys[1]).astype(float)) >= 0).all()
    devices_and_times = list(zip(again.memory.device, again.memory.time_ns, strict=True))
    assert devices_and_times == sorted(devices_and_times)
    for name in ("batches", "collectives"):
        ranks_and_starts = list(zip(getattr(again, name).rank, getattr(again, name).start_ns, strict=True))
        assert ranks_and_starts == sorted(ranks_and_starts)
    for phase, step in enumerate(again.phases.step[1:], start=1):
        assert (again.phases.step[phase - 1], again.phases.start_ns[phase - 1]) <= (step, again.phases.start_ns[phase])


def test_references_to_removed_rows_become_none() -> None:
    trace = Trace(host=HostSpans.of(parent=[NONE, 0, 1]), device=DeviceSpans.of(launch=[2, 1, 0, NONE]))
    left = with_rows(trace, {"host": np.array([2, 1])})
    assert left.host.parent.tolist() == [1, NONE] and left.device.launch.tolist() == [0, 1, NONE, NONE]


def _ordered(*rows: tuple[int, int, int]) -> list[int]:
    """Return the new order of rows of one thread. A row is given as (start, duration, parent).

    A row that is the parent of other rows is a range of the profiler.
    """
    start_ns, duration_ns, parent = zip(*rows, strict=True)
    kind = [HostKind.ANNOTATION if row in parent else HostKind.OP for row in range(len(rows))]
    host = HostSpans.of(name=range(len(rows)), kind=kind, start_ns=start_ns, duration_ns=duration_ns, parent=parent)
    return [int(name) for name in in_order(Trace(host=host)).host.name]


def test_calls_that_start_together_keep_their_order_unless_they_are_nested() -> None:
    assert _ordered((5, 0, NONE), (5, 9, NONE)) == [0, 1]  # a call of zero duration, and then the next call
    assert _ordered((5, 9, NONE), (5, 0, NONE)) == [0, 1]
    assert _ordered((5, 0, 1), (5, 9, NONE)) == [1, 0]  # an enclosed call comes after the call that contains it
    # A recorded range follows the calls inside it. Here, range 3 contains op 1 only: op 0, range 3, op 1, op 2.
    assert _ordered((5, 0, NONE), (5, 7, 3), (12, 1, NONE), (5, 7, NONE)) == [0, 3, 1, 2]
    assert _ordered((5, 7, 3), (12, 0, NONE), (12, 4, NONE), (5, 7, NONE)) == [3, 0, 1, 2]


def test_at_equal_times_a_runtime_call_precedes_an_op_of_zero_duration() -> None:
    """An export and its import give the same order, because the import cannot tell whether the call encloses the op."""
    host = HostSpans.of(name=range(2), kind=[HostKind.OP, HostKind.RUNTIME], start_ns=[5, 5], duration_ns=[0, 9])
    assert in_order(Trace(host=host)).host.name.tolist() == [1, 0]


def test_rows_are_grouped_by_columns_that_may_be_unsorted() -> None:
    device, stream = np.array([0, 0, 0, 1, 1]), np.array([7, 7, 9, 7, 8])
    assert [rows.tolist() for rows in grouped(device, stream)] == [[0, 1], [2], [3], [4]]
    assert [rows.tolist() for rows in grouped(device[::-1], stream[::-1])] == [[3, 4], [2], [1], [0]]
    assert [rows.tolist() for rows in grouped(device, np.array([9, 7, 9, 7, 7]))] == [[1], [0, 2], [3, 4]]


@given(st.lists(st.integers(-1, 60), max_size=30), st.sampled_from(["i8", "i4"]))
def test_distinct_values_equal_those_of_numpy(values: list[int], dtype: str) -> None:
    column = np.array(values, dtype)
    for found, expected in zip(distinct(column), np.unique(column, return_index=True, return_inverse=True), strict=True):
        assert found.tolist() == expected.tolist()
