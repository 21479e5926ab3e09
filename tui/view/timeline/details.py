"""Describes one event in text, for the dialog that the Enter key opens.

    details(scene, span, Alignment.STEP, at_ns)
    # ["volta_sgemm_128x64_nn", "kernel on cuda:0 stream 7", "duration    812.0 µs", ...]
"""

from __future__ import annotations

from traces.compiled.regions import region_calls
from traces.figures.measure import op_of
from traces.model.trace import NONE, DeviceKind, Ending, HostKind, Origin, Trace
from traces.names.equivalent_ops import canonical_op
from traces.names.launch_configs import config_args
from traces.rates.achieved_rates import compared_text
from tui.formatting import count_text, error_text, fit, share_text, size_text, time_text
from tui.view.scene.alignment import Alignment
from tui.view.scene.character_rows import one_column_each
from tui.view.scene.scene import Scene
from tui.view.scene.short_names import short_name
from tui.view.timeline.related import backward, launched_rows, modules_and_stack
from tui.view.timeline.ruler import time_in_step
from tui.view.timeline.spans import Span, counterpart, duration_of, name_of, start_of, step_of

_ORIGINS = {
    Origin.MEASURED: "measured",
    Origin.EXACT: "from the recording: the same op and shapes",
    Origin.EQUIVALENT: "from the recording: the same op under another name",
    Origin.SCALED: "estimated: scaled from another shape of the op",
    Origin.PHASE: "from the recording: the rest of the phase's time",
    Origin.ROOFLINE: "estimated from bytes and FLOPs",
    Origin.PUBLISHED: "from a published table",
    Origin.CURVE: "estimated from curves of published measurements",
}
_KINDS = {DeviceKind.KERNEL: "kernel", DeviceKind.MEMCPY: "copy", DeviceKind.MEMSET: "memset"}
_HOST_KINDS = {
    HostKind.OP: "op",
    HostKind.RUNTIME: "runtime call",
    HostKind.ANNOTATION: "range",
    HostKind.PYTHON: "Python function",
}
_ENDINGS = {
    Ending.BY: "only the wait for this event was recorded, so the time is an upper limit",
    Ending.UNSEEN: "not recorded; this is the time of the call that launched the work",
}
_LABEL = 12
_HEAD = 280  # maximum length of the name at the top; a longer name is printed again in full at the bottom
_FRAMES = 8  # maximum number of innermost frames of a call stack


def details(scene: Scene, span: Span, by: Alignment, at_ns: int) -> list[str]:
    trace = scene.traces[span.side]
    duration_ns = duration_of(scene, span)
    name = one_column_each(name_of(scene, span))
    lines = [fit(name, _HEAD), _kind(trace, span)]
    if len(scene.traces) == 2:
        lines.append(_fact("trace", f"{scene.words[span.side]}: {scene.names[span.side]}"))
    lines += [
        _fact("begins", _begin_text(scene, span)),
        _fact("lasts", time_text(duration_ns)),
        *_FACTS[span.table](scene, span, trace, span.number),
    ]
    partner = backward(scene, span)
    if partner is not None:
        word = "backward" if start_of(scene, partner) > start_of(scene, span) else "forward"
        lines.append(_fact(word, f"{short_name(name_of(scene, partner))}, {_begin_text(scene, partner)}"))
    other = counterpart(scene, span, by, at_ns)
    if other is not None:
        lines += ["", *_counterpart(scene, other, duration_ns, name_of(scene, span))]
    elif len(scene.traces) == 2:
        lines += ["", f"No counterpart in {scene.names[1 - span.side]}."]
    return [*lines, "", name] if len(name) > _HEAD else lines


def _fact(label: str, text: str) -> str:
    return label.ljust(_LABEL) + text


def _begin_text(scene: Scene, span: Span) -> str:
    return time_in_step(scene, span.side, start_of(scene, span), step_of(scene, span))


def _kind(trace: Trace, span: Span) -> str:
    number = span.number
    if span.table == "device":
        kind = _KINDS.get(DeviceKind(int(trace.device.kind[number])), "span")
        return f"{kind} on {trace.device_label(int(trace.device.device[number]))} stream {trace.device.stream[number]}"
    if span.table == "host":
        thread = trace.threads[int(trace.host.thread[number])]
        kind = _HOST_KINDS.get(HostKind(int(trace.host.kind[number])), "span")
        return f"{kind} on the {thread.role} thread" + (f" ({one_column_each(thread.name)})" if thread.name else "")
    return {"phases": "phase", "batches": "input pipeline", "collectives": "collective", "parts": "part of a phase"}[span.table]


def _of_device(scene: Scene, span: Span, trace: Trace, number: int) -> list[str]:
    spans, host = trace.device, trace.host
    lines = []
    if spans.bytes[number] != NONE:
        size, took_ns = int(spans.bytes[number]), int(spans.duration_ns[number])
        rate = f", {size / took_ns:.1f} GB/s" if took_ns else ""
        lines.append(_fact("bytes", f"{size_text(size)}{rate}"))
    lines += _launch_config(trace.strings[int(spans.config[number])])
    lines.append(_fact("origin", _ORIGINS[Origin(int(spans.origin[number]))]))
    launch = int(spans.launch[number])
    if launch == NONE:
        return [*lines, _fact("launched by", "unknown: not recorded")]
    waited_ns = int(spans.start_ns[number]) - int(host.start_ns[launch])
    op = int(op_of(trace)[number])
    by = op if op != NONE else launch
    lines.append(_fact("launched by", f"{one_column_each(trace.strings[int(host.name[by])])}, {time_text(waited_ns)} before"))
    lines += _compiled(trace, number)
    has_own_rate = op == NONE or spans.bytes[number] != NONE
    return lines + _shapes(trace, by) + ([] if has_own_rate else _rate(scene, span.side, op)) + _position(trace, by)


def _compiled(trace: Trace, number: int) -> list[str]:
    rank = trace.devices[int(trace.device.device[number])].rank
    calls = (call for call in region_calls(trace, rank) if number in call.work)
    lines = [_fact("region", f"{call.region}{', backward' if call.is_backward else ''}") for call in calls]
    graph, node = int(trace.device.graph[number]), int(trace.device.graph_node[number])
    return lines if graph == NONE else [*lines, _fact("CUDA graph", f"{graph}{'' if node == NONE else f', node {node}'}")]


def _launch_config(text: str) -> list[str]:
    try:
        args = config_args(text)
    except ValueError:
        return []
    dims = {"grid": args.get("grid"), "block": args.get("block")}
    sizes = [f"{word} {'x'.join(map(str, of))}" for word, of in dims.items() if of is not None]
    lines = [_fact("launch", ", ".join(sizes))] if sizes else []
    rest = [f"{args['registers per thread']} registers per thread"] if "registers per thread" in args else []
    rest += [f"{size_text(args['shared memory'])} shared memory"] if "shared memory" in args else []
    lines += [_fact("takes", ", ".join(rest))] if rest else []
    achieved, theoretical = args.get("est. achieved occupancy %"), args.get("theoretical occupancy %")
    shares = {"achieved, estimated by the profiler": achieved, "theoretical": theoretical}
    return lines + [_fact("occupancy", f"{share} % {word}") for word, share in shares.items() if share is not None]


def _rate(scene: Scene, side: int, op: int) -> list[str]:
    trace = scene.traces[side]
    kind, shapes = canonical_op(trace.strings[int(trace.host.name[op])]), trace.strings[int(trace.host.shapes[op])]
    row = scene.rates[side].get((kind, compared_text(kind, shapes)))
    if row is None:
        return []
    found = []
    for word, value, share in (("TFLOP/s", row.tflops, row.flops_share), ("GB/s", row.gbps, row.bytes_share)):
        if value is not None:
            most = "at most " if word == "TFLOP/s" and row.flops_bounded else ""
            of_peak = f", {share_text(share)} of the card's peak" if share is not None else ""
            of_peak += ": the algorithm needs fewer operations" if share is not None and share > 1 else ""
            found.append(f"{most}{value:.1f} {word}{of_peak}")
    return [_fact("achieves" if not n else "", text) for n, text in enumerate(found)]


def _position(trace: Trace, number: int) -> list[str]:
    modules, stack = modules_and_stack(trace, number)
    lines = [_fact("module", one_column_each(" > ".join(modules)))] if modules else []
    return lines + [_fact("called from" if not n else "", one_column_each(frame)) for n, frame in enumerate(stack[:_FRAMES])]


def _of_host(scene: Scene, span: Span, trace: Trace, number: int) -> list[str]:
    lines = _shapes(trace, number)
    launched = launched_rows(trace, number)
    if len(launched):
        spent = time_text(int(trace.device.duration_ns[launched].sum()))
        lines.append(_fact("GPU work", f"{spent} in {count_text(len(launched))} kernels and copies"))
    return lines + _rate(scene, span.side, number) + _position(trace, number)


def _shapes(trace: Trace, number: int) -> list[str]:
    shapes = trace.strings[int(trace.host.shapes[number])]
    dtypes = trace.strings[int(trace.host.dtypes[number])]
    lines = [_fact("shapes", shapes.replace(",", "x").replace(";", " "))] if shapes else []
    return lines + ([_fact("dtypes", " ".join(dict.fromkeys(dtypes.split(";"))))] if dtypes else [])


def _of_phase(scene: Scene, span: Span, trace: Trace, number: int) -> list[str]:
    phases = trace.phases
    begin_ns, end_ns = int(phases.device_start_ns[number]), int(phases.device_end_ns[number])
    origin = Origin(int(phases.origin[number]))
    lines = [] if origin in (Origin.MEASURED, Origin.EXACT) else [_fact("origin", _ORIGINS[origin])]
    return [_fact("on the GPU", time_text(end_ns - begin_ns)), *lines] if NONE not in (begin_ns, end_ns) else lines


def _of_batch(scene: Scene, span: Span, trace: Trace, number: int) -> list[str]:
    size = int(trace.batches.bytes[number])
    return [_fact("bytes", size_text(size))] if size != NONE else []


def _of_collective(scene: Scene, span: Span, trace: Trace, number: int) -> list[str]:
    spans = trace.collectives
    texts = (("dtype", spans.dtype), ("group", spans.group), ("backend", spans.backend))
    lines = [_fact(label, trace.strings[int(column[number])]) for label, column in texts if column[number] != NONE]
    if spans.bytes[number] != NONE:
        lines.append(_fact("bytes", size_text(int(spans.bytes[number]))))
    if spans.group_size[number] != NONE:
        lines.append(_fact("ranks", str(spans.group_size[number])))
    ending = _ENDINGS.get(Ending(int(spans.ending[number])))
    return [*lines, _fact("its end", ending)] if ending else lines


def _of_part(scene: Scene, span: Span, trace: Trace, number: int) -> list[str]:
    return [_fact("origin", _ORIGINS[Origin(int(trace.parts.origin[number]))])]


_FACTS = {
    "device": _of_device,
    "host": _of_host,
    "phases": _of_phase,
    "batches": _of_batch,
    "collectives": _of_collective,
    "parts": _of_part,
}


def _counterpart(scene: Scene, other: Span, duration_ns: int, called: str) -> list[str]:
    theirs_ns = duration_of(scene, other)
    recorded_ns, replayed_ns = (theirs_ns, duration_ns) if other.side == 0 else (duration_ns, theirs_ns)
    error = replayed_ns / recorded_ns - 1 if recorded_ns else None
    name = "" if name_of(scene, other) == called else f" {one_column_each(name_of(scene, other))}"
    return [
        f"Counterpart, {scene.words[other.side]}:{name}",
        _fact("begins", _begin_text(scene, other)),
        _fact("lasts", time_text(theirs_ns)),
        _fact("change", f"{time_text(replayed_ns - recorded_ns, signed=True)} ({error_text(error)})"),
    ]
