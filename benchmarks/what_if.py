"""Measures the errors of predictions for the table in docs/what_if.md.

    python benchmarks/what_if.py ../shared/published ../shared/traces [--rows gpu,links,...] [--json what_if.json]

Rows: `gpu` (other GPUs), `unseen` (their tables hidden), `network` (other networks on the V100), `batch`, `networks_batch`,
`folds` (the same, with constants chosen by other networks), `other_boards` (the same on other GPUs), `forward` (a public
model's forward pass at other batches), `links` (all-reduce), `dataparallel`. The benchmark predicts with the commands of
`trace`, and reads the measurements from the folder of published measurements. The rows `network`, `networks_batch` and
`dataparallel` need an interpreter with torchvision (`--python`). These rows take some seconds per network and batch size.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import os
import re
import sys
import tempfile
from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cost_tables import all_reduce_rows, efficiency, write_all_reduce  # noqa: E402
from benchmarks.replays import run_replay  # noqa: E402
from benchmarks.what_if_recordings import RecordedOp, ops_of, training_recording  # noqa: E402
from replayer.cost_model import all_reduce_curve, constants, op_costs  # noqa: E402
from replayer.cost_model.collective_costs import CollectiveCosts  # noqa: E402
from replayer.cost_model.efficiency import ELSEWHERE  # noqa: E402
from replayer.prediction.conditions import Conditions  # noqa: E402
from replayer.prediction.predict import Predictor, predict  # noqa: E402
from traces.figures.measure import busy_ns  # noqa: E402
from traces.format.trace_file import load, save  # noqa: E402
from traces.kineto import read_kineto  # noqa: E402
from traces.model.trace import Device, DeviceKind, DeviceSpans, HostKind, HostSpans, Thread, Trace, shapes_text  # noqa: E402
from traces.names.cards import card_of  # noqa: E402
from traces.rates.estimate_errors import TABLE  # noqa: E402
from traces.rates.op_cost import itemsize  # noqa: E402
from tui.cli import run as run_command  # noqa: E402

PROGRAM = Path(__file__).parent / "programs" / "torchvision_train.py"
BOARD = "Tesla V100-PCIE-32GB"  # GPEmu's V100 is the PCIe card
HOST_SPEED = 4  # the host was recorded with Python stacks, which made it slower

_LAUNCHED_MS = 0.02  # shorter calls launch nothing, for example views


@dataclass
class Case:
    """Contains one prediction and the corresponding measurement, in any unit."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass
class Row:
    title: str
    goal: str
    cases: list[Case]
    figure: str = "mean"

    @property
    def spread(self) -> float:
        errors = [abs(case.error) for case in self.cases]
        return median(errors) if self.figure == "median" else mean(errors)

    def text(self) -> str:
        errors = [case.error for case in self.cases]
        worst = max(self.cases, key=lambda case: abs(case.error))
        figures = f"{self.figure} {self.spread:.1%} | {mean(errors):+.1%} | {worst.error:+.1%} ({worst.name})"
        return f"| {self.title} | {len(errors)} | {figures} | {self.goal} |"


def command(*words: str) -> dict[str, Any]:
    """Run a `trace` command with `--json`, and return its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run_command([*words, "--json"])
    if code:
        sys.exit(f"trace {' '.join(words)} failed with exit code {code}")
    facts: dict[str, Any] = json.loads(out.getvalue())
    return facts


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


# --- whole models on other GPUs (NeuSight's labels)


def models(published: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Return the traced ops by run and GPU."""
    found: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for row in rows_of(published / "neusight_labels_ops.csv.gz"):
        found[row["run"], row["gpu"].replace("_", " ")].append(row)
    return found


def whole_ms(published: Path) -> dict[tuple[str, str], tuple[float, int]]:
    """Return the total time in ms and the number of layers, by run and GPU."""
    found = {}
    for row in rows_of(published / "neusight_labels_e2e.csv.gz"):
        facts = json.loads(row["json"])
        found[row["run"], row["gpu"].replace("_", " ")] = float(facts["e2e_latency"]), int(facts.get("num_layer") or 0)
    return found


def recording_of(rows: list[dict[str, str]], layers: int, total_ms: float, gpu: str) -> Trace:
    """Build a recording of a model from its traced ops. The ops of the traced layer are repeated for each layer."""
    in_layer = [i for i, row in enumerate(rows) if re.search(r"(\.h|layers?)\.0\.", row["target"])]
    first, last = (in_layer[0], in_layer[-1] + 1) if in_layer else (0, -1)
    ops: list[tuple[str, tuple[tuple[int, ...], ...], float]] = []
    for i, row in enumerate(rows):
        times = layers if first <= i <= last else 1
        for name, shapes, ms in _ops(row):
            ops += [(name, shapes, ms)] * times
    scale = total_ms / sum(ms for _, _, ms in ops)
    trace = Trace(devices=[Device(0, 0, gpu)], threads=[Thread(0, 0, "main")])
    durations = [max(int(ms * scale * 1e6), 1) for _, _, ms in ops]
    starts = np.concatenate(([0], np.cumsum(durations)[:-1])) + 1_000_000
    strings = trace.strings
    count = len(ops)
    launches = np.arange(count) * 1_000
    dtype = strings.add("float32")
    trace.host = HostSpans.of(
        thread=[0] * count, kind=[HostKind.OP] * count, name=[strings.add(name) for name, _, _ in ops], start_ns=launches,
        duration_ns=[500] * count, shapes=[strings.add(shapes_text(shapes)) for _, shapes, _ in ops], dtypes=[dtype] * count,
    )  # fmt: skip
    trace.device = DeviceSpans.of(
        device=[0] * count, stream=[7] * count, kind=[DeviceKind.KERNEL] * count, name=[strings.add("kernel")] * count,
        start_ns=starts, duration_ns=durations, launch=np.arange(count),
    )  # fmt: skip
    return trace


_FUNCTIONS = {
    "truediv": "div", "add": "add", "sub": "sub", "mul": "mul", "pow": "pow", "tanh": "tanh", "gelu": "gelu", "relu": "relu",
    "where": "where", "softmax": "softmax", "max": "maximum", "contiguous": "clone", "reshape": "clone",
    "masked_fill": "masked_fill",
}  # fmt: skip


def _ops(row: dict[str, str]) -> Iterator[tuple[str, tuple[tuple[int, ...], ...], float]]:
    """Return the PyTorch ops of a traced call with their times in ms. The backward pass is divided into its ops."""
    forward_ms, backward_ms = float(row["fw_ms"] or row["latency_ms"]), float(row["bw_ms"] or 0)
    if forward_ms <= _LAUNCHED_MS:
        return
    shapes = tuple(tuple(shape) for shape in literal_eval(row["input_shapes"]) if prod(shape) > 1)
    out = literal_eval(row["output_shape"])
    target, module = row["target"], row["op"] == "call_module"
    named = next((op for word, op in _FUNCTIONS.items() if re.search(rf"\b{word}\b|function {word}", target)), "")
    if "addmm" in target:
        yield "aten::addmm", shapes, forward_ms
        yield from _product_backward(shapes[-2], shapes[-1], backward_ms)
    elif re.search(r"\bb?matmul\b|\bbmm\b", target) and len(shapes) >= 2:
        left, right = (tuple((prod(shape[:-2]), *shape[-2:])) for shape in shapes[-2:])
        yield "aten::bmm", (left, right), forward_ms
        for _ in range(2 if backward_ms else 0):
            yield "aten::bmm", (left, right), backward_ms / 2
    elif module and re.search("norm|Norm|ln_", target):
        yield "aten::layer_norm", (shapes[0], shapes[0][-1:]), forward_ms
        if backward_ms:
            yield "aten::native_layer_norm_backward", (shapes[0], shapes[0]), backward_ms
    elif (module and re.search("emb|wte|wpe", target)) or "embedding" in target:
        yield "aten::embedding", ((32_000, out[-1]), tuple(out[:-1])), forward_ms
    elif module and not re.search("act|drop|gelu", target) and len(shapes[0]) == len(out):
        weight = out[-1], shapes[0][-1]
        yield "aten::linear", (shapes[0], weight), forward_ms
        yield from _product_backward((prod(out[:-1]), weight[1]), weight[::-1], backward_ms)
    else:
        name = named or ("gelu" if module else "add")
        yield f"aten::{name}", shapes or (tuple(out),), forward_ms
        if backward_ms > _LAUNCHED_MS:
            yield f"aten::{name}_backward", (tuple(out), tuple(out)), backward_ms


def _product_backward(left: tuple[int, ...], right: tuple[int, ...], ms: float) -> Iterator[tuple[str, Any, float]]:
    if ms:
        rows, depth = prod(left[:-1]), left[-1]
        columns = right[-1]
        yield "aten::mm", ((rows, columns), (columns, depth)), ms / 2
        yield "aten::mm", ((columns, rows), (rows, depth)), ms / 2


def other_gpus(published: Path, hidden: Callable[[str], Path | None] = lambda _: None) -> list[Case]:
    """Predict each model on each GPU from its recording on every other GPU. The function `hidden` returns the cost curves to
    use for a target GPU."""
    ops, wholes = models(published), whole_ms(published)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for (run, source), rows in sorted(ops.items()):
            path = Path(folder) / "recording.msgpack"
            total_ms, layers = wholes[run, source]
            save(recording_of(rows, layers, total_ms, source), path)
            for (other_run, target), (truth_ms, _) in sorted(wholes.items()):
                if other_run == run and target != source and (run, target) in ops:
                    curves = hidden(target)
                    os.environ.pop(ELSEWHERE, None) if curves is None else os.environ.__setitem__(ELSEWHERE, str(curves))
                    facts = command("predict", str(path), "--on-gpu", target)
                    busy = facts["busy"]["predicted_ns"] / facts["busy"]["recorded_ns"]
                    cases.append(Case(f"{run}, {source} to {target}", busy * total_ms, truth_ms))
    os.environ.pop(ELSEWHERE, None)
    return cases


def gpu_rows(args: argparse.Namespace) -> list[Row]:
    cases = other_gpus(args.published)
    trio = [case for case in cases if "T4" not in case.name and "P4" not in case.name]
    return [
        Row("another GPU, all pairs in both directions", "8 % (NeuSight 10.1 %, Habitat 10.8 %)", cases),
        Row("another GPU, only pairs among P100, V100, A100-40GB", "3 %", trio),
    ]


def unseen_rows(args: argparse.Namespace) -> list[Row]:
    def hidden(target: str) -> Path:
        path: Path = args.curves / f"without_{target.replace(' ', '_')}.npz"
        if not path.exists():
            efficiency(args.published, path, target)
        return path

    cases = other_gpus(args.published, hidden)
    return [Row("another GPU, measurements of the target GPU hidden", "12 % (NeuSight 8.4 % on GPUs it never saw)", cases)]


# --- links


def link_cases(args: argparse.Namespace, is_judged: Callable[[int, int], bool] = lambda row, ranks: True) -> list[Case]:
    cases = []
    for card, by_ranks in all_reduce_rows(args.published).items():
        for ranks, (sizes, times_ns) in by_ranks.items():
            costs = CollectiveCosts(card)
            for row, (size, ns) in enumerate(zip(sizes.tolist(), times_ns.tolist(), strict=True)):
                if is_judged(row, ranks):
                    took_ns = costs.next("all_reduce", int(size), ranks).duration_ns
                    cases.append(Case(f"{card}, {ranks} ranks, {int(size) >> 20} MiB", took_ns, ns))
    return cases


@contextlib.contextmanager
def links_without(args: argparse.Namespace, is_hidden: Callable[[int, int], bool]) -> Iterator[None]:
    """Replace the all-reduce table by a table without the rows for which `is_hidden(row, ranks)` is true."""
    installed, measured = all_reduce_curve.TABLE, all_reduce_rows(args.published)
    for by_ranks in measured.values():
        for ranks, (sizes, times_ns) in list(by_ranks.items()):
            kept = np.array([not is_hidden(row, ranks) for row in range(len(sizes))])
            by_ranks[ranks] = sizes[kept], times_ns[kept]
            if not kept.any():
                del by_ranks[ranks]
    with tempfile.TemporaryDirectory() as folder:
        all_reduce_curve.TABLE = Path(folder) / "all_reduce.json"
        write_all_reduce(measured, all_reduce_curve.TABLE)
        all_reduce_curve.forget_measurements()
        yield
    all_reduce_curve.TABLE = installed
    all_reduce_curve.forget_measurements()


def link_rows(args: argparse.Namespace) -> list[Row]:
    cases = link_cases(args)
    buckets = [case for case in cases if int(case.name.split()[-2]) <= 25]
    with links_without(args, lambda row, _: row % 2 == 1):
        sizes = link_cases(args, lambda row, _: row % 2 == 1)
    ranks = []
    for hidden in range(3, 9):
        with links_without(args, lambda _, ranks, hidden=hidden: ranks == hidden):  # type: ignore[misc]
            ranks += link_cases(args, lambda _, ranks, hidden=hidden: ranks == hidden)  # type: ignore[misc]
    return [
        Row("all-reduce, 1 MiB to 1 GiB, 2 to 8 ranks, V100 and A100", "5 %, none over 15 %", cases),
        Row("all-reduce, only buckets of 1 to 25 MiB", "5 %, none over 15 %", buckets),
        Row("all-reduce, every second size hidden (held out)", "5 %, none over 15 %", sizes),
        Row("all-reduce, one number of ranks (3 to 8) hidden (held out)", "-", ranks),
    ]


# --- torchvision's networks on the V100 (GPEmu's times)


def measured_times(published: Path, gpu: str) -> dict[tuple[str, int], tuple[float, float]]:
    """Return (forward, rest) in seconds by model and batch size, without batch sizes whose times the study extrapolated
    linearly."""
    by_model: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for row in rows_of(published / "gpemu_times.csv.gz"):
        if row["gpu"] == gpu:
            by_model[row["model"]].append((int(row["batch"]), float(row["forward_s"]), float(row["rest_s"])))
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for model, rows in by_model.items():
        rows.sort()
        last = len(rows)
        while last >= 3 and abs(rows[last - 1][1] - 2 * rows[last - 2][1] + rows[last - 3][1]) < 1e-12 * rows[last - 1][1]:
            last -= 1
        found |= {(model, batch): (forward, rest) for batch, forward, rest in rows[:last]}
    return found


def trained(args: argparse.Namespace, trace: str, cells: list[str], *options: str) -> list[dict[str, Any]]:
    """Return the output of a replay of the program with these published step times."""
    words = ["--clock", "recorded", "--trace", trace, *options, str(PROGRAM), "--steps", "3", "--cells", *cells]
    return [json.loads(line) for line in run_replay(*words, python=args.python).splitlines() if line.startswith("{")]


def on_board(args: argparse.Namespace, cells: list[str]) -> list[Case]:
    truth = measured_times(args.published, "Tesla_V100-PCIE-32GB")
    options = ("--on-gpu", BOARD, "--host-speed", str(HOST_SPEED))
    cases = []
    for row in trained(args, args.recording, cells, *options):
        measured = truth.get((row["model"], row["batch"]))
        if measured is not None:
            cases.append(Case(f"{row['model']}, batch {row['batch']}", row["forward_s"] + row["rest_s"], sum(measured)))
    return cases


def network_rows(args: argparse.Namespace) -> list[Row]:
    truth = measured_times(args.published, "Tesla_V100-PCIE-32GB")
    names = args.networks or sorted({model for model, _ in truth})
    cases = on_board(args, [f"{name}:32,128" for name in names])
    return [Row("other networks, from a ResNet-50 on the same V100, batch 32 and 128", "10 % (24 % before)", cases)]


def recordings(args: argparse.Namespace) -> Iterator[tuple[str, Trace]]:
    """Yield the replay of each network at batch size 32, with the V100's recording of ResNet-50. Ops and shapes are those of
    the network, and the times are estimates."""
    truth = measured_times(args.published, "Tesla_V100-PCIE-32GB")
    args.curves.mkdir(parents=True, exist_ok=True)
    for name in args.networks or sorted({model for model, _ in truth}):
        path = args.curves.resolve() / f"{name}_batch32.msgpack"
        if not path.exists():
            trained(args, args.recording, [f"{name}:32"], "--on-gpu", BOARD, "--host-speed", str(HOST_SPEED), "-o", str(path))
        yield name, load(path)


def batch_rows(args: argparse.Namespace) -> list[Row]:
    cases = on_board(args, ["resnet50:8,16,32,64,96,128"])
    anchor = next(case for case in cases if case.name.endswith("batch 32"))
    base, truth = anchor.predicted, anchor.measured
    relative = [Case(case.name, case.predicted / base, case.measured / truth) for case in cases if case is not anchor]
    return [Row("ResNet-50 on the V100, batch 8 to 128, from batch 32", "3 %", relative)]


def _in_ns(seconds: tuple[float, float]) -> tuple[float, float]:
    return seconds[0] * 1e9, seconds[1] * 1e9


def own_batch_cases(args: argparse.Namespace, board: str, batches: tuple[int, ...]) -> list[Case]:
    """The recording has the measured times of batch size 32 on the GPU `board`, and the host times of batch size 1 (see the
    protocol)."""
    truth = measured_times(args.published, board.replace(" ", "_"))
    cases = []
    for name, trace in recordings(args):
        if (name, 32) not in truth:
            continue
        whole, host = (_in_ns(truth[name, batch]) for batch in (32, 1))
        there = trace if board == BOARD else predict(trace, Conditions(gpu=board)).trace
        predictor = Predictor(training_recording(ops_of(there), card_of(board).names[0], trace.workload, whole, host))
        for batch in batches:
            if (name, batch) in truth:
                step = predictor.predict(Conditions(batch=batch)).step
                ratio = step.predicted_ns / step.recorded_ns
                cases.append(Case(f"{name}, batch {batch}", ratio, sum(truth[name, batch]) / sum(truth[name, 32])))
    return cases


_BATCHES = (8, 16, 64, 96, 128)


def networks_batch_rows(args: argparse.Namespace) -> list[Row]:
    cases = own_batch_cases(args, BOARD, _BATCHES)
    return [Row("networks on the V100, batch 8 to 128, from batch 32", "5 %", cases)]


def other_boards_rows(args: argparse.Namespace) -> list[Row]:
    boards = "NVIDIA A100-SXM4-40GB", "Quadro RTX 6000", "Tesla P100-PCIE-16GB", "Tesla M40", "Tesla K80"
    rows = [
        Row(f"networks, other batch sizes, {board} (held out at first)", "5 %", own_batch_cases(args, board, _BATCHES))
        for board in boards
    ]
    between = Row(
        "networks on the V100, batch 12, 24, 48, 80 and 112 (held out)",
        "5 %",
        own_batch_cases(args, BOARD, (12, 24, 48, 80, 112)),
    )
    five = Row(
        "networks, other batch sizes, five other GPUs (held out at first)", "5 %", [case for row in rows for case in row.cases]
    )
    return [between, five, *rows]


_LAWS = (1.0, 1.0), (0.75, 1.0), (0.5, 0.95), (0.25, 0.9)  # the weight of the curve, and the exponent of the batch size
_FOLDS = 6


def folds_rows(args: argparse.Namespace) -> list[Row]:
    """As in `networks_batch`, but for each sixth of the networks, use the growth law that is best for the other networks."""
    truth = measured_times(args.published, "Tesla_V100-PCIE-32GB")
    cases: dict[tuple[float, float], list[list[Case]]] = {law: [] for law in _LAWS}
    installed = constants.CURVE_COUNTS, constants.GROWTH
    for name, trace in recordings(args):
        whole, host = (_in_ns(truth[name, batch]) for batch in (32, 1))
        predictor = Predictor(training_recording(ops_of(trace), BOARD, trace.workload, whole, host))
        batches = [batch for batch in _BATCHES if (name, batch) in truth]
        for law in _LAWS:
            constants.CURVE_COUNTS, constants.GROWTH = law
            steps = [predictor.predict(Conditions(batch=batch)).step for batch in batches]
            predictor.forget()
            cases[law].append([
                Case(
                    f"{name}, batch {batch}",
                    step.predicted_ns / step.recorded_ns,
                    sum(truth[name, batch]) / sum(truth[name, 32]),
                )
                for batch, step in zip(batches, steps, strict=True)
            ])  # fmt: skip
    constants.CURVE_COUNTS, constants.GROWTH = installed

    judged, chosen = folded(cases, mean)
    return [
        Row(f"networks on the V100 in {_FOLDS} folds, growth ({chosen}) fitted to the other networks", "5 %", judged)
    ]


# The model cuts its sequences to the longest one in the batch. A recording of another batch does not show the longest sequence,
# so its length is an input of the prediction.
_LENGTHS = {2: 53, 32: 71, 512: 128}


def forward_cases(args: argparse.Namespace, pairs: list[tuple[int, int]]) -> list[Case]:
    traces = {batch: read_kineto(args.traces / f"a100_particle_fwd_bs{batch}.json.gz") for batch in _LENGTHS}
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.msgpack"
        for recorded, batch in pairs:
            save(traces[recorded], path)
            length = f"{_LENGTHS[recorded]}={_LENGTHS[batch]}"
            facts = command("predict", str(path), "--batch", str(batch), "--length", length)
            cases.append(Case(f"batch {recorded} to {batch}", facts["busy"]["predicted_ns"], busy_ns(traces[batch])))
    return cases


def forward_rows(args: argparse.Namespace) -> list[Row]:
    others = [(2, 32), (2, 512), (512, 2), (512, 32)]
    return [
        Row("particle transformer, forward pass, from batch 32 and the sequence length", "5 %",
            forward_cases(args, [(32, 2), (32, 512)])),
        Row("particle transformer, forward pass, from batch 2 and 512 (held out at first)", "5 %",
            forward_cases(args, others)),
    ]  # fmt: skip


_REPLICAS = 0.8, 1.1, 1.4, 1.7, 2.0  # host time to make a replica, as a multiple of a forward pass


def dataparallel_cases(args: argparse.Namespace, precision: str) -> dict[float, list[list[Case]]]:
    """Return the predicted ratio of step times t(n)/t(1) on n GPUs at 12 images per GPU, for each host time of a replica and
    each network. The recording for a prediction has the network's ops and the measured t(1)."""
    times: dict[tuple[str, str, int], float] = {}
    for row in rows_of(args.published / "dataparallel_train.csv.gz"):
        if row["precision"] == precision:
            times[row["gpu"], row["model"], int(row["gpus"])] = float(row["median_ms"]) * 1e6
    paces = measured_times(args.published, BOARD.replace(" ", "_"))  # at batch size 1, the host determines the time
    gpus = sorted({gpu for gpu, _, _ in times})
    slower = {  # how much slower the host is than GPEmu's host, according to the network with the smallest ratio
        gpu: min(ns / 1e9 / sum(paces[name, 1]) for (other, name, count), ns in times.items() if other == gpu and count == 1)
        for gpu in gpus
    }
    dtype = {"float": "float32", "half": "float16", "double": "float64"}[precision]
    cases: dict[float, list[list[Case]]] = {host: [] for host in _REPLICAS}
    args.networks = args.networks or sorted({model for _, model, _ in times})
    for name, trace in recordings(args):
        forward_ns, rest_ns = _in_ns(paces[name, 1])
        own: dict[float, list[Case]] = {host: [] for host in _REPLICAS}
        for gpu in gpus:
            one = predict(trace, Conditions(gpu=gpu, batch=12)).trace
            ops, whole_ns = _in_precision(ops_of(one), gpu, dtype), times[gpu, name, 1]
            busy = [sum(op.ns for op in ops if (op.phase == "forward") == first) for first in (True, False)]
            host = forward_ns * slower[gpu], rest_ns * slower[gpu]
            parts = [max(both) for both in zip(busy, host, strict=True)]
            whole = whole_ns * parts[0] / sum(parts), whole_ns * parts[1] / sum(parts)
            workload = one.workload
            if workload is not None and workload.parameter_bytes:
                workload = replace(workload, parameter_bytes=workload.parameter_bytes * itemsize(dtype) // 4)
            predictor = Predictor(training_recording(ops, card_of(gpu).names[0], workload, whole, host))
            for count in (2, 4):
                prediction = predictor.predict(Conditions(gpus=count, batch=12 * count))
                assert prediction.parallel is not None
                replicas_ns = prediction.parallel.parts_ns["host time of replicas"]
                for times_forward in _REPLICAS:
                    step_ns = prediction.step.predicted_ns + replicas_ns * (times_forward / constants.REPLICA_PER_FORWARD - 1)
                    measured = times[gpu, name, count] / whole_ns
                    own[times_forward].append(Case(f"{name}, {count} x {gpu}", step_ns / whole_ns, measured))
        for times_forward, found in own.items():
            cases[times_forward].append(found)
    return cases


def _in_precision(ops: list[RecordedOp], gpu: str, dtype: str) -> list[RecordedOp]:
    """Return the same trace in another precision, from the cost model."""
    if dtype == "float32":
        return ops
    costs = op_costs.OpCosts(card_of(gpu))

    def ns(op: RecordedOp) -> int:
        before, after = (costs.plain(op.name, op.shapes, of).ns for of in (op.dtype, dtype))
        return max(int(op.ns * after / before), 1)

    return [replace(op, dtype=dtype, ns=ns(op)) for op in ops]


def dataparallel_rows(args: argparse.Namespace) -> list[Row]:
    by_replica = dataparallel_cases(args, "float")
    cases = [case for own in by_replica[constants.REPLICA_PER_FORWARD] for case in own]
    pairs = [case for case in cases if ", 2 x" in case.name]
    fours = [case for case in cases if ", 4 x" in case.name]
    folds, chosen = folded(by_replica, median)
    goal = "median 10 %"
    title = f"nn.DataParallel in {_FOLDS} folds, host time per replica ({chosen}) fitted to the other networks"
    rows = [
        Row(f"nn.DataParallel, 2 or 4 GPUs; {_right_side(cases)}", goal, cases, "median"),
        Row("nn.DataParallel, 2 GPUs", goal, pairs, "median"),
        Row("nn.DataParallel, 4 GPUs", goal, fours, "median"),
        Row(title, goal, folds, "median"),
    ]
    for precision in ("half", "double"):
        own = [case for cases in dataparallel_cases(args, precision)[constants.REPLICA_PER_FORWARD] for case in cases]
        rows.append(Row(f"nn.DataParallel in {precision} precision (held out); {_right_side(own)}", goal, own, "median"))
    return rows


def _right_side(cases: list[Case]) -> str:
    right = sum((case.predicted > 1) == (case.measured > 1) for case in cases)
    return f"correct sign in {right} of {len(cases)}"


def folded(cases: Mapping[Any, list[list[Case]]], of: Callable[[Iterable[float]], float]) -> tuple[list[Case], str]:
    """For each part of the networks, return the cases with the choice that is best for all other networks, and return the
    choices."""

    def error(choice: Any, but: int) -> float:
        return of([abs(case.error) for n, own in enumerate(cases[choice]) if n % _FOLDS != but for case in own])

    best = [min(cases, key=lambda choice: error(choice, fold)) for fold in range(_FOLDS)]
    count = len(next(iter(cases.values())))
    chosen = ", ".join(str(choice).strip("()").replace(", ", "/") for choice in dict.fromkeys(best))
    return [case for n in range(count) for case in cases[best[n % _FOLDS]][n]], chosen


ROWS = {
    "gpu": gpu_rows, "unseen": unseen_rows, "network": network_rows, "batch": batch_rows,
    "networks_batch": networks_batch_rows, "folds": folds_rows, "other_boards": other_boards_rows,
    "forward": forward_rows, "links": link_rows, "dataparallel": dataparallel_rows,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path, help="the folder of published measurements")
    parser.add_argument("traces", type=Path, help="the folder of public recordings")
    parser.add_argument("--rows", default=",".join(ROWS), help="the rows to compute")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch and torchvision")
    parser.add_argument("--networks", nargs="*", help="only these of torchvision's networks")
    parser.add_argument(
        "--curves", type=Path, default=ROOT / "out" / "what_if",
        help="a folder for intermediate results, which are computed in some minutes if they are missing",
    )  # fmt: skip
    parser.add_argument("--expected", action="store_true", help="write the rows' errors into the table that predictions use")
    parser.add_argument("--json", type=Path, help="write all cases to this file")
    args = parser.parse_args()
    args.curves.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        args.recording = str(Path(folder) / "v100.msgpack")
        save(read_kineto(args.traces / "v100_resnet50_workers0.json.gz"), Path(args.recording))
        print("| case | cases | error | signed mean | worst | goal |\n|---|---:|---|---:|---|---|")
        found = []
        for name in args.rows.split(","):
            for row in ROWS[name](args):
                print(row.text(), flush=True)
                found.append((name, row))
    if args.json:
        facts = [{"row": row.title, "cases": [{**vars(case), "error": case.error} for case in row.cases]} for _, row in found]
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(facts, indent=1) + "\n")
    if args.expected:
        write_expected(found)


def write_expected(found: list[tuple[str, Row]]) -> None:
    """Replace the errors of these rows (the first row of each name) in the table that predictions use."""
    table = json.loads(TABLE.read_text())
    rows = table["rows"]
    for name, row in reversed(found):
        rows[name] = {"error": round(row.spread, 4), "cases": len(row.cases)}
    TABLE.write_text(json.dumps({**table, "rows": dict(sorted(rows.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
