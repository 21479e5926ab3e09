"""Tests that a trace that is exported and imported is unchanged to the nanosecond, for handmade traces and real recordings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.conftest import recordings
from tests.traces.handmade import data_parallel, phase_grained, replay_of, training
from tests.traces.kineto.test_real import index_rows
from tests.traces.sound_traces import small_trace, traces
from traces.chrome.export import export_chrome
from traces.chrome.export_notes import HEADER_KEY
from traces.kineto import read_kineto, read_kineto_bytes
from traces.kineto.spans.nesting import nesting_order, parents
from traces.model.invariants import REFERENCES
from traces.model.machine import DeviceProperties
from traces.model.run import KINETO
from traces.model.trace import (
    NONE,
    TABLES,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Origin,
    Thread,
    Trace,
)
from traces.names.launch_configs import config_args, config_text

T0_NS = 1_700_000_000 * 10**9


def differences(a: Trace, b: Trace) -> list[str]:
    """Return the differences between two traces. Texts are compared by content, because their indexes in the string table may
    differ."""
    header = ("grain", "devices", "threads", "machines", "runs", "provenance", "problems", "lacks")
    found = [name for name in header if repr(getattr(a, name)) != repr(getattr(b, name))]
    for name, kind in TABLES.items():
        for column in kind.DTYPES:
            mine, other = getattr(getattr(a, name), column), getattr(getattr(b, name), column)
            if REFERENCES.get(f"{name}.{column}") == "strings":
                mine = [a.strings[i] if i >= 0 else None for i in mine.tolist()]
                other = [b.strings[i] if i >= 0 else None for i in other.tolist()]
            same = mine == other if isinstance(mine, list) else np.array_equal(mine, other, equal_nan=mine.dtype.kind == "f")
            if not same:
                found.append(f"{name}.{column}")
    return found


def back(trace: Trace, folder: Path) -> Trace:
    paths = export_chrome(trace, folder / "x.json")
    if len(paths) == 1:
        return read_kineto(paths[0])
    ranks = folder / "ranks"
    ranks.mkdir()
    for path in paths:
        path.rename(ranks / path.name)
    return read_kineto(ranks)


@pytest.mark.parametrize("name", recordings(row.name for row in index_rows()) or ["no recordings"])
def test_real_recordings_survive_export_and_import(shared_traces: Path, tmp_path: Path, name: str) -> None:
    trace = read_kineto(shared_traces / f"{name}.json.gz")
    assert differences(back(trace, tmp_path), trace) == []


@pytest.mark.program
def test_eight_real_ranks_survive_export_and_import(shared_traces: Path, tmp_path: Path) -> None:
    trace = read_kineto(shared_traces / "a100_megatron_tp8")
    assert differences(back(trace, tmp_path), trace) == []


@pytest.mark.parametrize("made", [training, lambda: replay_of(training()), phase_grained, data_parallel, small_trace])
def test_our_recordings_and_replays_survive_export_and_import(tmp_path: Path, made: Any) -> None:
    trace = made()
    if made is not small_trace:
        trace.host.dtypes[:] = NONE  # the handmade trace has one dtype for several tensors
    found = back(trace, tmp_path)
    # The import counts problems, for example calls outside of ops, which a handmade trace does not count.
    assert differences(replace(found, problems=trace.problems), trace) == []


@st.composite
def made_traces(draw: st.DrawFn) -> Trace:
    """Draw any trace whose host spans are in order, and whose device work was launched by calls or ops. Spans may overlap in
    part."""
    trace = draw(traces())
    text = trace.strings.add
    names = [text(name) for name in ("aten::mm", "cudaLaunchKernel", "cuLaunchKernel", "ProfilerStep#3", "nccl:x", "a|b")]
    trace.threads = [Thread(0, 5, "main", "main"), Thread(0, 5, "another 5", "backward"), Thread(0, 9, "", "loader")]
    properties = DeviceProperties(multi_processor_count=80, warp_size=32)
    trace.devices = [Device(0, 3, "GPU", NONE, properties), Device(0, 5, "", 1 << 34, outside_bytes=7)]
    for table_name in TABLES:
        table = getattr(trace, table_name)
        for column in table.DTYPES:
            values = getattr(table, column)
            if column.endswith("_ns"):
                span = 10**4 if column == "duration_ns" else 10**5
                setattr(table, column, values % span + (0 if column == "duration_ns" else T0_NS))
            elif column == "rank":
                values[:] = 0
    times = st.integers(0, 60)
    rows = draw(st.lists(st.tuples(st.integers(0, 2), times, times, st.sampled_from(list(HostKind))), max_size=12))
    thread, start, duration, kind = (np.array([row[i] for row in rows], "i8") for i in range(4))
    ranks = np.array([2, 3, 1, 0, 4])[kind] if len(rows) else kind
    order = nesting_order(thread, start, duration, ranks, np.full(len(rows), NONE))
    thread, start, duration, kind = thread[order], T0_NS + start[order] * 37, duration[order] * 37, kind[order]
    name = [names[1 + row % 2 if of == HostKind.RUNTIME else row % 6] for row, of in enumerate(kind.tolist())]
    host = HostSpans.of(thread=thread, kind=kind, name=name, start_ns=start, duration_ns=duration)
    host.parent, _, ends = parents(thread, start, start + duration, kind == HostKind.PYTHON, kind == HostKind.RUNTIME)
    assume((ends == start + duration).all())  # The importer would end this frame earlier.
    of_op = (kind == HostKind.OP) | (kind == HostKind.ANNOTATION)
    inputs = draw(st.sampled_from([("2,3;4", "float32;"), ("?;5", ";int64"), ("7", "bfloat16"), ("7", "")]))
    host.shapes, host.dtypes = (np.where(of_op, text(part), NONE).astype("i4") for part in inputs)
    host.stack = np.where(of_op & draw(st.booleans()), text("train.py(3): main;<frozen>(1): f"), NONE).astype("i4")
    host.sequence = np.where(of_op & (np.arange(len(kind)) % 2 == 0), np.arange(len(kind)), NONE)
    host.forward_thread = np.where(host.sequence != NONE, draw(st.sampled_from([NONE, 1, 4])), NONE).astype("i4")
    trace.host = host
    callers = [NONE, *np.flatnonzero((kind == HostKind.OP) | (kind == HostKind.RUNTIME)).tolist()]
    work = draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 9), st.sampled_from(list(DeviceKind)), times, times,
                           st.sampled_from(callers), st.sampled_from(list(Origin))), max_size=12)
    )  # fmt: skip
    columns = [np.array([row[i] for row in work], "i8") for i in range(7)]
    is_work = columns[2] < DeviceKind.SYNC
    launched_ns = np.append(host.start_ns, T0_NS)[columns[5]]
    device = DeviceSpans.of(
        device=columns[0], stream=columns[1], kind=columns[2], name=np.full(len(work), names[5]),
        start_ns=launched_ns + columns[3] * 41, duration_ns=columns[4] * 41,
        launch=np.where(is_work, columns[5], NONE), origin=columns[6],
        bytes=np.where((columns[2] == DeviceKind.MEMCPY), 4096, NONE),
        config=np.where(columns[2] == DeviceKind.KERNEL, text("4,1,2|128|16|0|25.5"), NONE),
        graph=np.where(columns[3] % 2, columns[3], NONE), graph_node=np.where(columns[3] % 2, columns[4] + 1, NONE),
    )  # fmt: skip
    still = columns[2] == DeviceKind.ANNOTATION
    device.graph[still] = device.graph_node[still] = NONE
    order = np.lexsort((device.kind, device.start_ns, device.stream, device.device))
    trace.device = device.take(order)
    events = draw(st.lists(st.tuples(st.integers(-1, 2), st.integers(-1, 1), times, st.integers(-512, 512)), max_size=6))
    memory = [np.array([row[i] for row in events], "i8") for i in range(4)]
    trace.memory = MemoryEvents.of(
        thread=memory[0], device=memory[1], time_ns=T0_NS + memory[2] * 1001, bytes=memory[3], address=np.maximum(memory[3], 0)
    )
    trace.memory = trace.memory.take(np.argsort(trace.memory.time_ns, kind="stable"))
    for table, column in (("parts", "thread"), ("parts", "device"), ("phases", "device"), ("collectives", "device")):
        values = getattr(getattr(trace, table), column)
        values[:] = np.minimum(values, 1)
    return trace


@settings(phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))
@given(trace=made_traces())
def test_handmade_recordings_survive_export_and_import(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = back(trace, tmp_path_factory.mktemp("x"))
    for kind in ("partial-overlap", "kernel-without-launch"):  # the trace above contains these problems without counting them
        found.problems.pop(kind, None)
    assert differences(found, trace) == []


def test_export_keeps_the_nanoseconds_of_a_trace_with_only_memory_events(tmp_path: Path) -> None:
    """Timestamps are relative to the first event, because a float that counts from 1970 is not exact to the nanosecond."""
    trace = small_trace()
    for name, kind in TABLES.items():
        setattr(trace, name, kind.of())
    trace.memory = MemoryEvents.of(thread=[0], device=[0], time_ns=[T0_NS + 1001], bytes=[512], address=[512])
    assert back(trace, tmp_path).memory.time_ns.tolist() == [T0_NS + 1001]


def exported(tmp_path: Path) -> dict[str, Any]:
    (path,) = export_chrome(training(steps=2), tmp_path / "x.json")
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


@pytest.mark.parametrize(
    "spoil",
    [
        lambda notes: notes.pop("tables"),
        lambda notes: notes.update(format=2),
        lambda notes: notes["tables"]["phases"]["step"].__setitem__(0, 99),
        lambda notes: notes["tables"]["steps"]["kind"].__setitem__(0, "x"),
        lambda notes: notes["tables"]["steps"]["start_ns"].pop(),
        lambda notes: notes["tables"]["phases"]["name"].__setitem__(0, 10**6),
        lambda notes: notes["devices"][0].update(index="0"),
        lambda notes: notes["tracks"].pop(),
        lambda notes: notes["events"].update(kernel={"added": 0, "times": [[1]], "origins": []}),
    ],
)
def test_invalid_export_notes_are_counted_and_ignored(tmp_path: Path, spoil: Any) -> None:
    document = exported(tmp_path)
    notes = json.loads(document[HEADER_KEY])
    spoil(notes)
    trace = read_kineto_bytes(json.dumps(document | {HEADER_KEY: json.dumps(notes)}).encode())
    assert trace.problems["unreadable-header"] == 1 and len(trace.steps) == 2 and trace.run_of(0).source == KINETO
    for text in ("", "{", 5, None, "[]"):
        assert read_kineto_bytes(json.dumps(document | {HEADER_KEY: text}).encode()).problems["unreadable-header"] == 1


def test_an_exported_file_with_added_or_removed_events_can_be_imported(tmp_path: Path) -> None:
    document = exported(tmp_path)
    kernel = next(e for e in document["traceEvents"] if e.get("cat") == "kernel")
    op = next(e for e in document["traceEvents"] if e.get("cat") == "cpu_op")
    added = [{**kernel, "pid": 9, "args": {"device": 9, "stream": 1}}, {**op, "tid": 77}]
    trace = read_kineto_bytes(json.dumps(document | {"traceEvents": [*document["traceEvents"][10:], *added]}).encode())
    assert [device.index for device in trace.devices] == [0, 9] and trace.threads[-1].tid == 77
    assert len(trace.steps) == 2


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([[50, 1, 1], [256, 1, 1], 16, 0, 6, None], "50|256|16|0|6"),
        ([[1, 1, 1], [8, 4, 2], None, None, None, None], "1|8,4,2"),
        ([None, None, 16, None, None, 12.5], "||16|||12.5"),
        ([[1, 2], "x", -(1 << 40), {}, True, None], ""),
    ],
)
def test_launch_configurations_survive_conversion_to_text_and_back(values: list[Any], text: str) -> None:
    assert config_text(values) == text
    args = config_args(text)
    assert config_text([args.get(key) for key in ("grid", "block", "registers per thread", "shared memory",
                                                  "est. achieved occupancy %", "theoretical occupancy %")]) == text  # fmt: skip
