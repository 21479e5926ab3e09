"""Finds out which GPUs have enough memory for a script, and the largest batch size for each GPU.

    $ trace fit --gpus v100,a100-80gb train.py --batch-size 256
    trace: train.py takes 4 steps at batch 256 ... and at batch 128

The script runs on a virtual GPU, which logs its memory requests. A simulation of PyTorch's memory allocator repeats the
script's memory requests for each GPU.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from replayer.memory.capacity import Capacity
from replayer.memory.device.blocks import tie_rule_of
from replayer.memory.device.oom import DEFAULT_OOM_TEXT
from replayer.memory.device.request_log import RankRequests, RequestKind, RequestLog
from replayer.memory.rerun_requests import MAX_BATCH, ScaledRequests, largest_batch, run_requests
from replayer.memory.spare_memory import spare_host_bytes
from traces.combining.replayed_ranks import process_of_each_rank, timelines_in, with_work
from traces.format.trace_file import save
from traces.library.catalogue import device_named
from traces.library.limits import MeasuredLimit
from traces.model.json_facts import Json, extended
from traces.model.layouts import Shape
from traces.model.machine import Machine
from traces.model.trace import Device, StepKind, Steps, Trace, TraceError
from traces.model.workload import WorkloadSignature
from traces.names.cards import CARDS, Card, card_of
from traces.script.configuration import ReplayConfig, ReplaySession
from traces.script.launch import run_child
from tui.commands.fit_times import KnownTimes
from tui.formatting import counted
from tui.options import FitOptions
from tui.outputs import json_text, show_text
from tui.running.narration import ending_text
from tui.running.progress import working
from tui.running.ranks import require_ranks
from tui.terminal import is_verbose, terminal_style
from tui.text.fit import CardFacts, CardFit, Need, OtherMemory, fit_lines

# usual names of the batch-size option in lower case, without dashes and underscores; if a script has several, the first is used
_BATCH_NAMES = "batchsize", "trainbatchsize", "perdevicetrainbatchsize", "batchsizepergpu", "batch", "bs", "b"
_ROOM_BYTES = 1 << 50  # memory of the virtual GPU
_TAIL_LINES = 5  # lines of a failed script's output to show


@dataclass(frozen=True)
class _FitRun:
    logs: list[RequestLog]
    workload: WorkloadSignature
    steps: int  # number of training steps
    ended: int  # number of training and evaluation steps
    timeline: Trace | None = None  # timeline of the training process, or of the first rank
    batch_dimension: int = 0  # batch dimension of the first input; 1 if the sequence comes first, as by default in nn.LSTM

    @property
    def shape(self) -> Shape:
        inputs = self.workload.inputs
        return inputs[0].shape if inputs else ()

    @property
    def batch(self) -> int | None:
        return self.shape[self.batch_dimension] if self.batch_dimension < len(self.shape) else None


@dataclass(frozen=True, kw_only=True)
class FitFacts(Need):
    """Contains the result of `trace fit`: the GPUs on which a script fits."""

    workload: Json  # the known fields of `WorkloadSignature` in traces/model/workload.py
    gpus: list[CardFacts]


def run(fit: FitOptions) -> int:
    require_ranks(fit.ranks, spare_host_bytes(), fit.script)
    cards = [card_of(device_named(name)) for name in fit.gpus.split(",")] if fit.gpus else list(CARDS)
    option = fit.batch_option.removesuffix("=") or _usual_option(fit.script)
    first = _run(fit, fit.script, cards[0])
    need = _need(fit, first, option)
    scaled: list[ScaledRequests] = []
    if option and need.batch is not None:
        scaled, need, first = _scaled(fit, first, need, option, cards[0])
    batch = first.batch if fit.nproc else need.batch
    known = KnownTimes(need.workload, batch, first.timeline, trains=bool(first.steps))
    peaks = _Peaks(first, scaled, need)
    with working("computing each GPU"):
        found = [_card_fit(card, first, scaled, need, known, peaks) for card in cards]
    if fit.verify and scaled:
        found = _verified(fit, found, option, need, first.batch_dimension)
    facts = extended(FitFacts, need, workload=need.workload.to_json(), gpus=[one.facts() for one in found])
    show_text(json_text(facts) if fit.json else "\n".join(fit_lines(need, found, **terminal_style(sys.stdout))))
    return 0 if any(one.fits for one in found) else 1


def _run(fit: FitOptions, words: list[str], card: Card) -> _FitRun:
    name = shlex.join(words)
    with tempfile.TemporaryDirectory(prefix="trace-fit-") as folder, tempfile.TemporaryFile() as output_file:
        out = Path(folder)
        save(_machine(card, max(fit.count, fit.ranks)), out / "card.msgpack")
        config = ReplayConfig(loader="recorded", clock="recorded", gpu_memory_bytes=(_ROOM_BYTES,), steps=fit.steps)
        session = ReplaySession(out / "card.msgpack", out, os.getpid(), config=config)
        output = sys.stderr.fileno() if is_verbose() else output_file.fileno()
        with working(f"running {name} for {counted(fit.steps, 'step')}"):
            result = run_child({"replayer": session}, words, ranks=fit.ranks, stdout=output, stderr=output)
        if result.ending == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        stored = RankRequests.read_all(out)
        logs = [log for of in stored for log in of.devices]
        logs = [log for log in logs if any(entry.kind == RequestKind.REQUEST for entry in log.entries)]
        steps, ended = max((log.steps for log in logs), default=0), max((of.ended for of in stored), default=0)
        if result.returncode and steps < fit.steps:
            output_file.seek(0)
            tail = output_file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
            print("\n".join(tail), file=sys.stderr)
            raise TraceError(f"{name}: {ending_text(result.returncode)} after {counted(steps, 'training step')}")
        if not logs:
            did = "used no GPU memory" if result.triggered else "did not import torch"
            raise TraceError(f"{name}: the script {did}")
        traces = timelines_in(out)
        workloads = [trace.workload for trace in traces.values() if trace.workload is not None]
    workload = max(workloads, key=lambda of: of.parameters or 0, default=WorkloadSignature())
    return _FitRun(logs, workload, steps, ended, _timeline(traces))


def _timeline(traces: Mapping[int, Trace]) -> Trace | None:
    # A process that only starts the ranks, for example with `mp.spawn`, runs no steps and no GPU work.
    worked = with_work(traces) or traces
    by_rank = process_of_each_rank(worked, main=0) if worked else {}
    return worked[by_rank[min(by_rank)]] if by_rank and (len(by_rank) > 1 or len(worked) == 1) else None


def _machine(card: Card, count: int) -> Trace:
    devices = [Device(rank=0, index=i, name=card.names[0], total_memory_bytes=_ROOM_BYTES) for i in range(count)]
    version = importlib.metadata.version("torch")
    built = re.search(r"\+cu(\d+)(\d)", version)
    machine = Machine(torch=version, cuda=f"{built[1]}.{built[2]}" if built else "12.8")  # assumed for CPU builds
    steps = Steps.of(number=[0], kind=[StepKind.STEADY], rank=[0], start_ns=[0], duration_ns=[1])
    return Trace(grain="kernel", devices=devices, steps=steps, machines={0: machine})


@cache
def _capacity(memory_bytes: int, context_bytes: int = 0) -> Capacity:
    installed = Machine(torch=importlib.metadata.version("torch"))
    return Capacity(memory_bytes, context_bytes, DEFAULT_OOM_TEXT, tie_rule_of(installed))


def _need(fit: FitOptions, first: _FitRun, option: str) -> Need:
    room = [run_requests(log, _capacity(_ROOM_BYTES), has_optional=False) for log in first.logs]
    given = _given(fit.script, option) if option else None
    notes = []
    if not first.steps:
        notes.append(f"the script ran {counted(first.ended, 'evaluation step')} and did not train; training needs more memory")
    elif first.steps < fit.steps:
        evaluated = first.ended - first.steps
        also = f" and {counted(evaluated, 'evaluation step')}" if evaluated > 0 else ""
        notes.append(f"only {counted(first.steps, 'training step')}{also} ran; later steps may need more memory")
    elif any(map(_changes, first.logs)):
        notes.append("the last two steps requested different sizes, so later steps may need more memory")
    if len(first.logs) > 1:
        most = "figures are for the GPU that needs the most memory, without NCCL buffers"
        notes.append(f"{len(first.logs)} GPUs are used; {most}")
    return Need(
        script=shlex.join(fit.script),
        batch=int(given) if given and given.isdigit() else first.batch,
        batch_option=option or None,
        steps_run=first.steps,
        devices=len(first.logs),
        peak_allocated_bytes=max(one.peak_bytes for one in room),
        peak_reserved_bytes=max(one.reserved_bytes for one in room),
        workload=first.workload,
        notes=notes,
    )


def _changes(log: RequestLog) -> bool:
    steps = log.sizes_by_step()
    return len(steps) > 2 and steps[-1] != steps[-2]


def _scaled(
    fit: FitOptions, first: _FitRun, need: Need, option: str, card: Card
) -> tuple[list[ScaledRequests], Need, _FitRun]:
    """Run the script again with another batch size, to find out which memory requests depend on the batch size."""
    batch = need.batch
    assert batch is not None
    # In inputs of nn.LSTM, the first dimension is the sequence length, and the second is the batch size.
    other = next(size for size in (batch // 2, batch // 2 + 1, batch + 1) if size and size not in (batch, *first.shape[1:2]))
    try:
        second = _run(fit, _with_batch(fit.script, option, other), card)
    except TraceError:
        if fit.batch_option or _given(fit.script, option) is not None:
            raise
        why = f"the script's source contains {option}, but the script failed with {option} {other}"
        return [], replace(need, batch_option=None, notes=[*need.notes, f"the largest batch is unknown: {why}"]), first
    dimension = _batch_dimension(first.shape, second.shape, other)
    first, second = replace(first, batch_dimension=dimension), replace(second, batch_dimension=dimension)
    if _given(fit.script, option) is None and first.batch is not None:
        batch = first.batch
        need = replace(need, batch=batch)
    why = ""
    if first.batch is not None and second.batch == first.batch:
        why = f"{option} does not change the batch size, which is {first.batch} in both runs"
    elif _given(fit.script, option) is None and second.batch not in (None, other):
        why = f"{option} {other} gives batches of {second.batch}, so the value for batches of {batch} is unknown"
    elif len(first.logs) != len(second.logs):
        why = "the number of GPUs depends on the batch size"
    else:
        pairs = [ScaledRequests.of(a, batch, b, other) for a, b in zip(first.logs, second.logs, strict=True)]
        scaled = [pair for pair in pairs if pair is not None]
        if len(scaled) == len(pairs):
            return scaled, need, first
        why = f"at batch {other} the script requests memory in a different order"
    return [], replace(need, notes=[*need.notes, f"the largest batch is unknown: {why}"]), first


def _batch_dimension(first: Shape, second: Shape, batch: int) -> int:
    """Compare an input's shapes in two runs with different batch sizes, and return the number of the batch dimension."""
    changed = [dimension for dimension, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    return next((dimension for dimension in changed if second[dimension] == batch), changed[0] if changed else 0)


class _Peaks:
    def __init__(self, first: _FitRun, scaled: Sequence[ScaledRequests], need: Need) -> None:
        self._need = need
        self._scaled = scaled
        self._at = cache(self._peak_bytes)
        self.batch = first.batch if need.batch == first.batch and len(first.logs) == 1 and first.steps else None

    def judge(self, limit: MeasuredLimit | None) -> tuple[MeasuredLimit | None, OtherMemory | None]:
        if limit is None or self.batch is None:
            return None, None
        at = limit.fitted if self._scaled else self.batch
        needs_bytes = self._at(at)
        return (limit, None) if limit.is_of(at, needs_bytes) else (None, OtherMemory(limit, at, needs_bytes))

    def _peak_bytes(self, batch: int) -> int:
        if batch == self._need.batch:
            return self._need.peak_allocated_bytes
        [requests] = self._scaled
        return run_requests(requests.for_batch(batch), _capacity(_ROOM_BYTES), has_optional=False).peak_bytes


def _card_fit(
    card: Card, first: _FitRun, scaled: Sequence[ScaledRequests], need: Need, known: KnownTimes, peaks: _Peaks
) -> CardFit:
    capacity = _capacity(card.memory_bytes, card.context_bytes)
    outcomes = [run_requests(log, capacity, has_optional=card.uses_winograd) for log in first.logs]
    worst = max(outcomes, key=lambda one: (not one.fits, one.reserved_bytes))
    estimated = None
    if scaled and need.batch is not None:
        estimated = largest_batch(lambda batch: _fit([one.for_batch(batch) for one in scaled], capacity, card), need.batch)
        estimated = None if estimated >= MAX_BATCH else estimated
    found = CardFit(card, worst, estimated, None, peaks.batch, *peaks.judge(known.limit(card)))
    return replace(found, step=known.step(card)) if found.fits else found


def _verified(fit: FitOptions, found: list[CardFit], option: str, need: Need, dimension: int) -> list[CardFit]:
    runs: dict[int, list[RequestLog] | None] = {}
    verified_fits = []
    for one in found:
        batch = one.largest_batch
        if not batch or one.is_measured:
            verified_fits.append(one)
            continue
        for size in (batch, batch + 1):
            if size not in runs:
                run = replace(_run(fit, _with_batch(fit.script, option, size), one.card), batch_dimension=dimension)
                runs[size] = run.logs if run.batch is None or need.batch is None or run.batch == size else None
        capacity = _capacity(one.card.memory_bytes, one.card.context_bytes)
        fits = [None if logs is None else _fit(logs, capacity, one.card) for logs in (runs[batch], runs[batch + 1])]
        verified_fits.append(replace(one, verified=None if None in fits else fits == [True, False]))
    return verified_fits


def _fit(logs: Sequence[RequestLog], capacity: Capacity, card: Card) -> bool:
    return all(run_requests(log, capacity, has_optional=card.uses_winograd).fits for log in logs)


def _usual_option(words: Sequence[str]) -> str:
    """Return the batch-size option in the command, such as "--batchSize" or "data.batch_size", or in the script's source."""
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("-") or "=" in word]
    if given := _batch_option([option for option in options if _given(words, option) is not None]):
        return given
    script = Path(words[0])
    text = script.read_text(encoding="utf-8", errors="replace") if script.is_file() else ""
    return _batch_option(re.findall(r"""["'](--?[A-Za-z][\w-]*)["']""", text))


def _batch_option(options: Sequence[str]) -> str:
    names = {re.sub("[-_]", "", option.rpartition(".")[2].lower()): option for option in reversed(options)}
    return next((names[name] for name in _BATCH_NAMES if name in names), "")


def _given(words: Sequence[str], option: str) -> str | None:
    place = _position_of(words, option)
    return None if place is None else words[place[0]].removeprefix(place[1])


def _position_of(words: Sequence[str], option: str) -> tuple[int, str] | None:
    if option.isdigit():
        at = int(option) + (words[0] == "-m")
        return (at, "") if at < len(words) else None
    for at, word in enumerate(words[1:], start=1):
        if word == option and at + 1 < len(words):
            return at + 1, ""
        if word.startswith(option + "="):
            return at, option + "="
    return None


def _with_batch(words: Sequence[str], option: str, batch: int) -> list[str]:
    if (place := _position_of(words, option)) is not None:
        at, before = place
        return [*words[:at], f"{before}{batch}", *words[at + 1 :]]
    if option.isdigit():
        raise TraceError(f"--batch-option {option}: the script has no argument number {option}")
    return [*words, *([option, str(batch)] if option.startswith("-") else [f"{option}={batch}"])]
