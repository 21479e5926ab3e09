"""Tests that reading a recording in chunks of any size gives the same trace as reading the whole file."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.kineto.test_eras import kernel, op, training_step
from traces.kineto import read_kineto_bytes
from traces.kineto.reading import event_rows, pieces
from traces.kineto.reading.event_rows import CategoryEvents, as_list, event_fields
from traces.kineto.reading.text import parse
from traces.model.trace import TABLES, Trace

# These texts look like the end of one event and the start of the next event.
traps = st.sampled_from(['}, {"ph": "X"}', '"traceEvents": [', '}, {\\"name\\": 1', "|", "]}", "é"])
values = st.recursive(
    st.none() | st.integers(0, 9) | traps,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ph", "name", "traceEvents"]) | traps, inner),
    max_leaves=6,
)
events = st.fixed_dictionaries({"ph": st.sampled_from("XMi"), "name": traps | st.just("k")}, optional={"args": values})


def in_pieces_of(size_bytes: int) -> Any:
    return patch.object(pieces, "_PIECE_BYTES", size_bytes)


@given(st.lists(events, max_size=6), st.dictionaries(traps, values), st.dictionaries(traps, values), st.sampled_from([None, 1]))
def test_parsing_a_file_in_chunks_gives_the_same_events(
    listed: list[Any], before: dict[str, Any], after: dict[str, Any], indent: int | None
) -> None:
    after = {f"after {key}": value for key, value in after.items()}
    for content in (listed, before | {"traceEvents": listed} | after):
        text = json.dumps(content, indent=indent, ensure_ascii=False).encode()
        with in_pieces_of(1):
            document = parse(text, Counter(), "x")
        assert document.events == listed
        assert document.header == ({} if content is listed else before | after)


@pytest.mark.parametrize("around", ['{"a": 1, "traceEvents": [%s], "b": 2}', "[%s]"])
def test_only_the_result_of_each_chunk_is_kept_in_memory(around: str) -> None:
    listed = [{"ph": "X", "name": str(i)} for i in range(9)]
    seen: list[list[Any]] = []

    def digest(piece: list[Any]) -> list[Any]:
        seen.append(piece)
        return [len(piece)]

    with in_pieces_of(60):
        document = parse((around % json.dumps(listed)[1:-1]).encode(), Counter(), "x", digest)
    assert seen == [listed[:3], listed[3:6], listed[6:]]
    assert document.events == [3, 3, 3]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": {"traceEvents": [{"ph": 1}, {"ph": 2}]}, "traceEvents": [{"ph": 3}]}', [{"ph": 3}]),
        ('{"traceEvents": [{"ph": 1}, {"ph": 2}], "traceEvents": [{"ph": 3}]}', [{"ph": 3}]),
        ('{"traceEvents": [{"ph": 1}, {"ph": [{"ph": 2}, {"ph": 3}]}]}', [{"ph": 1}, {"ph": [{"ph": 2}, {"ph": 3}]}]),
    ],
)
def test_nested_event_lists_and_repeated_keys_are_parsed_like_pythons_json_module(text: str, found: list[Any]) -> None:
    with in_pieces_of(1):
        assert parse(text.encode(), Counter(), "x").events == found == json.loads(text)["traceEvents"]


def faulty_events() -> list[dict[str, Any]]:
    """Return two steps in which each kind of event has one of each fault."""
    listed = [op("ProfilerStep#5", 0, 100, cat="user_annotation"), *training_step(0), *training_step(100)]
    for fault in range(6):
        for event in (op("aten::add", 10 + fault, 1), kernel(20 + fault, fault)):
            event |= ({"dur": None}, {"ts": "50"}, {"pid": 1.0}, {"args": None}, {"name": 3}, {"ts": []})[fault]
            listed.append(event)
    for key in ("dur", "ts", "pid", "args", "name"):
        without = op("aten::mul", 60, 2)
        del without[key]
        listed.append(without)
    return listed


def columns_of(trace: Trace) -> dict[str, Any]:
    return {f"{name}.{key}": c.tolist() for name in TABLES for key, c in getattr(trace, name).columns().items()}


@pytest.mark.parametrize("size_bytes", [1, 300, 1500])
def test_the_chunk_size_does_not_change_how_invalid_events_are_handled(size_bytes: int) -> None:
    text = orjson.dumps({"traceEvents": faulty_events()})
    whole = read_kineto_bytes(text)
    with in_pieces_of(size_bytes):
        cut = read_kineto_bytes(text)
    assert cut.problems == whole.problems
    assert {"unreadable-event", "event-without-duration", "event-without-name"} <= whole.problems.keys()
    assert cut.strings.texts == whole.strings.texts
    assert columns_of(cut) == columns_of(whole)


def test_too_deeply_nested_dimensions_are_dropped() -> None:
    deep = orjson.dumps(op("aten::add", 3, 1, Input_Dims="DEEP")).replace(b'"DEEP"', b"[" * 300 + b"]" * 300)
    shaped = orjson.dumps(op("aten::add", 1, 1, Input_Dims=[[2, 3]]))
    trace = read_kineto_bytes(b"[%b,%b]" % (shaped, deep))
    assert [trace.strings[i] for i in trace.host.shapes.tolist()] == ["2,3", ""]


def test_a_memory_event_with_an_invalid_timestamp_keeps_its_bytes() -> None:
    told = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 7}
    listed = [{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts, "args": told} for ts in (5, "6")]
    memory = read_kineto_bytes(orjson.dumps({"traceEvents": [op("aten::add", 1, 2), *listed]})).memory
    assert memory.bytes.tolist() == [512, 512]
    assert memory.time_ns.tolist() == [5000, 6000]


def test_reading_in_small_chunks_gives_the_same_trace(shared_traces: Path) -> None:
    for name in ("h100_transformer_toy", "gpu_graph_vllm_decode", "a100_event_sync_multi_stream"):
        data = gzip.decompress((shared_traces / f"{name}.json.gz").read_bytes())
        with in_pieces_of(len(data) + 1):
            whole = read_kineto_bytes(data)
        with in_pieces_of(2000):
            cut = read_kineto_bytes(data)
        assert cut.strings.texts == whole.strings.texts
        assert columns_of(cut) == columns_of(whole)


def test_reading_a_column_frees_only_that_column() -> None:
    rows = CategoryEvents("kernel")
    for stream in (7, 9):
        event = {"name": "k", "pid": 0, "tid": 1, "ts": 3, "dur": 4, "args": {"stream": stream}}
        rows.pieces.append(event_fields("kernel", [event]))
    assert as_list(rows.take("stream")) == [7, 9]
    assert rows.column("stream") == []
    assert as_list(rows.column("dur")) == [4, 4]


odd = (
    st.integers(-3, 99)
    | st.floats(0, 99)
    | st.sampled_from([1 << 53, 1 << 62, 1 << 63, (1 << 64) - 1, 1e30, "7", "x", None, [], [3]])
)


@st.composite
def columns_with_odd_values(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return calls and kernels, some of which have odd values in one field or argument."""
    made = [op("aten::add", 1, 90)]
    for number in range(draw(st.integers(1, 8))):
        place = {"device": 0, "stream": 7, "correlation": number, "bytes": 5}
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 1, "tid": 1}
        made.append(call | {"ts": 10 * number + 2, "dur": 3, "args": {"correlation": number}})
        copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "pid": 0, "tid": 7, "args": place}
        made.append(copy | {"ts": 10 * number + 4, "dur": 5.5})
    key = draw(st.sampled_from(["ts", "dur", "pid", "tid", "device", "stream", "bytes", "correlation", "External id"]))
    for event in made:
        inside = event if key in event else event.get("args", {})
        if draw(st.booleans()):
            inside[key] = draw(odd)
    return made


@given(columns_with_odd_values())
def test_reading_columns_in_chunks_gives_the_same_result(made: list[dict[str, Any]]) -> None:
    text = orjson.dumps({"traceEvents": made})
    with in_pieces_of(1):
        arrays = read_kineto_bytes(text)
    with patch.object(event_rows, "as_array", lambda values, dtype=None: values):
        whole = read_kineto_bytes(text)
    assert arrays.problems == whole.problems
    assert columns_of(arrays) == columns_of(whole)
