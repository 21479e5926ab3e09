"""Runs the commands `trace library list`, `show`, `add`, `check` and `remove`.

    list_(Filters(gpu="v100"), json=False)
    show("v100/resnet50", json=False)
    add(Path("train.cells"), name="", json=False)
    check([Path("train.cells")], json=False)    # returns 0 (accepted), 1 (rejected) or 2 (cannot be read)
    remove("v100/train", json=False)
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from traces.format.trace_file import load
from traces.library import FORMER_NAMES, find
from traces.library import SUFFIX as TRACE_SUFFIX
from traces.library.catalogue import BUNDLED, cell_file, cell_files, faults, find_cell, gpus, models, user_folder
from traces.library.cells import SUFFIX, Gpu, LibraryCell, read_cells, write_cells
from traces.library.check import ERROR, Fault, unreadable
from traces.library.check import check as findings_of
from traces.library.listing import EntryFacts, LibraryEntry, all_entries
from traces.library.recorded_cells import cell_of, gpu_of, step_times_of
from traces.model.json_facts import OMITTED_IF_NONE, Json, as_json, extended
from traces.model.trace import Trace, TraceError, TraceLibraryError
from traces.names import did_you_mean
from tui.formatting import counted, size_text, table, time_text
from tui.outputs import json_text, show_text
from tui.running.narration import say
from tui.terminal import terminal_style
from tui.trace_names import viewable

_OF_THE_RUN = ("virtual_gpu", "software", "settings", "protocol", "grain", "spread", "estimated")
_OF_THE_SOURCE = ("study", "repository", "commit", "source", "date", "done")
_OF_THE_TABLE = ("phases_ns", "spread_ns", "batches", "workload", "memory")
_SHOWN_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Filters:
    """Selects GPUs and networks by parts of their names, or by patterns such as `wide*`. An empty filter selects all."""

    gpu: str = ""
    model: str = ""
    grain: str = ""
    source: str = ""

    def matches(self, entry: LibraryEntry) -> bool:
        of = {"gpu": f"{entry.gpu} {entry.device}", "model": entry.model, "grain": entry.grain, "source": entry.source}
        return all(_passes(of[name].lower(), word.lower()) for name, word in vars(self).items())


@dataclass(frozen=True, slots=True)
class ListFacts:
    """Lists the library's models and recordings."""

    entries: list[EntryFacts]
    faults: list[str]  # files of the library that cannot be read


@dataclass(frozen=True)
class RecordingFacts(EntryFacts):
    """Describes a recording in the library."""

    path: str  # path of the file


@dataclass(frozen=True, slots=True)
class Board:
    device: str  # the name that torch.cuda.get_device_name returns
    memory_bytes: int  # total memory


@dataclass(frozen=True, slots=True)
class CellMemory:
    """Contains the GPU memory needed to train a network at each batch size. All three lists have the same length."""

    batches: list[int]  # the batch sizes
    peak_bytes: list[int]  # peak memory of a step
    persistent_bytes: list[int]  # memory in use between steps


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """Contains the measured step times of one network on one GPU. Each list of times has one value for each batch size in
    `batches`."""

    name: str  # name in the library, such as "v100/resnet50"
    board: Board  # the measured GPU
    virtual_gpu: Json = field(default=None, metadata=OMITTED_IF_NONE)  # set if the times are from a replay
    software: Json = field(default=None, metadata=OMITTED_IF_NONE)  # releases of PyTorch and cuDNN
    settings: Json = field(default=None, metadata=OMITTED_IF_NONE)  # PyTorch settings such as TF32
    protocol: Json = field(default=None, metadata=OMITTED_IF_NONE)  # how the times were measured
    grain: Json = field(default=None, metadata=OMITTED_IF_NONE)  # "phase", because the times are those of phases
    spread: Json = field(default=None, metadata=OMITTED_IF_NONE)  # what is known about the spread of the times
    estimated: Json = field(default=None, metadata=OMITTED_IF_NONE)  # which values are estimates
    source: dict[str, Json]  # study, repository, commit, source, date, done
    measured: tuple[int, int]  # the first and the last batch size
    measured_batches: int  # number of measured batch sizes
    out_of_memory_batch: int | None  # smallest batch size that did not fit into memory
    workload: Json  # the known fields of `WorkloadSignature` in traces/model/workload.py, at batch 1
    batches: list[int]  # the batch sizes
    phases_ns: dict[str, list[int]]  # times of each phase
    spread_ns: dict[str, list[int]]  # standard deviations
    memory: CellMemory


@dataclass(frozen=True, slots=True)
class AddFacts:
    """Lists the measurements that `trace library add` has added to the user's library."""

    added: list[str]  # names of the new entries
    file: str  # the new file in the user's library
    against_sending_it: list[str]  # reasons against a contribution


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """Lists the problems that `trace library check` found in each file."""

    files: dict[str, list[Fault]]  # errors and warnings by file
    errors: int  # number of errors


@dataclass(frozen=True, slots=True)
class RemoveFacts:
    removed: str  # name of the removed entry
    file: str  # the removed file


def _passes(text: str, word: str) -> bool:
    if any(sign in word for sign in "*?["):
        return any(fnmatchcase(of, word) for of in (text, *text.split()))
    return word in text


def list_(filters: Filters, json: bool) -> int:
    entries = [entry for entry in all_entries() if filters.matches(entry)]
    if json:
        print(json_text(ListFacts([entry.facts() for entry in entries], faults())))
        return 0
    if not entries:
        say(f"the library has no such entry{_meant(filters)}; trace library list shows all entries")
    else:
        rows = []
        for entry in entries:
            beyond = "" if entry.out_of_memory_batch is None else f"at {entry.out_of_memory_batch}"
            batches = "" if entry.batches is None else f"{entry.batches[0]}-{entry.batches[1]}"
            rows.append([entry.name, entry.device, entry.grain, batches, beyond, entry.source_text])
        head = ["entry", "GPU", "grain", "batches", "out of memory", "source"]
        show_text("\n".join(table(head, rows, width=_width())))
        count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries"
        print(f"\n{count}; trace library show NAME shows one, trace replay --gpu GPU train.py uses them")
    for fault in faults():
        say(fault)
    return 0


def _meant(filters: Filters) -> str:
    everything = all_entries()
    for name, word in vars(filters).items():
        if word and not any(Filters(**{name: word}).matches(entry) for entry in everything):
            known = sorted({str(getattr(entry, name)) for entry in everything if len(str(getattr(entry, name))) < 40})
            return f": no {name} {word}{did_you_mean(word.lower(), known, cutoff=0.4, form=' ({})')}"
    return ""


def show(name: str, json: bool) -> int:
    if name in FORMER_NAMES:
        viewable(name)  # raises an error that explains the problem
        name = FORMER_NAMES[name]
    if "/" not in name and name in {gpu.name for gpu in gpus()}:
        listed = f"`trace library list --gpu {name}` lists its {counted(len(models(name)), 'network')}"
        as_one = f"name one of its networks, such as {name}/{models(name)[0]}"
        raise TraceLibraryError(f"{name} is a GPU; {as_one}. {listed}")
    entry = next((entry for entry in all_entries() if entry.name == name), None)
    if entry is not None and entry.kind == "recording":
        recording = extended(RecordingFacts, entry.facts(), path=str(find(name)))
        show_text(json_text(recording) if json else _lines(as_json(recording), f"trace info {shlex.quote(name)}"))
        return 0
    cell = _shown_cell(name)
    facts = _facts(cell)
    if json:
        print(json_text(facts))
        return 0
    shown = {key: value for key, value in as_json(facts).items() if key not in _OF_THE_TABLE}
    shown["board"] = f"{cell.gpu.device}, {size_text(cell.gpu.memory_bytes)}"
    shown["out_of_memory_batch"] = cell.out_of_memory_batch or f"none up to {cell.last_batch}"
    show_text(_lines(shown | _workload(cell), f"trace replay --trace {cell.name} train.py"))
    head, *rows = _figures(cell)
    show_text("\n" + "\n".join(table(head, rows, width=_width())))
    return 0


def _shown_cell(name: str) -> LibraryCell:
    path = Path(name)
    if path.suffix != SUFFIX or not path.is_file():
        return find_cell(name.partition("@")[0])
    cells = read_cells(path).cells()
    if len(cells) != 1:
        names = ", ".join([*(cell.name for cell in cells[:3]), *(["..."] if len(cells) > 3 else [])])
        raise TraceLibraryError(f"{path} contains {len(cells)} entries ({names}); add the file, then show an entry by its name")
    return cells[0]


def add(path: Path, name: str, json: bool) -> int:
    """Add a recording or a file of measurements to the user's library. Existing files are never overwritten."""
    file = read_cells(path) if path.suffix == SUFFIX else None
    trace = load(find(path)) if file is None else Trace()
    gpu, model = gpu_of(trace, gpus()) if file is None else file.gpu, path.name.removesuffix(TRACE_SUFFIX).removesuffix(SUFFIX)
    cells = [] if file is None else file.cells()
    if name:
        gpu_name, model = _parted(name)
        gpu = replace(gpu, name=gpu_name)
        if file is not None and len(cells) != 1:
            raise TraceLibraryError(f"{path} contains {len(cells)} entries; `--name` needs a file with one entry")
        cells = [replace(cell, gpu=gpu, model=model) for cell in cells]
    if file is None and trace.grain == "phase" and trace.workload is not None:
        step_times_of(trace)  # raises an error that names the missing data
        cells = [cell_of([trace], gpu, model)]
    names = [cell.name for cell in cells] or [f"{gpu.name}/{model}"]
    known = {entry.name for entry in all_entries()}
    if twice := sorted(known.intersection(names)):
        remedy = f"give another name with `--name`, or use `trace library remove {twice[0]}`"
        raise TraceLibraryError(f"the library already has {twice[0]}; {remedy}")
    target = user_folder() / gpu.name / f"{model}{SUFFIX if cells else TRACE_SUFFIX}"
    if target.exists():
        raise TraceLibraryError(f"{target} already exists; use `--name` with another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    if cells:
        write_cells(target, gpu, cells, {} if file is None else file.shared)
    else:
        shutil.copyfile(find(path), target)
    found = findings_of(path if file is not None else find(path))
    against = [of.text for of in found if of.level == ERROR and not of.is_duplicate]
    if json:
        print(json_text(AddFacts(names, str(target), against)))
    else:
        say(f"added {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''} ({target})")
        if not cells:
            lacks = "" if trace.workload is not None else " (it has no workload signature)"
            say(f"--gpu does not find recordings with kernels{lacks}; replay by name: trace replay --trace {names[0]} train.py")
        for text in against:
            say(f"fix this before you contribute the file: {text}")
    return 0


def check(paths: list[Path], json: bool) -> int:
    faults_by_path: dict[str, list[Fault]] = {}
    failed = False
    for path in paths:
        try:
            faults_by_path[str(path)] = findings_of(path)
        except (TraceError, OSError) as error:
            faults_by_path[str(path)] = [unreadable(path, error)]
            failed = True
    found = [finding for of in faults_by_path.values() for finding in of]
    errors = sum(finding.level == ERROR for finding in found)
    if json:
        print(json_text(CheckFacts(faults_by_path, errors)))
    else:
        for name, of in faults_by_path.items():
            for finding in of:
                show_text(f"{name}: {finding.level}: {f'{finding.entry}: ' if finding.entry else ''}{finding.text}")
            if not of:
                print(f"{name}: accepted")
    return 2 if failed else 1 if errors else 0


def remove(name: str, json: bool) -> int:
    own = user_folder()
    recording = own / f"{name}{TRACE_SUFFIX}"
    target = recording
    if recording.is_file():
        recording.unlink()
    else:
        mine = [file for file in cell_files() if own in file.path.parents and name in _names(file.gpu, file.models)]
        if not mine:
            find_cell(name)  # raises an error with similar names if there is no such entry
            file = cell_file(name)
            of = "ships with the tool" if BUNDLED in file.path.parents else f"is in {file.path}, outside of your folder"
            raise TraceLibraryError(f"{name} {of}; only your own entries can be removed")
        target = mine[0].path
        others = [cell for cell in mine[0].cells() if cell.name != name]
        if others:
            write_cells(target, mine[0].gpu, others, mine[0].shared)
        else:
            target.unlink()
    if json:
        print(json_text(RemoveFacts(name, str(target))))
    else:
        say(f"removed {name} ({target})")
    return 0


def _names(gpu: Gpu, models: list[str]) -> set[str]:
    return {f"{gpu.name}/{model}" for model in models}


def _parted(name: str) -> tuple[str, str]:
    gpu_name, _, model = name.partition("/")
    ok = all(part and part[0].isalnum() and all(c.isalnum() or c in "-_." for c in part) for part in (gpu_name, model))
    if not ok:
        raise TraceLibraryError(f"--name {name}: write GPU/MODEL, such as v100/resnet50")
    return gpu_name, model


def _facts(cell: LibraryCell) -> CellFacts:
    provenance = cell.whole_provenance
    of_run = {key: provenance[key] for key in _OF_THE_RUN if key in provenance}
    if cell.spread_ns and "spread" not in provenance:
        of_run["spread"] = _spread_text(cell)
    return CellFacts(
        name=cell.name,
        board=Board(cell.gpu.device, cell.gpu.memory_bytes),
        **of_run,
        source={key: provenance[key] for key in _OF_THE_SOURCE if key in provenance},
        measured=(int(cell.batches[0]), cell.last_batch),
        measured_batches=len(cell.batches),
        out_of_memory_batch=cell.out_of_memory_batch,
        workload=cell.workload.to_json(),
        batches=cell.batches.tolist(),
        phases_ns={phase: times.tolist() for phase, times in cell.phases_ns.items()},
        spread_ns={phase: spread.tolist() for phase, spread in cell.spread_ns.items()},
        memory=CellMemory(cell.memory_batches.tolist(), cell.peak_bytes.tolist(), cell.persistent_bytes.tolist()),
    )


def _spread_text(cell: LibraryCell) -> str:
    shares = {
        phase: spread[times > 0] / times[times > 0] for phase, times in cell.phases_ns.items()
        if (spread := cell.spread_ns.get(phase)) is not None and (times > 0).any()
    }  # fmt: skip
    listed = ", ".join(f"{phase} {100 * of.min():.1f} to {100 * of.max():.1f} %" for phase, of in shares.items())
    return f"standard deviation between steps: {listed}"


def _workload(cell: LibraryCell) -> dict[str, Json]:
    of = cell.workload
    parts = []
    if of.parameters is not None:
        parts.append(f"{of.parameters:,} parameters" + (f" ({size_text(of.parameter_bytes)})" if of.parameter_bytes else ""))
    if of.inputs:
        parts.append(f"inputs {' and '.join(f'N x {chr(120).join(map(str, t.shape[1:]))} {t.dtype}' for t in of.inputs)}")
    parts += [of.optimizer] if of.optimizer else []
    parts += [f"autocast {of.autocast}"] if of.autocast else []
    return {"trains": ", ".join(parts) or "unknown: the entry has no workload signature, so --gpu does not find the entry"}


def _figures(cell: LibraryCell) -> list[list[str]]:
    chosen = [batch for batch in _SHOWN_BATCHES if batch in cell.batches]
    chosen = sorted({*chosen, int(cell.batches[0]), cell.last_batch})
    head = ["batch", *cell.phases_ns, *(["peak memory"] if len(cell.peak_bytes) else [])]
    rows = []
    for batch in chosen:
        row = [str(batch), *(time_text(of) for of in cell.for_batch(batch).phases_ns.values())]
        if len(cell.peak_bytes):
            at = np.flatnonzero(cell.memory_batches == batch)
            row.append(size_text(int(cell.peak_bytes[at[0]])) if len(at) else "-")
        rows.append(row)
    if cell.out_of_memory_batch is not None:
        rows.append([str(cell.out_of_memory_batch), "out of memory"])
    return [head, *([*row, *[""] * (len(head) - len(row))] for row in rows)]


def _lines(facts: Mapping[str, Any], next_step: str) -> str:
    wide = max(map(len, facts))
    lines = [f"{key.replace('_', ' '):{wide}}  {_text(value)}" for key, value in facts.items() if value not in (None, {}, [])]
    return "\n".join([*lines, "", f"next: {next_step}"])


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key.replace('_', ' ')} {_text(of)}" for key, of in value.items())
    if isinstance(value, list) and len(value) == 2 and all(isinstance(of, int) for of in value):
        return f"batch {value[0]} to {value[1]}"
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _width() -> int:
    return terminal_style(sys.stdout)["width"] if sys.stdout.isatty() else 160
