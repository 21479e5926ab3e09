"""Lists the recordings and published step times in the library.

    [entry.name for entry in all_entries()]     # ["p100-no-cudnn", ..., "v100/resnet50", ...]
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traces.format.trace_file import load
from traces.library import SUFFIX, entries
from traces.library.catalogue import cell_files, folders
from traces.library.recorded_cells import gpu_of
from traces.model.json_facts import extended
from traces.model.trace import TraceError


@dataclass(frozen=True)
class EntryFacts:
    """Describes one entry of the library."""

    name: str  # such as "v100/resnet50"
    gpu: str  # short name of the GPU, such as "v100"
    device: str  # the name that CUDA reports
    model: str  # name of the neural network
    grain: str  # "kernel" or "phase"
    source: str  # origin of the measurements
    batches: tuple[int, int] | None  # the first and the last measured batch size
    out_of_memory_batch: int | None  # smallest batch size that did not fit into memory
    kind: Literal["recording", "cells"]  # "recording" for a trace file, "cells" for measured step times by batch size


@dataclass(frozen=True)
class LibraryEntry(EntryFacts):
    source_text: str  # short form of `source`
    path: Path

    def facts(self) -> EntryFacts:
        return extended(EntryFacts, self)


def all_entries() -> list[LibraryEntry]:
    bundled = [
        LibraryEntry(
            of.name, of.name.partition("-")[0], of.device, of.what, of.grain, of.source, None, None, "recording", "study",
            of.path,
        )
        for of in entries()
    ]
    files = [(folder, path) for folder in folders()[1:] for path in sorted(folder.rglob(f"*{SUFFIX}"))]
    own = [entry for folder, path in files if (entry := _recording(folder, path)) is not None]
    cells = []
    for file in cell_files():
        for model in file.models:
            try:
                cell = file.cell(model)
            except TraceError:
                continue
            origin = cell.source
            source = " ".join(filter(None, (origin.study, origin.repository, origin.commit, origin.source)))
            short = f"{(origin.repository or origin.source).rpartition('/')[2]} {origin.commit[:10]}"
            cells.append(
                LibraryEntry(
                    cell.name, file.gpu.name, file.gpu.device, model, origin.grain or "phase", source,
                    (int(cell.batches[0]), cell.last_batch), cell.out_of_memory_batch, "cells", short.strip(), file.path,
                )
            )  # fmt: skip
    return [*bundled, *own, *sorted(cells, key=lambda entry: entry.name)]


def _recording(folder: Path, path: Path) -> LibraryEntry | None:
    try:
        trace = load(path)
        gpu = gpu_of(trace)
    except (TraceError, OSError):
        return None
    name = str(path.relative_to(folder)).removesuffix(SUFFIX)
    run = trace.run_of(trace.ranks[0])
    what = run.script.name if run.script is not None else path.stem
    source = run.source or "recording"
    of_gpu = name.partition("/")[0] if "/" in name else gpu.name
    return LibraryEntry(name, of_gpu, gpu.device, what, trace.grain, source, None, None, "recording", source, path)
