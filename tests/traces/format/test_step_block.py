"""Tests that blocks of steps and plain columns, which a recorder writes twice a second, are read back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.format.column_encoding import PLAIN_NUMBERS, pack_rows, unpack_table
from traces.format.frames import Damaged
from traces.format.growing_file import StepCount
from traces.format.items import block_item, row_items
from traces.format.step_block import StepBlock, unpack_block
from traces.format.trace_file import TraceStream, load
from traces.model.trace import NONE, Batches, Device, StepKind, Trace, Values

# Both steps have phase 3, which ends at the first boundary, and phase 4, which ends with the step. The second boundary is not
# used.
HOST = StepBlock(0, 7, StepKind.STEADY, 2, 3, (3, 4), (0, 2), (1, 3), (100, 104, 105, 109, 113, 114, 118))
ON_DEVICE = HOST._replace(
    device=0, device_times=2, device_begins=(0, 1), device_ends=(1, 2), device_times_ns=(101, 106, 110, 115, 119)
)


def read(packed: Any) -> Any:
    """Return the value as it would be read from a file."""
    return msgpack.unpackb(msgpack.packb(packed))


def test_a_block_contains_the_rows_of_steps_and_phases() -> None:
    steps, phases = unpack_block(read(ON_DEVICE.packed())).tables(first_step=5)
    assert (steps.number.tolist(), steps.start_ns.tolist(), steps.duration_ns.tolist()) == ([7, 8], [100, 109], [9, 9])
    assert phases.step.tolist() == [5, 5, 6, 6] and phases.name.tolist() == [3, 4, 3, 4]
    assert (phases.start_ns.tolist(), phases.duration_ns.tolist()) == ([100, 105, 109, 114], [4, 4, 4, 4])
    assert phases.device.tolist() == [0] * 4
    assert phases.device_start_ns.tolist() == [101, 106, 110, 115]
    assert phases.device_end_ns.tolist() == [106, 110, 115, 119]


def test_a_block_without_a_device_has_no_device_times() -> None:
    _, phases = unpack_block(read(HOST.packed())).tables(first_step=0)
    assert set(phases.device.tolist()) == set(phases.device_start_ns.tolist()) == set(phases.device_end_ns.tolist()) == {NONE}


@given(count=st.integers(1, 3 * PLAIN_NUMBERS), start_ns=st.integers(-(2**61), 2**61))
def test_a_block_of_few_or_many_steps_is_read_back_unchanged(count: int, start_ns: int) -> None:
    """Up to 256 numbers are stored individually. More numbers are stored as a packed column."""
    times_ns = [start_ns + number**2 for number in range(1 + 3 * count)]
    block = unpack_block(read(HOST._replace(steps=count, times_ns=times_ns).packed()))
    assert list(block.times_ns) == times_ns
    rows = [(start_ns - number, -number, number) for number in range(count)]
    table = unpack_table(Batches, read(pack_rows(Batches, ("start_ns", "bytes", "duration_ns"), rows)))
    assert list(zip(table.start_ns.tolist(), table.bytes.tolist(), table.duration_ns.tolist(), strict=True)) == rows
    values = unpack_table(Values, read(pack_rows(Values, ("value",), [(number / 7,) for number in range(count)] + [(1,)])))
    assert values.value.tolist() == [*(number / 7 for number in range(count)), 1.0]


def test_a_constant_column_of_many_rows_is_stored_as_one_number() -> None:
    count = PLAIN_NUMBERS + 1
    packed = pack_rows(Batches, ("rank", "bytes", "start_ns"), [(3, -1, number) for number in range(count)])
    assert (packed["columns"]["rank"], packed["columns"]["bytes"]) == (3, -1)
    table = unpack_table(Batches, read(packed))
    assert (set(table.rank.tolist()), table.start_ns.tolist(), set(table.bytes.tolist())) == ({3}, list(range(count)), {-1})


def test_a_table_in_which_all_columns_are_constant_is_read_back_unchanged() -> None:
    packed = pack_rows(Batches, ("rank", "bytes"), [(3, -1)] * (PLAIN_NUMBERS + 1))
    table = unpack_table(Batches, read(packed))
    assert (table.rank.tolist(), table.bytes.tolist()) == ([3] * (PLAIN_NUMBERS + 1), [-1] * (PLAIN_NUMBERS + 1))


def test_every_field_of_a_block_is_checked() -> None:
    wrong_type = [(field, value) for field in StepBlock._fields for value in (None, "a", [1.5], [2**40, 0], [])]
    out_of_range: list[tuple[str, Any]] = [
        *((field, value) for field in StepBlock._fields if field != "number" for value in (-2, 2**40)),
        ("number", 2**62), ("steps", 3), ("steps", 0), ("steps", 1 << 20), ("times", 2), ("times", 0), ("kind", 256),
        ("rank", NONE), ("names", [3]), ("begins", [0, 4]), ("ends", [1, -1]), ("times_ns", 5), ("times_ns", [0, 0, 1, b"\0"]),
        ("device_ends", [1, 3]), ("device_times_ns", 5), ("device_times", 3), ("device", NONE),
    ]  # fmt: skip
    for field, value in wrong_type + out_of_range:
        with pytest.raises(Damaged):
            unpack_block(read(ON_DEVICE._replace(**{field: value})))


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [("rank", 0, 2**31 - 1), ("number", -(2**62), 2**62 - 1), ("kind", 0, 255), ("device", 0, 2**31 - 1)],
)
def test_a_field_of_a_block_may_have_its_smallest_and_its_largest_value(field: str, least: Any, most: Any) -> None:
    for value in (least, most):
        assert getattr(unpack_block(read(ON_DEVICE._replace(**{field: value}))), field) == value
    for value in (least - 1 - (field == "device"), most + 1):
        with pytest.raises(Damaged):
            unpack_block(read(ON_DEVICE._replace(**{field: value})))


@pytest.mark.parametrize("block", [None, {}, [], [1] * 13])
def test_a_step_block_with_an_invalid_type_is_rejected(block: Any) -> None:
    with pytest.raises(Damaged):
        unpack_block(block)


@pytest.mark.parametrize("column", [[1, 2], [1, 2, 300], [1, 2, -1], [1, 2, 0.5], [1, 2, True], [1, 2, "a"], [1, 2, None]])
def test_an_invalid_plain_column_is_rejected(column: list[Any]) -> None:
    with pytest.raises(Damaged):
        unpack_table(Batches, {"rows": 3, "columns": {"kind": column}})


def test_a_stream_of_blocks_and_rows_keeps_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.format.items._ITEM_ROWS", 2)
    stream = TraceStream(tmp_path / "t")
    stream.header(Trace(devices=[Device(0, 0, "gpu", 1)]))
    stream.add_strings(list("abcde"))
    stream.add_items([block_item(HOST)], {"steps": 2, "phases": 4})
    rows = [(number, number * 10) for number in range(9, 12)]
    stream.add_items(row_items("steps", ("number", "start_ns"), rows), {"steps": 3})
    stream.add_items([block_item(ON_DEVICE._replace(number=12))], {"steps": 2, "phases": 4})
    assert StepCount(tmp_path / "t").now() == 7
    stream.close()
    trace = load(tmp_path / "t")
    assert trace.steps.number.tolist() == [7, 8, 9, 10, 11, 12, 13]
    assert trace.phases.step.tolist() == [0, 0, 1, 1, 5, 5, 6, 6]
