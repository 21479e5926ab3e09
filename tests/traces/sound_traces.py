"""Provides traces for the tests of the file format: a small trace with rows in every table, and random valid traces."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from traces.model.invariants import column_limits
from traces.model.machine import DeviceProperties
from traces.model.run import (
    REPLAY,
    CleanSteps,
    CompiledCode,
    Distributed,
    EagerRegion,
    HostFigures,
    LibraryCall,
    LibrarySteps,
    LoaderSettings,
    MemoryUse,
    MissingOp,
    ProcessGroup,
    ProfilerCost,
    ProfilerUse,
    RecorderNotes,
    ReplayNotes,
    Run,
    Script,
)
from traces.model.trace import (
    NONE,
    TABLES,
    Batches,
    BatchKind,
    Collectives,
    Device,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Parts,
    Phases,
    Steps,
    Strings,
    Table,
    Thread,
    Trace,
    Values,
)
from traces.script.configuration import ReplayConfig

RUN = Run(
    REPLAY,
    "unix",
    Script("train.py", "train", "e3b0"),
    ("--lr", "0.1"),
    (LoaderSettings(2, 32, None, True), LoaderSettings()),
    RecorderNotes("1.0", 9, 0.5),
    ProfilerUse((3, 4), "because"),
    CleanSteps(3, 10, 12, 1.2),
    {"forward": 0.5, "backward": 1.0},
    Distributed("nccl", 2, 1, (ProcessGroup("0", "default_pg", "cuda:nccl", 2, (0, 1)),)),
    ReplayNotes(
        "v100.msgpack",
        "trace record",
        ReplayConfig(gpu_memory_bytes=(1 << 30,)),
        HostFigures(1, 2, 0.5, 7),
        3,
        (MissingOp("aten::foo", "2,2", 3),),
        4,
        (LibrarySteps(2, {"forward": 5}, (LibraryCall("v100/resnet50", 32, True, "measured"),)),),
        5,
        8,
        6,
        (MemoryUse(1 << 30, 1, 2, 3, 4, True),),
    ),
    CompiledCode(2, 1, 1, 5, (EagerRegion("1/0 f (m.py:3)", "Error"),), {"print (m.py:5)": 1}, {"0/1": "size"}, {"0/0": "f"}),
    stream_numbers="queues",
    predicted=True,
    expected_error=0.08,
    profiler_cost=ProfilerCost(480, 380, 350, 1200, 500, 1000, 80),
)


def differences(a: Trace, b: Trace) -> list[str]:
    """Return the names of header fields and columns that differ between two traces. NaN equals NaN."""
    header = ("grain", "devices", "threads", "machines", "runs", "provenance", "problems", "lacks")
    found = [name for name in header if repr(getattr(a, name)) != repr(getattr(b, name))]
    if a.strings.texts != b.strings.texts:
        found.append("strings")
    for name, kind in TABLES.items():
        for column in kind.DTYPES:
            mine, other = getattr(getattr(a, name), column), getattr(getattr(b, name), column)
            if mine.dtype != other.dtype or mine.tobytes() != other.tobytes():
                found.append(f"{name}.{column}")
    return found


def small_trace() -> Trace:
    """Return a trace with two steps, one thread, one device, and a few rows in every table."""
    trace = Trace(
        devices=[Device(0, 0, "Tesla V100", 34_000_000_000, DeviceProperties(multi_processor_count=80))],
        threads=[Thread(0, 4711, "python", "main")],
        runs={0: RUN},
        provenance={"argv": ["train.py"], "big": 1 << 70},
        problems={"clipped-spans": 2},
        lacks=["memory addresses"],
    )
    forward, op, launch, kernel, dims, float32 = (
        trace.strings.add(text) for text in ("forward", "aten::relu_", "cudaLaunchKernel", "relu", "2,3", "float32")
    )
    trace.steps = Steps.of(start_ns=[100, 1100], duration_ns=[1000, 900], number=[5, 6], rank=[0, 0])
    trace.phases = Phases.of(step=[0, 1], name=[forward] * 2, start_ns=[100, 1100], duration_ns=[1000, 900])
    trace.host = HostSpans.of(
        thread=[0] * 4,
        kind=[HostKind.OP, HostKind.RUNTIME] * 2,
        name=[op, launch] * 2,
        start_ns=[110, 120, 1110, 1125],
        duration_ns=[50, 10, 60, 12],
        parent=[NONE, 0, NONE, 2],
        shapes=[dims, NONE] * 2,
        dtypes=[float32, NONE] * 2,
    )
    trace.device = DeviceSpans.of(
        device=[0, 0], stream=[7, 7], name=[kernel] * 2, start_ns=[140, 1150], duration_ns=[300, 310], launch=[1, 3]
    )
    trace.memory = MemoryEvents.of(
        thread=[0, 0], device=[0, 0], time_ns=[111, 400], bytes=[512, -512], address=[1 << 63, 1 << 63]
    )
    trace.values = Values.of(rank=[0], step=[1], read=[0], op=[op], dtype=[float32], value=[0.25])
    trace.parts = Parts.of(
        phase=[0, 1], name=[op] * 2, thread=[0, 0], start_ns=[105, 1105], duration_ns=[700, 690], device=[0, NONE]
    )
    trace.batches = Batches.of(
        rank=[0, 0], loader=[0, 0], kind=[BatchKind.WAIT, BatchKind.PIN], start_ns=[90, 95], duration_ns=[7, 9], bytes=[24, 24]
    )
    trace.collectives = Collectives.of(
        rank=[0], name=[op], dtype=[float32], group_size=[2], bytes=[24], start_ns=[150], duration_ns=[99]
    )
    return trace


def _column(draw: st.DrawFn, dtype: str, rows: int, low: int | None = None, behind: int | None = None) -> Any:
    kind = np.dtype(dtype)
    if not rows:
        return np.zeros(0, kind)
    if kind.kind == "f":
        return draw(arrays(kind, rows, elements=st.floats(width=64)))
    info = np.iinfo(kind)
    elements = st.integers(info.min if low is None else low, info.max if behind is None else behind - 1)
    return draw(arrays(kind, rows, elements=elements, fill=st.one_of(st.nothing(), elements)))


def _sized(rows: dict[str, int], texts: list[str], devices: int, threads: int) -> Trace:
    """Return a trace with the given number of rows, to find the allowed values of its columns."""
    first = {name: next(iter(kind.DTYPES)) for name, kind in TABLES.items()}
    tables: dict[str, Any] = {name: TABLES[name].of(**{first[name]: [0] * count}) for name, count in rows.items()}
    return Trace(strings=Strings(texts), devices=[Device(0, 0, "")] * devices, threads=[Thread(0, 0)] * threads, **tables)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw any trace that is valid according to `checks.fault`."""
    texts = draw(st.lists(st.text(max_size=6), min_size=1, max_size=6, unique=True))
    devices = draw(st.integers(1, 2))
    threads = draw(st.integers(1, 2))
    rows = {name: draw(st.integers(0, 6)) for name in TABLES}
    if not rows["steps"]:
        rows["phases"] = 0
    allowed = column_limits(_sized(rows, texts, devices, threads))
    for where, (lowest, behind) in allowed.items():
        if where.endswith(".start_ns"):
            allowed[where] = lowest // 2, behind // 2
    tables: dict[str, Table] = {}
    for name, kind in TABLES.items():
        columns = {
            column: _column(draw, dtype, rows[name], *allowed.get(f"{name}.{column}", (None, None)))
            for column, dtype in kind.DTYPES.items()
            if f"{name}.{column}" != "host.parent"
        }
        if name == "host":
            columns["parent"] = np.array(draw(parents(rows["host"])), "i4")
        tables[name] = kind(**columns)
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
    return Trace(
        grain=draw(st.sampled_from(["kernel", "phase"])),
        strings=Strings(texts),
        devices=[Device(0, i, draw(st.text(max_size=3)), draw(st.integers(-(2**62) + 1, 2**62 - 1))) for i in range(devices)],
        threads=[Thread(0, i, draw(st.text(max_size=3))) for i in range(threads)],
        runs=draw(st.sampled_from([{}, {0: RUN}])),
        provenance=draw(st.dictionaries(st.text(max_size=3), json_values, max_size=2)),
        problems=draw(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)),
        lacks=draw(st.lists(st.text(max_size=3), max_size=2)),
        **tables,  # type: ignore[arg-type]  # each is of the kind that TABLES names
    )


@st.composite
def parents(draw: st.DrawFn, rows: int) -> list[int]:
    """Draw the parents of rows: nested spans in half of the cases, and otherwise any parents without cycles."""
    if draw(st.booleans()):
        found: list[int] = []
        open_rows: list[int] = []
        for row in range(rows):
            del open_rows[draw(st.integers(0, len(open_rows))) :]
            found.append(open_rows[-1] if open_rows else NONE)
            open_rows.append(row)
        return found
    order = draw(st.permutations(range(rows)))
    choice = {row: draw(st.sampled_from([NONE, *order[:place]])) for place, row in enumerate(order)}
    return [choice[row] for row in range(rows)]
