"""Builds a trace for `trace replay` from published step times of a model on a GPU.

    choice = choice_of("", gpu="v100", estimate=False)          # by the script's workload
    choice = choice_of("v100/resnet50", gpu="", estimate=False)
    recorded = trace_of_library_steps(replayed, blank)

Note [A card that the library lacks]
    The library may lack measurements of a GPU in traces/names/cards.py, or of the script's workload on that GPU. A replay can
    then estimate the time of each operation. A replay with estimated times cannot be compared with a recording, so the report
    marks all figures as estimates.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from traces.comparison.comparison_figures import Comparison, Evaluation
from traces.format.trace_file import save
from traces.library import entries, find, is_cell_name, load
from traces.library.catalogue import cell_file, device_named, files_of, gpus
from traces.library.catalogue import gpu as gpu_of
from traces.library.cell_traces import blank_trace, trace_with_step_times
from traces.library.cells import Gpu, read_cells
from traces.model.run import ReplayNotes
from traces.model.trace import StepKind, Trace, TraceError, TraceLibraryError
from traces.names.cards import card_of, unknown_gpu
from traces.script.configuration import LibraryChoice
from tui.formatting import counted, time_text
from tui.text.compiled import compilation_notes
from tui.text.diff import estimate_sentences
from tui.text.memory import memory_sentences
from tui.text.pace import values_sentences
from tui.trace_names import load_replayable

# sources of phase times if the library entry matches the script's model, and their descriptions in reports
_OF_THE_CELL = {
    "measured": "as measured",
    "interpolated": "interpolated",
    "training's forward pass": "with the time of training's forward pass",
}


@dataclass(frozen=True)
class ReplaySource:
    """Provides replay times from a recording, published measurements or estimates."""

    name: str
    recorded: Trace
    path: Path | None = None  # the recording's file; None for a library entry and for an estimate
    choice: LibraryChoice | None = None
    gpu: Gpu | None = None  # set if the library's times for this GPU replace a recording
    is_estimate: bool = False

    def file_in(self, folder: Path) -> Path:
        if self.path is not None:
            return self.path
        path = file_in_folder(folder, self.name)
        save(self.recorded, path)
        return path

    def compared_with(self, replayed: Trace) -> ReplaySource:
        """Choose the trace to compare a replay with, and return a source that contains this trace."""
        if self.gpu is None:
            return self
        recorded, is_estimate = trace_of_library_steps(replayed, self.recorded), not was_measured(replayed)
        if is_estimate:
            recorded.grain = "kernel"  # so that the report contains the GPU time of the replay
        return replace(self, recorded=recorded, is_estimate=is_estimate)


def source_of(trace: str, gpu: str, *, estimate: bool, strict: bool = False, gpus: int = 0) -> ReplaySource:
    # library entries contain the times of one GPU
    choice = None if gpu and estimate and gpus > 1 else choice_of(trace, gpu, estimate)
    if choice is not None:
        require_phases_enough(strict, gpus)
        of, recorded = gpu_and_blank_trace(choice)
        return ReplaySource(trace or of.name, recorded, choice=choice, gpu=of)
    if gpu:
        return ReplaySource(gpu, trace_of_card(gpu, max(gpus, 1)), is_estimate=True)
    path, recorded = load_replayable(trace)
    return ReplaySource(trace, recorded, path=path)


def is_gpu_name(name: str) -> bool:
    """Return True for the name of a GPU, but not for a trace file or a library name such as "v100/resnet50"."""
    with suppress(TraceLibraryError):
        if is_cell_name(name) or find(name).is_file():
            return False
    with suppress(TraceLibraryError):
        return bool(gpu_of(name))
    return _has_data_sheet(name)


def choice_of(trace: str, gpu: str, estimate: bool) -> LibraryChoice | None:
    if gpu and trace:
        raise TraceLibraryError(f"`--gpu {gpu}` and `--trace {trace}` both choose the GPU times; use only one of them")
    if gpu:
        try:
            return LibraryChoice(tuple(file.path for file in files_of(gpu)), estimate=estimate)
        except TraceLibraryError as error:
            if not _has_data_sheet(gpu):
                # With `--estimate`, every known GPU is valid, so the error message lists all known GPUs.
                raise unknown_gpu(gpu) if estimate else error from None
        if not estimate:
            known = f"the library has no measurements of {gpu}, only of {', '.join(of.name for of in gpus())}"
            raise TraceLibraryError(f"{known}; add `--estimate` to estimate the time of each op")
        return None
    if is_cell_name(trace):
        name = trace.partition("@")[0]
        return LibraryChoice((cell_file(name).path,), name.partition("/")[2], estimate)
    if estimate:
        raise TraceLibraryError("`--estimate` needs `--gpu`, or `--trace` with a library name such as v100/resnet50")
    return None


def _has_data_sheet(gpu: str) -> bool:
    with suppress(TraceError):  # ignore this error, because the library's own error message will suggest similar names
        return bool(device_named(gpu))
    return False


def trace_of_card(gpu: str, gpus: int = 1) -> Trace:
    # see Note [A card that the library lacks]
    try:
        of = gpu_of(gpu)
    except TraceLibraryError:
        name = device_named(gpu)
        of = Gpu(gpu, name, card_of(name).memory_bytes)
    alone = blank_trace(of)
    return replace(alone, grain="kernel", devices=[replace(alone.devices[0], index=index) for index in range(gpus)])


def estimated_text(replayed: Trace, comparison: Comparison) -> str:
    missing = "this model's evaluation" if any(steps.calls for steps in _notes_of(replayed).cells) else "this model"
    lines = [f"ESTIMATE: no measurements of {missing} on {replayed.devices[0].name}; times are predicted."]
    sides: dict[str, Comparison | Evaluation | None] = {"training": comparison, "evaluation": comparison.evaluation}
    known = {kind: of for kind, of in sides.items() if of is not None and of.compute_side.replayed_ns is not None}
    is_gpu_time = comparison.clock == "recorded"
    host = "GPU time only" if is_gpu_time else "including host time of this machine"
    for kind, of in known.items():
        # The first step of a script takes much more CPU time than the others.
        step = of.compute_side
        average = step.average if of.steps_compared.replayed > 1 or is_gpu_time else "a single step, including warm-up"
        lines.append(f"Step time of {kind}: {time_text(step.replayed_ns)} ({average}, excluding data loading, {host}).")
    if not known:
        lines.append("The script completed no step.")
    elif "training" in known:
        lines += host_time_sentences(comparison)
    if is_gpu_time and known:
        lines.append("An estimate has no recorded host pace. --clock wall adds the host time of this machine.")
    lines += [*estimate_sentences(comparison), *values_sentences(comparison)]
    return "\n".join([*lines, *compilation_notes(comparison), *memory_sentences(comparison.memory)])


def host_time_sentences(comparison: Comparison) -> list[str]:
    busy_ns = comparison.gpu_busy.replayed_ns
    if comparison.clock == "recorded" or not busy_ns:
        return []
    busy = f"The GPU is busy for {time_text(busy_ns)} of a training step."
    return [f"{busy} --clock recorded excludes the host time of this machine."]


def gpu_and_blank_trace(choice: LibraryChoice) -> tuple[Gpu, Trace]:
    file = read_cells(choice.files[0])
    blank = blank_trace(file.gpu, file.source, file.provenance)
    if choice.estimate:  # the script may be another program than the study's, so remove the study's old PyTorch version
        blank.machines = {}
    return file.gpu, blank


def trace_of_library_steps(replayed: Trace, blank: Trace) -> Trace:
    played = _notes_of(replayed).cells
    calls = [call for steps in played for call in steps.calls]
    known = bool(calls) and all(call.how in _OF_THE_CELL for call in calls)
    cells = sorted({call.cell for call in calls})
    trace = trace_with_step_times(blank, [steps.phases_ns for steps in played], cells, replayed.workload if known else None)
    training = replayed.steps.recorded_step[replayed.steps.kind != StepKind.EVALUATION]
    trace.steps.kind[~np.isin(trace.steps.number, training)] = StepKind.WARMUP  # evaluation is not compared with training
    return trace


def library_messages(replayed: Trace) -> tuple[str, ...]:
    return _notes_of(replayed).library_messages


def source_sentences(replayed: Trace) -> list[str]:
    """Describe where the step times come from, for example "v100/resnet50: 12 steps of batch 32 as measured"."""
    counts_by_cell: dict[str, Counter[tuple[int, str]]] = {}
    for played in _notes_of(replayed).cells:
        for cell, batch, how in dict.fromkeys((call.cell, call.batch, call.how) for call in played.calls):
            counts_by_cell.setdefault(cell, Counter())[batch, how] += played.steps
    return [f"{cell}: {_listed(counts)}" for cell, counts in sorted(counts_by_cell.items())]


def _listed(counts: Counter[tuple[int, str]]) -> str:
    most = counts.most_common(4)
    texts = [f"{counted(steps, 'step')} of batch {batch} {_OF_THE_CELL.get(how, how)}" for (batch, how), steps in most]
    others = len(counts) - len(most)
    return ", ".join([*texts, *([f"and {others} other batch sizes"] if others else [])])


def was_measured(replayed: Trace) -> bool:
    """Return True if any training step has a time from the library. The library has no times of evaluation."""
    return any(call.trains for steps in _notes_of(replayed).cells for call in steps.calls)


def _notes_of(replayed: Trace) -> ReplayNotes:
    return replayed.run_of(replayed.ranks[0]).replay or ReplayNotes()


def require_phases_enough(strict: bool, gpus: int) -> None:
    if strict:
        raise TraceLibraryError("`--strict` needs recorded ops, but the library has only times of phases; omit `--strict`")
    if gpus > 1:
        several = [entry.name for entry in entries() if len(load(entry.name).devices) >= gpus]
        recordings = f", or `--trace` with the recording {' or '.join(several)}" if several else ""
        instead = f"use `--estimate` to estimate each op{recordings}"
        raise TraceLibraryError(f"the library has times of single GPUs only, so `--gpus {gpus}` cannot use them; {instead}")


def file_in_folder(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '-')}.msgpack"
