"""Compares the statistics of trace-replay and of other tools, for the recordings in a folder. The benchmark explains
differences above 0.5 %.

The other tools are HolisticTraceAnalysis and TraceLens. HolisticTraceAnalysis runs during the benchmark. TraceLens stores its
reports `gpu_timeline`, `ops_summary` and `unified_perf_summary` beside its recordings, as CSV files or as sheets of an .xlsx
file.

Most differences are explained by different definitions of a statistic. An explanation is accepted only if the statistic,
computed by the other tool's definition, agrees within 0.5 %. All other differences are marked UNEXPLAINED, and the exit code is
1.

    python benchmarks/peers.py FOLDER [FOLDER ...] [--no-hta] [--only WORD] [--json peers.json]
    python benchmarks/peers.py FOLDER --ahead     # recordings whose host runs ahead: our pace and the oracle's

The output is Markdown, as in docs/peers.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import re
import sys
import warnings
import zipfile
from ast import literal_eval
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.traces import oracle, raw_events  # noqa: E402
from traces.analyses.communication import communication, communication_kernels  # noqa: E402
from traces.analyses.idle import idle_times  # noqa: E402
from traces.figures.measure import backlog, busy_ns, op_of, steady_steps, work_rows  # noqa: E402
from traces.figures.pace import pace, step_times  # noqa: E402
from traces.kineto import read_kineto  # noqa: E402
from traces.kineto.reading.eras import DTYPES  # noqa: E402
from traces.model.intervals import Intervals  # noqa: E402
from traces.model.trace import NONE, Column, DeviceKind, Trace, TraceError, shapes_text  # noqa: E402
from traces.names.equivalent_ops import canonical_op  # noqa: E402
from traces.rates.achieved_rates import achieved, compared_text  # noqa: E402
from traces.rates.op_cost import itemsize  # noqa: E402
from traces.rates.op_traffic import is_inductor_kernel  # noqa: E402

LIMIT = 0.005  # relative difference above which a row needs an explanation
_LEAST_SHARE = 0.01  # share of the GPU time; ops with a smaller share are not listed
_LEAST_NS = 10_000  # shorter times are not compared
_LEAST_FLOPS, _LEAST_BYTES = 1e7, 2**20  # smaller shares are not compared
_AHEAD_SHARE = 0.1  # share of the pace; the host runs ahead if it ends a step this much earlier than the device

_GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}

Sheet = list[dict[str, str]]


@dataclass(frozen=True)
class Row:
    """Contains one statistic of one recording. The field `why` explains a difference, or is empty."""

    recording: str
    peer: str
    figure: str
    ours: float
    theirs: float
    unit: str
    why: str

    @property
    def difference(self) -> float:
        return self.ours / self.theirs - 1 if self.theirs else float(self.ours != 0)

    @property
    def agrees(self) -> bool:
        """Return True if two values agree within 0.5 % or, for times, within one microsecond."""
        return abs(self.difference) <= LIMIT or (self.unit == "ms" and abs(self.ours - self.theirs) <= 0.001)


UNEXPLAINED = "UNEXPLAINED"
Variant = tuple[str, Callable[[], float]]  # (difference between the definitions, our value by the other tool's definition)


def compared(recording: str, peer: str, figure: str, unit: str, ours: float, theirs: float, variants: list[Variant]) -> Row:
    """Return our value and the other tool's value by the first definition for which both agree."""
    found = Row(recording, peer, figure, ours, theirs, unit, "")
    if found.agrees:
        return found
    for why, other in variants:
        if replace(found, ours=other()).agrees:
            return replace(found, why=why)
    return replace(found, why=UNEXPLAINED)


# --- our figures, by our definitions and by those of others


def union_ns(trace: Trace, mask: Column) -> int:
    """Return the total busy time of the work in a mask, summed over devices."""
    return sum(_intervals(trace, mask & (trace.device.device == device)).total_ns for device in _devices(trace, mask))


def gaps_ns(trace: Trace, mask: Column) -> int:
    """Return the idle time between the first and the last work in a mask, summed over devices."""
    total = 0
    for device in _devices(trace, mask):
        busy = _intervals(trace, mask & (trace.device.device == device))
        total += int(busy.end_ns[-1] - busy.start_ns[0]) - busy.total_ns
    return total


def exposed_ns(trace: Trace, mask: Column, hidden_by: Column) -> int:
    """Return the time in which a device runs communication in a mask, but no work of `hidden_by`."""
    sends = communication_kernels(trace) & mask
    total = 0
    for device in _devices(trace, sends):
        here = trace.device.device == device
        communicating, other = _intervals(trace, here & sends), _intervals(trace, here & hidden_by & ~sends)
        total += communicating.total_ns - int(other.within(communicating.start_ns, communicating.end_ns).sum())
    return total


def _intervals(trace: Trace, mask: Column) -> Intervals:
    return Intervals(trace.device.start_ns[mask], trace.device.end_ns[mask])


def _devices(trace: Trace, mask: Column) -> list[int]:
    return [int(device) for device in np.unique(trace.device.device[mask])]


def op_times(trace: Trace, mask: Column) -> dict[str, float]:
    """Return the nanoseconds of GPU work that each op launched directly, by op name."""
    rows = work_rows(trace)
    rows = rows[mask[rows]]
    op = op_of(trace)[rows]
    rows, op = rows[op >= 0], op[op >= 0]
    sums = np.bincount(trace.host.name[op], weights=trace.device.duration_ns[rows], minlength=len(trace.strings))
    return {trace.strings[int(name)]: float(sums[name]) for name in np.flatnonzero(sums)}


# --- reports of TraceLens


def reports(path: Path) -> dict[str, Sheet]:
    """Return the sheets beside a recording by name, or an empty dictionary if there are none."""
    stem = path.name.partition(".json")[0]
    folders = [folder for folder in sorted(path.parent.glob("*perf_report_csvs")) if folder.name.startswith(stem)]
    for folder in [*folders, path.parent / "perf_csvs"]:
        if folder.is_dir():
            return {file.stem: _csv(file) for file in sorted(folder.glob("*.csv"))}
    books = [file for file in sorted(path.parent.glob("*.xlsx")) if file.name.startswith((stem, "perf_report"))]
    return _workbook(books[0]) if books else {}


def _csv(file: Path) -> Sheet:
    csv.field_size_limit(1 << 30)
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _workbook(file: Path) -> dict[str, Sheet]:
    """Return the sheets of an .xlsx file, with the column names of the first row as keys."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    found: dict[str, Sheet] = {}
    with zipfile.ZipFile(file) as book:
        shared: list[str] = []
        if "xl/sharedStrings.xml" in book.namelist():
            root = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))
            shared = ["".join(part.text or "" for part in item.iter(f"{space}t")) for item in root.iter(f"{space}si")]
        names = [sheet.get("name", "") for sheet in ElementTree.fromstring(book.read("xl/workbook.xml")).iter(f"{space}sheet")]
        for number, name in enumerate(names, 1):
            rows: list[dict[str, str]] = []
            for row in ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml")).iter(f"{space}row"):
                cells = {}
                for cell in row.iter(f"{space}c"):
                    text = "".join(part.text or "" for part in cell.iter() if part.tag in (f"{space}v", f"{space}t"))
                    column = re.sub(r"\d", "", cell.get("r", ""))
                    cells[column] = shared[int(text)] if cell.get("t") == "s" else text
                rows.append(cells)
            if rows:
                heads = rows[0]
                found[name] = [{heads[column]: text for column, text in row.items() if column in heads} for row in rows[1:]]
    return found


def against_reports(path: Path, name: str, trace: Trace) -> Iterator[Row]:
    sheets, peer = reports(path), "TraceLens"
    work, known = trace.device.is_work, launched(trace)
    kernels = trace.device.kind == DeviceKind.KERNEL
    left_out = "The other tool leaves out work without a recorded launch."
    timeline: dict[str, list[float]] = {}
    for line in sheets.get("gpu_timeline", []):
        timeline.setdefault(line["type"], []).append(1e6 * float(line["time ms"]))
    if "busy_time" in timeline:
        busy = timeline["busy_time"]
        # Reports about activation recomputation list recomputed work separately, although it may overlap with other work.
        apart = [*busy, 0.0][1]
        inside = busy[0] * (1 - LIMIT) <= union_ns(trace, known) <= (busy[0] + apart) * (1 + LIMIT)
        recomputed: list[Variant] = []
        if apart and inside:
            why = f"The other tool lists recomputed work separately. {left_out}"
            recomputed = [(why, lambda: busy[0])]
        first_kernel = trace.device.start_ns[kernels].min(initial=2**62)
        not_first = work & (kernels | (trace.device.start_ns >= first_kernel))
        no_sets = work & (trace.device.kind != DeviceKind.MEMSET)
        variants: list[Variant] = [
            (left_out, lambda: union_ns(trace, known)),
            ("The other tool leaves out memsets.", lambda: union_ns(trace, no_sets)),
            ("The other tool leaves out copies before the first kernel.", lambda: union_ns(trace, not_first)),
            *recomputed,
        ]
        yield compared(name, peer, "busy", "ms", union_ns(trace, work) / 1e6, busy[0] / 1e6, _in_ms(variants))
        idle = timeline["idle_time"][0]
        first_to_last = (
            "The other tool measures from the first to the last GPU work. We measure from the start of the first step to the"
            " end of the last step, and leave out the first step if the GPU usually has queued work."
        )
        idle_variants: list[Variant] = [
            (first_to_last, lambda: gaps_ns(trace, work)),
            (f"{first_to_last} {left_out}", lambda: gaps_ns(trace, known)),
            ("The other tool measures from the first kernel.", lambda: gaps_ns(trace, not_first)),
        ]
        if recomputed:
            idle_variants.append((recomputed[0][0], lambda: idle))
        ours = sum(of.idle_ns for of in idle_times(trace).values())
        if max(idle, ours) >= _LEAST_NS:
            yield compared(name, peer, "idle", "ms", ours / 1e6, idle / 1e6, _in_ms(idle_variants))
        exposed = timeline["exposed_comm_time"][0]
        if exposed or communication(trace).exposed_ns:
            comm_variants: list[Variant] = [
                (left_out, lambda: exposed_ns(trace, known, work)),
                (
                    "In the other tool, only kernels can hide communication. Copies cannot.",
                    lambda: exposed_ns(trace, work, work & kernels),
                ),
                (
                    f"In the other tool, only kernels hide communication. {left_out}",
                    lambda: exposed_ns(trace, known, known & kernels),
                ),
            ]
            ours = communication(trace).exposed_ns
            least = exposed_ns(trace, known, known)
            if apart and least <= exposed <= least + apart:
                comm_variants.append(
                    (f"In the other tool, recomputed work does not hide communication. {left_out}", lambda: exposed)
                )
            yield compared(name, peer, "exposed communication", "ms", ours / 1e6, exposed / 1e6, _in_ms(comm_variants))
    yield from _ops(sheets, name, trace, (path.parent / "capture_traces").is_dir())
    yield from _op_costs(sheets, name, trace)


def _in_ms(variants: list[Variant]) -> list[Variant]:
    return [(why, lambda of=of: of() / 1e6) for why, of in variants]  # type: ignore[misc]


def launched(trace: Trace) -> Column:
    """Return a mask of the GPU work with a recorded launch call."""
    return np.asarray(trace.device.is_work & (trace.device.launch != NONE))


def _ops(sheets: dict[str, Sheet], name: str, trace: Trace, has_captures: bool) -> Iterator[Row]:
    """Return the GPU time by op, for ops with at least 1 % of the GPU time."""
    theirs: dict[str, float] = {}
    for line in sheets.get("ops_summary", []):
        theirs[line["name"]] = theirs.get(line["name"], 0.0) + 1e3 * float(line["total_direct_kernel_time_sum"])
    work = trace.device.is_work
    ours, without_sets = op_times(trace, work), op_times(trace, work & (trace.device.kind != DeviceKind.MEMSET))
    launch, count = trace.device.launch, np.bincount(trace.device.launch[launched(trace)], minlength=len(trace.host))
    graphs = launched(trace) & (count[launch] > 1) if len(trace.host) else work & False
    in_graphs_ns = float(trace.device.duration_ns[graphs].sum())
    captured = (
        "The other tool finds the ops of a CUDA graph's kernels in a second recording, made during the capture."
        if has_captures
        else ""
    )
    for op, time_ns in theirs.items():
        if time_ns < max(_LEAST_SHARE * sum(theirs.values()), _LEAST_NS):
            continue
        variants: list[Variant] = [
            ("The other tool does not count memsets as part of the op.", lambda op=op: without_sets.get(op, 0.0)),  # type: ignore[misc]
        ]
        if in_graphs_ns >= time_ns - ours.get(op, 0.0) > 0 and captured:
            variants.append((captured, lambda t=time_ns: t))  # type: ignore[misc]
        if op not in ours:
            variants.append(("Not an op of the recording: the other tool groups kernels under new names.", lambda t=time_ns: t))  # type: ignore[misc]
        yield compared(name, "TraceLens", f"time of {op}", "ms", ours.get(op, 0.0) / 1e6, time_ns / 1e6, _in_ms(variants))


def _op_costs(sheets: dict[str, Sheet], name: str, trace: Trace) -> Iterator[Row]:
    """Return FLOPs and bytes of all calls of each op, for shapes that both tools report and for which our values are
    complete."""
    ours = {(row.op, row.shapes): row for row in achieved(trace, by_shape=True) if row.shapes}
    sums: dict[tuple[str, str], _CostSum] = {}
    for line in sheets.get("unified_perf_summary", []):
        call = _ReportedCall.of(line)
        row = None if call is None else ours.get((call.op, compared_text(call.op, shapes_text(call.shapes))))
        if call is None or row is None or not call.calls:
            continue
        known_flops = row.flops if row.flops_ns == row.device_ns else None
        known_bytes = row.bytes if row.bytes_ns == row.device_ns else None
        for figure, column, factor, own in (
            ("FLOPs", "GFLOPS", 1e9, known_flops),
            ("bytes", "Data Moved (MB)", 2**20, known_bytes),
        ):
            if line.get(column) and float(line[column]) and own:
                of = sums.setdefault((call.op, figure), _CostSum())
                of.ours += call.calls * own / row.calls
                of.theirs += call.calls * factor * float(line[column])
                for why, cost in (call.flops_there() if figure == "FLOPs" else call.bytes_there()).items():
                    of.by_definition[why] = of.by_definition.get(why, 0.0) + call.calls * cost
                of.calls.append((call, call.calls * factor * float(line[column]), call.calls * own / row.calls))
    for (op, figure), of in sums.items():
        unit, scale, least = ("GFLOP", 1e9, _LEAST_FLOPS) if figure == "FLOPs" else ("MiB", 2**20, _LEAST_BYTES)
        if max(of.ours, of.theirs) < least:
            continue
        # A definition is accepted only if it gives the value that the other tool reports.
        known = [why for why, cost in of.by_definition.items() if abs(cost - of.theirs) <= LIMIT * of.theirs]
        variants: list[Variant] = [(why, lambda theirs=of.theirs / scale: theirs) for why in known]  # type: ignore[misc]
        yield compared(name, "TraceLens", f"{figure} of {op}", unit, of.ours / scale, of.theirs / scale, variants)


@dataclass
class _CostSum:
    ours: float = 0.0
    theirs: float = 0.0
    by_definition: dict[str, float] = field(default_factory=dict)  # maps the description of each known definition to its value
    calls: list[tuple[_ReportedCall, float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class _ReportedCall:
    """Contains a row of the table `unified_perf_summary`, which describes the calls of an op with one combination of shapes."""

    op: str  # canonical name
    name: str
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]  # bytes per element of each input
    numbers: tuple[str, ...]  # recorded values of inputs that are not tensors
    calls: int
    model: dict[str, Any]  # parameters of the other tool's model of the op

    @classmethod
    def of(cls, line: dict[str, str]) -> _ReportedCall | None:
        try:
            shapes = tuple(tuple(int(size) for size in shape) for shape in literal_eval(line["Input Dims"]))
            types = [DTYPES.get(text, "") for text in literal_eval(line["Input type"])]
            numbers = tuple(str(text) for text in literal_eval(line["Concrete Inputs"]))
            calls = int(float(line["operation_count"]))
        except (ValueError, SyntaxError, TypeError, KeyError):
            return None
        sizes = tuple(itemsize(kind) if kind else 0 for kind in types)
        try:
            model = dict(literal_eval(line.get("perf_params") or "{}"))
        except (ValueError, SyntaxError):
            model = {}
        return cls(canonical_op(line["name"]), line["name"], shapes, sizes, numbers, calls, model)

    @property
    def tensors(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the shape and the number of bytes of each input tensor with at least one dimension."""
        return [(shape, prod(shape) * size) for shape, size in zip(self.shapes, self.sizes, strict=False) if shape and size]

    def flops_there(self) -> dict[str, float]:
        """Return the FLOPs of one call by the other tool's definitions, each with a description of the difference."""
        wide = [shape for shape, _ in self.tensors if len(shape) > 1]
        if self.op == "addmm" and len(wide) >= 2:
            product = 2 * prod(wide[-2]) * wide[-1][-1]
            return {"The other tool adds one operation per element for the bias.": product + prod(wide[-2][:-1]) * wide[-1][-1]}
        return {}

    def bytes_there(self) -> dict[str, float]:
        """Return the bytes of one call by the other tool's definitions, each with a description of the difference."""
        tensors = self.tensors
        if not tensors:
            return {}
        total, largest = sum(size for _, size in tensors), max(size for _, size in tensors)
        found: dict[str, float] = {}
        if self.op == "copy":
            why = "The other tool counts all bytes of source and target, even if the source is on the host or is broadcast."
            sizes = [size for size in self.sizes if size]
            found[why] = prod(self.shapes[0]) * (sizes[0] + sizes[min(1, len(sizes) - 1)])
        if self.op == "convolution_backward" and len(tensors) > 2:
            gradient, image, weight = (size for _, size in tensors[:3])
            found["The other tool counts the gradient twice, once for each result."] = 2 * gradient + 2 * image + 2 * weight
        if self.op == "layer_norm":
            own = next((prod(literal_eval(text)) for text in self.numbers if text.startswith("[")), 0) * self.sizes[0]
            found["The other tool counts six parameters with the normalized shape, but the op has two or none."] = (
                2 * largest + 6 * own
            )
        if self.op == "layer_norm_backward":
            own = next((prod(literal_eval(text)) for text in self.numbers if text.startswith("[")), 0) * self.sizes[0]
            affine = sum(size == own for _, size in tensors[2:]) >= 2
            found["The other tool counts gradients of weight and bias, even if they do not exist."] = (
                3 * largest + (4 if affine else 1) * own
            )
        if self.op == "batch_norm_backward":
            channels = self.shapes[0][1] * self.sizes[0]
            trained = self.name.endswith("native_batch_norm_backward")
            words = "The other tool leaves out the input of MIOpen's ops."
            found[words] = 3 * largest + 4 * channels if trained else 2 * largest + channels
        if self.op == "div":
            found["The other tool counts all elements of an expanded input, but memory contains only one element per row."] = (
                2 * largest
            )
        if self.op == "rotary_embedding":
            rotated = sum(size for shape, size in tensors[1:-1])
            found["The other tool leaves out the positions, cosines and sines."] = 2 * rotated
        if {"c_sk", "g_sk", "H_KV", "d_h_qk", "d_h_v"} <= self.model.keys():
            tokens, of = self.model["c_sk"] + self.model["g_sk"], self.model
            cache = tokens * of["H_KV"] * (of["d_h_qk"] + of["d_h_v"]) * self.sizes[0]
            found["The other tool counts the cache of all tokens. The server annotates their number."] = (
                2 * tensors[0][1] + cache
            )
        if is_inductor_kernel(self.name):
            elements = next((int(text) for text in reversed(self.numbers) if text.isdigit()), 0)  # size of the last dimension
            sizes = [size for size in self.sizes if size]
            found["The other tool counts all bytes of a tensor, even if a kernel reads only a part of the tensor."] = total
            alike = sum(
                prod(shape) * size for shape, size in zip(self.shapes, self.sizes, strict=False) if shape and size == sizes[0]
            )
            found["The other tool leaves out all tensors whose dtype differs from that of the first tensor."] = alike
            if self.name.startswith("triton_poi"):
                words = "The other tool counts all bytes of each tensor, and counts the output twice."
                found[words] = total + elements * sizes[-1]
        return found


# --- HolisticTraceAnalysis


def against_hta(path: Path, name: str, trace: Trace) -> Iterator[Row]:
    """Compare GPU time by kind of work, and the overlap of computation with communication, with Holistic Trace Analysis."""
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            analysis: Any = TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
            of = analysis.get_temporal_breakdown(visualize=False).iloc[0]
            theirs = {key: 1e3 * float(of[key]) for key in ("idle_time(us)", "kernel_time(us)")}
            taken = analysis.t.traces[0][analysis.t.traces[0].stream != -1]
            names = analysis.t.symbol_table.sym_table
            of_gpu = taken[[names[category] in _GPU_CATEGORIES for category in taken["cat"]]]
            rows = len(of_gpu)
            overlap = None
            if communication_kernels(trace).any():
                overlap = float(analysis.get_comm_comp_overlap(visualize=False).comp_comm_overlap_pctg.iloc[0])
        except Exception as error:  # the other tool may raise any exception
            print(f"HolisticTraceAnalysis cannot read {name}: {type(error).__name__}: {str(error)[:80]}", file=sys.stderr)
            return
        finally:
            logging.disable(logging.NOTSET)
    every = trace.device.is_work
    work = launched(trace) if rows == int(launched(trace).sum()) else every
    left_out = "" if work is every else " The other tool leaves out work without a recorded launch."
    truncated = f"The other tool truncates every time to whole microseconds.{left_out}"
    host_events = f"The other tool counts host events as GPU work if their arguments name a stream. {truncated}"
    first_to_last = (
        "The other tool measures from the first to the last GPU work. We measure from the start of the first step to the end"
        f" of the last step, and leave out the first step if the GPU usually has queued work.{left_out}"
    )
    # Holistic Trace Analysis computes these values from its own table, with and without host events.
    gpu, all_rows = _Truncated(of_gpu, names), _Truncated(taken, names)
    busy, idle, peer = theirs["kernel_time(us)"] - theirs["idle_time(us)"], theirs["idle_time(us)"], "HTA"
    busy_variants: list[Variant] = [
        (left_out.strip(), lambda: union_ns(trace, work)),
        (truncated, lambda: gpu.intervals().total_ns),
        (host_events, lambda: all_rows.intervals().total_ns),
    ]
    yield compared(name, peer, "busy", "ms", busy_ns(trace) / 1e6, busy / 1e6, _in_ms(busy_variants))
    idle_variants: list[Variant] = [
        (first_to_last, lambda: gaps_ns(trace, work)),
        (f"{first_to_last} The other tool truncates every time to whole microseconds.", lambda: gpu.gaps_ns),
        (host_events, lambda: all_rows.gaps_ns),
    ]
    ours = sum(of.idle_ns for of in idle_times(trace).values())
    yield compared(name, peer, "idle", "ms", ours / 1e6, idle / 1e6, _in_ms(idle_variants))
    sends = communication_kernels(trace) & work
    if overlap is not None and sends.any():
        kernels = trace.device.kind == DeviceKind.KERNEL
        sent_ns = union_ns(trace, sends)
        exposed = (1 - overlap / 100) * sent_ns  # HTA reports only the share of the time
        only_kernels = "In the other tool, only kernels can hide communication. Copies cannot."
        ours = communication(trace).exposed_ns
        comm_variants: list[Variant] = [
            (f"{only_kernels}{left_out}", lambda: exposed_ns(trace, work, work & kernels)),
            (f"{only_kernels} {truncated}", lambda: gpu.exposed_share * sent_ns),
            (f"{only_kernels} {host_events}", lambda: all_rows.exposed_share * sent_ns),
        ]
        yield compared(name, peer, "exposed communication", "ms", ours / 1e6, exposed / 1e6, _in_ms(comm_variants))


class _Truncated:
    """Compare values from a table of Holistic Trace Analysis, which contains times in whole microseconds."""

    def __init__(self, rows: Any, texts: list[str]) -> None:
        self.start_ns = (1e3 * rows["ts"].to_numpy()).astype("i8")
        self.end_ns = self.start_ns + (1e3 * rows["dur"].to_numpy()).astype("i8")
        self.names = [texts[name] for name in rows["name"]]

    def intervals(self, mask: Column | None = None) -> Intervals:
        mask = np.ones(len(self.names), bool) if mask is None else mask
        return Intervals(self.start_ns[mask], self.end_ns[mask])

    @property
    def gaps_ns(self) -> float:
        return float(self.end_ns.max() - self.start_ns.min() - self.intervals().total_ns)

    @property
    def exposed_share(self) -> float:
        """Return the communication that nothing overlaps, as a fraction of all communication."""
        sends = np.array(["nccl" in name.lower() for name in self.names])
        copies = np.array([name.startswith(("Memcpy", "Memset")) for name in self.names])
        sent, other = self.intervals(sends), self.intervals(~sends & ~copies)
        return 1 - int(other.within(sent.start_ns, sent.end_ns).sum()) / sent.total_ns


# --- output


def recordings(folders: list[Path], only: str) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.json*")):
            if path.suffix in (".json", ".gz") and only in str(path) and "broken" not in path.parts:
                yield str(path.relative_to(folder)).partition(".json")[0], path


def figure_text(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def print_rows(rows: list[Row], all_rows: bool) -> None:
    """Print how many values agree, the differences with the numbers of their reasons, and a list of the reasons."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.peer, row.figure.partition(" of ")[0]), []).append(row)
    print("| peer | figure | compared | agree within 0.5 % | differ by definition | unexplained |")
    print("|---|---|--:|--:|--:|--:|")
    for (peer, kind), own in kinds.items():
        agree, unexplained = sum(row.agrees for row in own), sum(row.why == UNEXPLAINED for row in own)
        print(f"| {peer} | {kind} | {len(own)} | {agree} | {len(own) - agree - unexplained} | {unexplained} |")
    shown = rows if all_rows else [row for row in rows if not row.agrees]
    reasons = list(dict.fromkeys((row.peer, row.why) for row in shown if row.why and row.why != UNEXPLAINED))
    print("\n| recording | peer | figure | ours | theirs | difference | why |\n|---|---|---|--:|--:|--:|---|")
    for row in shown:
        why = f"({reasons.index((row.peer, row.why)) + 1})" if (row.peer, row.why) in reasons else row.why
        figures = f"{figure_text(row.ours)} | {figure_text(row.theirs)} {row.unit}"
        print(f"| {row.recording} | {row.peer} | {row.figure} | {figures} | {100 * row.difference:+.1f} % | {why} |")
    print("\n| number | reason |\n|---|---|")
    for number, (peer, why) in enumerate(reasons, 1):
        print(f"| ({number}) | {why.replace('The other tool', peer).replace('the other tool', peer)} |")


def ahead(name: str, path: Path, trace: Trace) -> dict[str, Any] | None:
    """Return the step time and the GPU time from both tools if the host runs ahead of the GPU, or else None."""
    of = pace(trace)
    if of is None or of.device_ns is None:
        return None
    times = step_times(trace)
    lags = [done - times.host_end_ns for done in times.completion_ns.values() if (done != NONE).any()]
    lag_ns = max((int(lag[lag > -(2**60)].max()) for lag in lags), default=0)
    if lag_ns < _AHEAD_SHARE * of.pace_ns:
        return None
    raw = raw_events.read(path)
    order = np.argsort(trace.steps.start_ns, kind="stable")
    table = trace.steps
    steps = [raw_events.Step(int(table.number[row]), int(table.start_ns[row]), int(table.end_ns[row])) for row in order]
    place = {int(row): at for at, row in enumerate(order)}
    steady = [place[int(row)] for row in steady_steps(trace)]
    found = oracle.figures(raw, steps, steady, table.kind[order].tolist())
    ours = {"pace": of.pace_ns, "host": of.host_ns, "device": of.device_ns, "busy": busy_ns(trace)}
    theirs = {"pace": found.pace_ns, "host": found.host_pace_ns, "device": found.device_pace_ns, "busy": oracle.busy_ns(raw)}
    gpu = float(np.median(times.gpu_time_ns[steady_steps(trace)]))
    theirs["GPU time"] = float(np.median([found.gpu_ns[at] for at in steady]))
    figures = {"ours": ours | {"GPU time": gpu}, "oracle": theirs, "lag": lag_ns, "limit": of.limit}
    return {"recording": name, "steps": len(steps), "backlog": int(backlog(trace).sum()), **figures}


def print_ahead(found: list[dict[str, Any]]) -> None:
    print("| recording | steps | host ahead by | figure | pace | host | device | GPU time of a step | busy |")
    print("|---|--:|--:|---|--:|--:|--:|--:|--:|")
    for row in found:
        for whose in ("ours", "oracle"):
            of = row[whose]
            figures = " | ".join(f"{of[key] / 1e6:,.3f}" for key in ("pace", "host", "device", "GPU time", "busy"))
            lead = f"{row['recording']} | {row['steps']} | {row['lag'] / 1e6:,.1f} ms" if whose == "ours" else " | | "
            print(f"| {lead} | {whose} | {figures} |")
    same = sum(all(abs(row["ours"][key] - row["oracle"][key]) <= 1 for key in row["ours"]) for row in found)
    print("\nAll times are in milliseconds. Rows `ours` contain the times of trace-replay, and rows `oracle` the times of"
        f" `oracle.py`. In {same} of {len(found)} recordings, the times of trace-replay and of `oracle.py` differ by at most"
        " 1 ns.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--no-hta", action="store_true", help="leave out HolisticTraceAnalysis, which takes most of the time")
    parser.add_argument("--only", default="", metavar="WORD", help="only recordings whose path contains this")
    parser.add_argument("--all", action="store_true", help="list the figures that agree too")
    parser.add_argument(
        "--ahead", action="store_true", help="the pace of recordings whose host runs ahead, beside the oracle's"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    rows: list[Row] = []
    leading: list[dict[str, Any]] = []
    for name, path in recordings(args.folders, args.only):
        try:
            trace = read_kineto(path)
        except TraceError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if not trace.device.is_work.any():
            continue
        if args.ahead:
            found = ahead(name, path, trace)
            leading += [found] if found else []
            continue
        rows += against_reports(path, name, trace)
        if not args.no_hta:
            rows += against_hta(path, name, trace)
    if args.ahead:
        print_ahead(leading)
    else:
        print_rows(rows, args.all)
    if args.json:
        args.json.write_text(json.dumps(leading if args.ahead else [asdict(row) for row in rows], indent=1))
    return int(any(row.why == UNEXPLAINED for row in rows))


if __name__ == "__main__":
    sys.exit(main())
