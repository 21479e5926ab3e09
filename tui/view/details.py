"""All that is known of one span, as lines for a person: what Enter shows.

    details(scene, span, Alignment.STEP, at_ns)
    # ["volta_sgemm_128x64_nn", "kernel on cuda:0 stream 7", "duration    812.0 µs", ...]
"""

from __future__ import annotations

import numpy as np

from traces.measure import op_of
from traces.model import NONE, DeviceKind, Ending, HostKind, Origin, Trace
from tui.figures import count_text, error_text, size_text, time_text
from tui.view.alignment import Alignment
from tui.view.cells import plain
from tui.view.scene import Scene
from tui.view.spans import Span, counterpart, name_of, start_of, step_of

_ORIGINS = {
    Origin.MEASURED: "measured",
    Origin.EXACT: "from the recording: the same op and shapes",
    Origin.EQUIVALENT: "from the recording: the same op under another name",
    Origin.SCALED: "estimated: the op at another shape, scaled",
    Origin.PHASE: "from the recording: what was left of the phase's time",
    Origin.ROOFLINE: "estimated from bytes and FLOPs",
    Origin.PUBLISHED: "from a published table",
}
_KINDS = {DeviceKind.KERNEL: "kernel", DeviceKind.MEMCPY: "copy", DeviceKind.MEMSET: "memset"}
_HOST_KINDS = {
    HostKind.OP: "op",
    HostKind.RUNTIME: "runtime call",
    HostKind.ANNOTATION: "range",
    HostKind.PYTHON: "Python function",
}
_ENDINGS = {
    Ending.BY: "seen only when its stream waited for it: it lasted at most so long",
    Ending.UNSEEN: "not seen: the time is at most that of the call which began it",
}
_LABEL = 12


def details(scene: Scene, span: Span, by: Alignment, at_ns: int) -> list[str]:
    """`at_ns` is where on the axis the span was chosen: of several counterparts the one closest to it is told."""
    trace = scene.traces[span.side]
    spans = getattr(trace, span.table)
    duration_ns = int(spans.duration_ns[span.number])
    lines = [plain(name_of(scene, span)), _kind(trace, span)]
    if len(scene.traces) == 2:
        lines.append(_fact("trace", f"{scene.words[span.side]}: {scene.names[span.side]}"))
    lines += [
        _fact("begins", _when(scene, span)),
        _fact("lasts", time_text(duration_ns)),
        *_FACTS.get(span.table, _nothing)(trace, span.number),
    ]
    other = counterpart(scene, span, by, at_ns)
    if other is not None:
        lines += ["", *_counterpart(scene, other, duration_ns)]
    elif len(scene.traces) == 2:
        lines += ["", f"No counterpart in {scene.names[1 - span.side]}."]
    return lines


def _fact(label: str, text: str) -> str:
    return label.ljust(_LABEL) + text


def _when(scene: Scene, span: Span) -> str:
    trace, step = scene.traces[span.side], step_of(scene, span)
    start_ns = start_of(scene, span)
    if step == NONE:
        return f"{time_text(start_ns - int(trace.steps.start_ns[0]), signed=True)} from the first step" if len(
            trace.steps
        ) else "outside any step"
    since = time_text(start_ns - int(trace.steps.start_ns[step]), signed=True)
    return f"{since} in step {trace.steps.number[step]}"


def _kind(trace: Trace, span: Span) -> str:
    number = span.number
    if span.table == "device":
        kind = _KINDS.get(DeviceKind(int(trace.device.kind[number])), "span")
        return f"{kind} on {trace.device_label(int(trace.device.device[number]))} stream {trace.device.stream[number]}"
    if span.table == "host":
        thread = trace.threads[int(trace.host.thread[number])]
        kind = _HOST_KINDS.get(HostKind(int(trace.host.kind[number])), "span")
        return f"{kind} on the {thread.role} thread" + (f" ({plain(thread.name)})" if thread.name else "")
    return {"phases": "phase", "batches": "input pipeline", "collectives": "collective", "parts": "part of a phase"}[span.table]


def _nothing(trace: Trace, number: int) -> list[str]:
    return []


def _of_device(trace: Trace, number: int) -> list[str]:
    spans, host = trace.device, trace.host
    lines = []
    if spans.bytes[number] != NONE:
        size, took_ns = int(spans.bytes[number]), int(spans.duration_ns[number])
        rate = f", {size / took_ns:.1f} GB/s" if took_ns else ""
        lines.append(_fact("bytes", f"{size_text(size)}{rate}"))
    lines.append(_fact("origin", _ORIGINS[Origin(int(spans.origin[number]))]))
    launch = int(spans.launch[number])
    if not 0 <= launch < len(host):
        return [*lines, _fact("launched by", "unknown: not recorded")]
    waited_ns = int(spans.start_ns[number]) - int(host.start_ns[launch])
    op = int(op_of(trace)[number])
    by = op if op != NONE else launch
    lines.append(_fact("launched by", f"{plain(trace.strings[int(host.name[by])])}, {time_text(waited_ns)} before"))
    return lines + _shapes(trace, by)


def _of_host(trace: Trace, number: int) -> list[str]:
    host = trace.host
    lines = _shapes(trace, number)
    behind = number + 1  # what is nested in it follows it: (thread, start) is the order of the table
    end_ns = int(host.end_ns[number])
    own = host.thread == host.thread[number]
    behind = int(np.searchsorted(host.start_ns[own], end_ns, side="left")) + int(np.flatnonzero(own)[0])
    launched = (trace.device.launch >= number) & (trace.device.launch < max(behind, number + 1))
    if launched.any():
        spent = time_text(int(trace.device.duration_ns[launched].sum()))
        lines.append(_fact("GPU work", f"{spent} in {count_text(int(launched.sum()))} kernels and copies"))
    return lines


def _shapes(trace: Trace, number: int) -> list[str]:
    shapes = trace.strings[int(trace.host.shapes[number])]
    dtypes = trace.strings[int(trace.host.dtypes[number])]
    lines = [_fact("shapes", shapes.replace(",", "x").replace(";", " "))] if shapes else []
    return lines + ([_fact("dtypes", " ".join(dict.fromkeys(dtypes.split(";"))))] if dtypes else [])


def _of_phase(trace: Trace, number: int) -> list[str]:
    phases = trace.phases
    begin_ns, end_ns = int(phases.device_start_ns[number]), int(phases.device_end_ns[number])
    origin = Origin(int(phases.origin[number]))
    lines = [] if origin in (Origin.MEASURED, Origin.EXACT) else [_fact("origin", _ORIGINS[origin])]
    return [_fact("on the GPU", time_text(end_ns - begin_ns)), *lines] if NONE not in (begin_ns, end_ns) else lines


def _of_batch(trace: Trace, number: int) -> list[str]:
    size = int(trace.batches.bytes[number])
    return [_fact("bytes", size_text(size))] if size != NONE else []


def _of_collective(trace: Trace, number: int) -> list[str]:
    spans = trace.collectives
    texts = (("dtype", spans.dtype), ("group", spans.group), ("backend", spans.backend))
    lines = [_fact(label, trace.strings[int(column[number])]) for label, column in texts if column[number] != NONE]
    if spans.bytes[number] != NONE:
        lines.append(_fact("bytes", size_text(int(spans.bytes[number]))))
    if spans.group_size[number] != NONE:
        lines.append(_fact("ranks", str(spans.group_size[number])))
    ending = _ENDINGS.get(Ending(int(spans.ending[number])))
    return [*lines, _fact("its end", ending)] if ending else lines


def _of_part(trace: Trace, number: int) -> list[str]:
    return [_fact("origin", _ORIGINS[Origin(int(trace.parts.origin[number]))])]


_FACTS = {
    "device": _of_device,
    "host": _of_host,
    "phases": _of_phase,
    "batches": _of_batch,
    "collectives": _of_collective,
    "parts": _of_part,
}


def _counterpart(scene: Scene, other: Span, duration_ns: int) -> list[str]:
    trace = scene.traces[other.side]
    theirs_ns = int(getattr(trace, other.table).duration_ns[other.number])
    ours_ns = duration_ns
    recorded_ns, replayed_ns = (theirs_ns, ours_ns) if other.side == 0 else (ours_ns, theirs_ns)
    error = replayed_ns / recorded_ns - 1 if recorded_ns else None
    return [
        f"Counterpart, {scene.words[other.side]}:",
        _fact("begins", _when(scene, other)),
        _fact("lasts", time_text(theirs_ns)),
        _fact("change", f"{time_text(replayed_ns - recorded_ns, signed=True)} ({error_text(error)})"),
    ]
