"""Checks a recording or a file of step times before it is added to the library.

    for finding in check(Path("v100.cells")): print(finding.level, finding.text)

Note [What is personal]
    The metadata of a recording may not contain paths in home folders, e-mail addresses or names of machines. The recorder never
    writes them, but text that a person has added may contain them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traces.comparison.thresholds import LEAST_OF_SMALLER_BATCH, MOST_NOISE, SHORT_PHASE_NS
from traces.figures.measure import steady_steps
from traces.format.trace_file import load
from traces.library.catalogue import BUNDLED, cell_files
from traces.library.cells import SUFFIX, CellSource, LibraryCell, read_cells
from traces.library.matching import match_with
from traces.model.json_facts import Json
from traces.model.trace import Trace, TraceError
from traces.model.typed_json import fitting, to_json
from traces.model.workload import WorkloadSignature

ERROR, WARNING = "error", "warning"

_PERSONAL = (
    (re.compile(r"(?:/(?:home|Users|root)/|[A-Za-z]:\\Users\\)[^\s\"']+"), "a path in a home folder"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[a-z]{2,}", re.IGNORECASE), "an e-mail address"),
    (re.compile(r"\b[\w-]+\.(?:local|internal|lan|corp)\b", re.IGNORECASE), "the name of a machine"),
)
_PERSONAL_KEYS = frozenset({"user", "username", "host", "hostname", "node", "machine_name", "ip", "email"})
_ON_A_LINE = 1e-9
_LINE_ROWS = 5


@dataclass(frozen=True)
class Fault:
    """Describes one error or warning."""

    level: str  # "error" or "warning"
    entry: str  # name of the cell or recording
    text: str  # the problem in words
    is_duplicate: bool = False  # whether the library already has the entry


def check(path: Path) -> list[Fault]:
    if path.suffix == SUFFIX:
        return [finding for cell in read_cells(path).cells() for finding in _of_cell(cell, path)]
    return list(_of_recording(load(path), path.stem))


def _of_cell(cell: LibraryCell, path: Path) -> Iterator[Fault]:
    name = cell.name
    yield from _of_signature(cell.workload, cell.source, name)
    yield from _of_source(cell.source, cell.whole_provenance, name)
    if cell.gpu.memory_bytes <= 0:
        yield Fault(ERROR, name, "the card's memory is missing")
    elif len(cell.peak_bytes) and cell.peak_bytes.max() > cell.gpu.memory_bytes:
        at = cell.memory_batches[int(cell.peak_bytes.argmax())]
        beyond = f"exceeds the memory of {cell.gpu.device}, so it was not measured"
        yield Fault(ERROR, name, f"at batch {at} the memory peak {beyond}")
    for phase, times in cell.phases_ns.items():
        noise = cell.spread_ns.get(phase)
        if noise is not None:
            bad = (noise > MOST_NOISE * times) & (times > SHORT_PHASE_NS)
            if bad.any():
                at = int(cell.batches[bad.argmax()])
                yield Fault(WARNING, name, f"{phase} at batch {at} varies by more than {MOST_NOISE:.0%}: record more steps")
        if (drops := times[1:] < LEAST_OF_SMALLER_BATCH * times[:-1]).any() and times.max() > SHORT_PHASE_NS:
            at = int(cell.batches[1:][drops.argmax()])
            yield Fault(WARNING, name, f"{phase} at batch {at} takes less than half as long as at the next smaller batch")
        if _ends_on_a_line(cell.batches, times):
            yield Fault(ERROR, name, f"the {phase} times of the last batches lie on one line, so they were extrapolated")
    if not cell.spread_ns and not cell.source.spread:
        yield Fault(WARNING, name, "the variation of the step times is missing")
    for file in cell_files():
        if file.path.resolve() == path.resolve() or file.gpu.device != cell.gpu.device:
            continue
        for model in file.models:
            if model == cell.model and file.gpu.name == cell.gpu.name:
                if file.path.parent != BUNDLED and file.cell(model).is_equal_to(cell):
                    yield Fault(WARNING, name, f"your own library already has this entry: {file.path}", True)
                else:
                    yield Fault(ERROR, name, f"the library already has an entry with this name: {file.path}", True)
            elif match_with(file.cell(model), cell.workload).is_same:
                yield Fault(WARNING, name, f"the library has the same network on this card as {file.gpu.name}/{model}")


def _of_recording(trace: Trace, name: str) -> Iterator[Fault]:
    run = trace.run_of(trace.ranks[0])
    facts = to_json(run) | trace.provenance
    source = fitting(CellSource, facts | {"virtual_gpu": run.virtual_gpu})
    if trace.workload is None:
        yield Fault(ERROR, name, "the entry has no workload signature (what was trained), so --gpu cannot find it")
    else:
        yield from _of_signature(trace.workload, source, name)
    yield from _of_source(source, facts, name)
    if trace.is_replay or run.predicted:
        yield Fault(ERROR, name, f"not measured: it is a {'prediction' if run.predicted else 'replay'}")
    if not trace.devices:
        yield Fault(ERROR, name, "it has no GPU")
    steps = steady_steps(trace)
    if not len(steps):
        yield Fault(ERROR, name, "it has no complete step")
    elif len(steps) > 3:
        times = trace.steps.duration_ns[steps]
        quarter = float(np.percentile(times, 75) - np.percentile(times, 25)) / 2
        if quarter > MOST_NOISE * float(np.median(times)):
            yield Fault(WARNING, name, f"the step times vary by more than {MOST_NOISE:.0%}")
    for kind, count in sorted(trace.problems.items()):
        yield Fault(WARNING, name, f"{count} x {kind}")


def _of_signature(workload: WorkloadSignature, source: CellSource, name: str) -> Iterator[Fault]:
    lacking = [field for field in ("parameters", "modules", "inputs", "optimizer") if getattr(workload, field) is None]
    if lacking:
        needed = source.kind != "published" or {"parameters", "inputs"} & set(lacking)
        yield Fault(ERROR if needed else WARNING, name, f"its workload signature lacks {', '.join(lacking)}")


def _of_source(source: CellSource, facts: dict[str, Json], name: str) -> Iterator[Fault]:
    if not (source.repository or source.study or source.source or facts.get("script")):
        yield Fault(ERROR, name, "the entry does not name the source of its figures")
    if source.virtual_gpu:
        yield Fault(ERROR, name, f"not measured: recorded on a virtual GPU with the times of {source.virtual_gpu}")
    for key, text in _texts(facts, ""):
        for pattern, what in _PERSONAL:
            if (found := pattern.search(text)) is not None:
                yield Fault(ERROR, name, f"{key} contains {what}: {found[0][:60]}")
        if key.rpartition(".")[2].lower() in _PERSONAL_KEYS and text:
            yield Fault(ERROR, name, f"{key} names a person or a machine")


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, of in value.items():
            yield from _texts(of, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for of in value:
            yield from _texts(of, key)
    elif isinstance(value, str):
        yield key, value


def _ends_on_a_line(batches: Any, times: Any) -> bool:
    if len(times) < _LINE_ROWS or len(set(np.diff(batches[-_LINE_ROWS:]).tolist())) != 1:
        return False
    last = times[-_LINE_ROWS:].astype(float)
    bends = np.abs(last[:-2] + last[2:] - 2 * last[1:-1])
    return bool((bends <= 2 + _ON_A_LINE * last.max()).all() and last.max() > SHORT_PHASE_NS)


def unreadable(path: Path, error: TraceError | OSError) -> Fault:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Fault(ERROR, "", reason.removeprefix(f"{path}: "))
