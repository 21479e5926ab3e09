"""What to know of a replay beside its figures: its speed, its clock, values that were read, waits that CUDA does not make.

pace_sentences(comparison)[0]    # "Replayed at 2 times the recorded speed: all times are recorded time, ..."
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.figures import count_text, share_text, time_text

if TYPE_CHECKING:
    from traces.comparison.compare import Comparison


_MUCH = 0.1  # of a step: less than that of this machine's own time is in the details alone


def pace_sentences(comparison: Comparison) -> list[str]:
    """Where the time of a replay was not the script's, or not real."""
    said = []
    speed = comparison.speed
    if speed not in (None, 1):
        said.append(
            f"Replayed at {speed:g} times the recorded speed: all times are recorded time, so what this machine did itself,"
            f" Python and loading data, counts {speed:g} times."
        )
    if comparison.clock == "virtual":
        said.append(
            "Data loading was not real: on the virtual clock, waiting for the GPU gave a loader's workers no time to load in."
        )
    if comparison.clock == "recorded":
        said.append("This machine's own overhead is excluded (--clock recorded).")
    behind_ns, step_ns = comparison.host.lag_ns_per_step or 0, comparison.steps.replayed_median_ns
    if step_ns and behind_ns >= _MUCH * step_ns:
        own = f"{time_text(min(behind_ns, step_ns))} of a step ({share_text(min(behind_ns / step_ns, 1))})"
        said.append(f"{own} is this host's own time: see --clock recorded.")
    return said


def loader_note(comparison: Comparison) -> str:
    """Why the step time without data loading is judged."""
    if comparison.clock == "virtual":
        return "Compare the step time without data loading."
    return "Data loading ran on this machine, so compare the step time without it."


def values_sentences(comparison: Comparison) -> list[str]:
    """What the script's reads of tensors gave, where that was not what was recorded."""
    if comparison.values.computed:
        return ["Values were computed on this machine's CPU, not recorded; the GPU's times are the trace's."]
    said = []
    if sizes := comparison.values.sizes_assumed:
        results = "One result has a size that is set" if sizes == 1 else f"{count_text(sizes)} results have sizes that are set"
        said.append(
            f"{results} by values (a mask, unique, bincount) that neither the recording nor the host tells: assumed, about half"
            " of the elements at first (--values constant: refused; --values compute: computed)."
        )
    if reads := comparison.values.unrecorded_reads:
        times = "once" if reads == 1 else f"{count_text(reads)} times"
        said.append(
            f"Values that were not recorded were read {times}: as what follows from what the script had put there, else as in a"
            " run that makes progress: finite, a loss that falls from 1.0 (--values constant: 1.0, 0 or False; --values"
            " compute: computed)."
        )
    return said


def event_sentences(comparison: Comparison) -> list[str]:
    """Events that the script waited for and never recorded: on a GPU no wait, and so no deadlock, but hardly what was meant."""
    count = comparison.events_never_recorded
    if not count:
        return []
    events = "an event that was" if count == 1 else f"{count_text(count)} events that were"
    return [
        f"The script waited for {events} never recorded. As CUDA does not wait there, this is no deadlock; but what it was to"
        " wait for goes on unordered."
    ]
