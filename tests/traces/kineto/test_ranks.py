"""What an import says about a recording: the kinds of data that it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.traces.kineto.test_eras import T0, Event, call, imported, kernel, op

OP = op("aten::add", 10, 20, Input_Dims=[[2, 2]], Input_type=["float"], Sequence_number=3)
MARK = op("ProfilerStep#1", 0, 90, cat="user_annotation")
FRAME = op("train.py(5): main", 0, 95, cat="python_function", Python_id=1)
WORK = [call(1, 12), kernel(1, 40)]
PROPERTIES = {"deviceProperties": [{"id": 0, "name": "Tesla T4"}]}


def allocation(**changed: Any) -> Event:
    args = {"Device Type": 1, "Device Id": 0, "Addr": 4096, "Bytes": 64, "Total Allocated": 64, "Total Reserved": 128} | changed
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 7, "ts": T0 + 15}
    return event | {"args": {key: value for key, value in args.items() if value is not None}}


def without(event: Event, name: str) -> Event:
    return {**event, "args": {key: value for key, value in event["args"].items() if key != name}}


@pytest.mark.parametrize(
    ("events", "header", "lacks"),
    [
        ([OP, MARK, FRAME, *WORK, allocation()], PROPERTIES, set()),
        ([without(OP, "Input Dims"), MARK, FRAME, *WORK, allocation()], PROPERTIES, {"dtypes", "shapes"}),
        ([without(OP, "Input type"), MARK, FRAME, *WORK, allocation()], PROPERTIES, {"dtypes"}),
        ([without(OP, "Sequence number"), MARK, FRAME, *WORK, allocation()], PROPERTIES, {"sequence numbers"}),
        ([OP, FRAME, *WORK, allocation()], PROPERTIES, {"marks of steps"}),
        ([OP, MARK, *WORK, allocation()], PROPERTIES, {"call stacks"}),
        ([OP, MARK, FRAME, allocation()], PROPERTIES, {"GPU work"}),
        ([OP, MARK, FRAME, *WORK, allocation()], {}, {"device properties"}),
        ([OP, MARK, FRAME, *WORK], PROPERTIES, {"device memory events"}),
        ([OP, MARK, FRAME, *WORK, allocation(**{"Device Type": 0, "Device Id": -1})], PROPERTIES, {"device memory events"}),
        ([OP, MARK, FRAME, *WORK, allocation(Addr=None)], PROPERTIES, {"memory addresses"}),
        (
            [OP, MARK, FRAME, *WORK, allocation(**{"Total Allocated": None, "Total Reserved": None})],
            PROPERTIES,
            {"memory totals"},
        ),
    ],
)
def test_an_import_lists_the_missing_kinds_of_data(events: list[Event], header: dict[str, Any], lacks: set[str]) -> None:
    assert set(imported(events, **header).lacks) == {"values", *lacks}


@pytest.mark.parametrize(("tid", "stream"), [("stream 123456789", 123456789), ("stream 1234567890", 0), ("default", 0)])
def test_a_missing_stream_number_is_read_from_the_thread_id(tid: str, stream: int) -> None:
    event = {**kernel(1, 40), "tid": tid}
    del event["args"]["stream"]
    assert imported([OP, call(1, 12), event]).device.stream.tolist() == [stream]
