"""Traces for the tests of the file: a small one with something in every table, and arbitrary sound ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from traces.model import (
    NONE,
    TABLES,
    Device,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    MemoryEvents,
    Origin,
    Phases,
    StepKind,
    Steps,
    Strings,
    Table,
    Thread,
    Trace,
    Values,
)


def differences(a: Trace, b: Trace) -> list[str]:
    """What differs between two traces, bit by bit; NaN equals itself."""
    header = ("grain", "devices", "threads", "provenance", "problems", "lacks")
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
    """Two steps of one thread and one device, a few rows in every table."""
    trace = Trace(
        devices=[Device(0, 0, "Tesla V100", 34_000_000_000, {"numSms": 80})],
        threads=[Thread(0, 4711, "python", "main")],
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
    return trace


def _column(draw: st.DrawFn, dtype: str, rows: int, low: int | None = None, high: int | None = None) -> Any:
    kind = np.dtype(dtype)
    if not rows:
        return np.zeros(0, kind)
    if kind.kind == "f":
        return draw(arrays(kind, rows, elements=st.floats(width=64)))
    limits = np.iinfo(kind)
    elements = st.integers(limits.min if low is None else low, limits.max if high is None else high)
    return draw(arrays(kind, rows, elements=elements, fill=st.one_of(st.nothing(), elements)))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any trace that `checks.fault` lets pass: indices in range, everything else anywhere within its dtype."""
    texts = draw(st.lists(st.text(max_size=6), min_size=1, max_size=6, unique=True))
    devices = draw(st.integers(1, 2))
    threads = draw(st.integers(1, 2))
    rows = {name: draw(st.integers(0, 12)) for name in TABLES}
    if not rows["steps"]:
        rows["phases"] = 0
    limits = {
        "steps.kind": (0, len(StepKind) - 1),
        "phases.step": (0, rows["steps"] - 1),
        "phases.name": (0, len(texts) - 1),
        "phases.device": (NONE, devices - 1),
        "phases.origin": (0, len(Origin) - 1),
        "host.thread": (0, threads - 1),
        "host.kind": (0, len(HostKind) - 1),
        "host.name": (0, len(texts) - 1),
        "host.shapes": (NONE, len(texts) - 1),
        "host.dtypes": (NONE, len(texts) - 1),
        "device.device": (0, devices - 1),
        "device.kind": (0, len(DeviceKind) - 1),
        "device.name": (0, len(texts) - 1),
        "device.launch": (NONE, rows["host"] - 1),
        "device.origin": (0, len(Origin) - 1),
        "memory.thread": (NONE, threads - 1),
        "memory.device": (NONE, devices - 1),
        "values.step": (NONE, rows["steps"] - 1),
        "values.op": (0, len(texts) - 1),
        "values.dtype": (0, len(texts) - 1),
    }
    tables: dict[str, Table] = {}
    for name, kind in TABLES.items():
        columns = {
            column: _column(draw, dtype, rows[name], *limits.get(f"{name}.{column}", (None, None)))
            for column, dtype in kind.DTYPES.items()
            if f"{name}.{column}" != "host.parent"
        }
        if name == "host":
            columns["parent"] = np.array(draw(parents(rows["host"])), "i4")
        tables[name] = kind(**columns)
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
    return Trace(
        grain=draw(st.sampled_from(["kernel", "phase"])),
        strings=Strings(texts),
        devices=[Device(0, i, draw(st.text(max_size=3)), draw(st.integers())) for i in range(devices)],
        threads=[Thread(0, i, draw(st.text(max_size=3))) for i in range(threads)],
        provenance=draw(st.dictionaries(st.text(max_size=3), json_values, max_size=2)),
        problems=draw(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)),
        lacks=draw(st.lists(st.text(max_size=3), max_size=2)),
        **tables,  # type: ignore[arg-type]  # each is of the kind that TABLES names
    )


@st.composite
def parents(draw: st.DrawFn, rows: int) -> list[int]:
    """Half the time brackets that nest, as in a recording; else any that make no cycle, before or behind their child."""
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
