"""`trace replay` on cells of the library: which are meant, and what a replay on them is compared with.

    choice = choice_of("", gpu="v100", estimate=False)          # by what the script trains
    choice = choice_of("v100/resnet50", gpu="", estimate=False)
    recorded = driven_by(replayed, blank)

Note [A card that the library lacks]
    A card of the table of GPUs (traces/names/cards.py) of which the library has nothing, or nothing of what the script trains,
    can be estimated op by op. There is nothing to compare such a replay with: its own figures are told, as an estimate.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from traces.comparison.compare import Comparison
from traces.library import is_cell_name
from traces.library.catalogue import cell_file, files_of, gpus
from traces.library.catalogue import gpu as gpu_of
from traces.library.cell_traces import blank_trace, driven_trace
from traces.library.cells import Gpu, read_cells
from traces.model.run import CellSteps
from traces.model.trace import Trace, TraceError, TraceLibraryError
from traces.names.cards import find_card
from traces.script.configuration import CellChoice
from tui.figures import time_text
from tui.text.diff import estimate_sentences
from tui.text.memory import memory_sentences

# How calls of a model were timed, where the cell is that of the script.
_OF_THE_CELL = frozenset({"measured", "interpolated", "training's forward pass"})


def choice_of(trace: str, gpu: str, estimate: bool) -> CellChoice | None:
    """The cells that are meant by --gpu, or by a --trace that is none of a file; None for a recording.

    Raises TraceLibraryError.
    """
    if gpu and trace:
        raise TraceLibraryError(f"--gpu {gpu} finds the times in the library, --trace {trace} names them: give one of the two")
    if gpu:
        if lacks(gpu):
            if not estimate:
                known = f"the library has no times of {gpu}, it has: {', '.join(of.name for of in gpus())}"
                raise TraceLibraryError(f"{known}; --estimate estimates each op, marked")
            return None
        return CellChoice(tuple(file.path for file in files_of(gpu)), estimate=estimate)
    if is_cell_name(trace):
        name = trace.partition("@")[0]
        return CellChoice((cell_file(name).path,), name.partition("/")[2], estimate)
    if estimate:
        raise TraceLibraryError("--estimate goes with --gpu, or with a --trace of the library as v100/resnet50")
    return None


def lacks(gpu: str) -> bool:
    """Whether the library has nothing of a GPU that the table of GPUs has. Raises TraceLibraryError where neither has it."""
    try:
        gpu_of(gpu)
    except TraceLibraryError:
        try:
            find_card(gpu)
        except TraceError:
            return False  # the library says what is nearest
        return True
    return False


def card_alone(gpu: str) -> Trace:
    """A recording of nothing but that card. See Note [A card that the library lacks]."""
    card = find_card(gpu)
    alone = blank_trace(Gpu(gpu, card.names[0], card.memory_bytes))
    alone.grain = "kernel"
    return alone


def estimated_text(replayed: Trace, comparison: Comparison) -> str:
    """Returns the report of a replay without any measured times."""
    steps = [span for span in (comparison.steps, comparison.compute_side) if span.replayed_median_ns is not None]
    said = [f"ESTIMATE: no measurements of this model on {replayed.devices[0].name}; times are predicted."]
    host = ", without host time" if comparison.clock == "recorded" else ", including host time of this machine"
    if steps:
        whole_ns = steps[-1].replayed_median_ns or 0
        said.append(f"Step time: {time_text(whole_ns)} (median, excluding data loading{host}).")
    else:
        said.append("The script completed no training step.")
    return "\n".join([*said, *estimate_sentences(comparison.coverage), *memory_sentences(comparison.memory)])


def card_of(choice: CellChoice) -> tuple[Gpu, Trace]:
    """The card of these cells, and a trace of it without steps of its own."""
    file = read_cells(choice.files[0])
    return file.gpu, blank_trace(file.gpu, file.source, file.provenance)


def driven_by(replayed: Trace, gpu: Gpu, blank: Trace) -> Trace:
    """The recording that the cells amounted to: one step for each kind of step that the replay played."""
    played = _played(replayed)
    calls = [call for steps in played for call in steps.calls]
    known = bool(calls) and all(call.how in _OF_THE_CELL for call in calls)
    cells = sorted({call.cell for call in calls})
    return driven_trace(gpu, blank, [steps.phases_ns for steps in played], cells, replayed.workload if known else None)


def sentences(replayed: Trace) -> list[str]:
    """How the replay's steps were timed: "v100/resnet50: 12 steps of batch 32 as measured, 1 of batch 17 interpolated"."""
    told: dict[str, Counter[tuple[int, str]]] = {}
    for played in _played(replayed):
        for cell, batch, how in {(call.cell, call.batch, call.how) for call in played.calls}:
            told.setdefault(cell, Counter())[batch, how] += played.steps
    return [f"{cell}: {_listed(counts)}" for cell, counts in sorted(told.items())]


def _listed(counts: Counter[tuple[int, str]]) -> str:
    most = counts.most_common(4)
    texts = [
        f"{steps} {'step' if steps == 1 else 'steps'} of batch {batch} {'as measured' if how == 'measured' else how}"
        for (batch, how), steps in most
    ]
    others = len(counts) - len(most)
    return ", ".join([*texts, *([f"and {others} other batch sizes"] if others else [])])


def was_measured(replayed: Trace) -> bool:
    """Whether a cell told any of its times."""
    return any(steps.calls for steps in _played(replayed))


def _played(replayed: Trace) -> tuple[CellSteps, ...]:
    """Of the first rank: ranks of one program go through the same batch sizes."""
    notes = replayed.run_of(replayed.ranks[0]).replay
    return notes.cells if notes is not None else ()


def require_phases_enough(strict: bool, gpus: int) -> None:
    """Raise TraceLibraryError for what only a recording with kernels can drive."""
    if strict:
        raise TraceLibraryError("--strict asks for each op, and cells of the library hold phases alone; drop it")
    if gpus > 1:
        raise TraceLibraryError(f"--gpus {gpus} needs a recording with kernels, and cells of the library hold phases alone")


def saved_in(folder: Path, name: str) -> Path:
    """Where the child finds the blank trace."""
    return folder / f"{name.replace('/', '-')}.msgpack"
