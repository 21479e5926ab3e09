"""Formats a report's notes about the options `--speed`, `--clock` and `--values`, and about unrecorded CUDA events.

    pace_sentences(comparison)[0]    # "Replayed at 2 times the recorded speed: all times are recorded time, ..."
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traces.comparison.thresholds import OWN_HOST_SHARE
from tui.formatting import count_text, share_text, time_text

if TYPE_CHECKING:
    from traces.comparison.comparison_figures import Comparison
    from traces.model.run import HostFigures


def pace_sentences(comparison: Comparison) -> list[str]:
    sentences = []
    speed = comparison.speed
    if speed not in (None, 1):
        sentences.append(
            f"Replayed at {speed:g} times the recorded speed. Times are shown at the recorded speed, so the times of Python and"
            f" data loading on this machine are multiplied by {speed:g}."
        )
    if comparison.clock == "virtual":
        sentences.append(
            "Data loading times are not realistic: on the virtual clock, waits for the GPU take no time, so loader workers"
            " cannot load data during them."
        )
    if comparison.clock == "recorded":
        sentences.append("This machine's own overhead is excluded (--clock recorded).")
    return sentences + overhead_sentences(comparison.host, comparison.steps.replayed_ns)


def overhead_sentences(host: HostFigures, step_ns: int | None) -> list[str]:
    behind_ns = host.lag_ns_per_step or 0
    if not step_ns or behind_ns < OWN_HOST_SHARE * step_ns:
        return []
    own = f"{time_text(min(behind_ns, step_ns))} per step ({share_text(min(behind_ns / step_ns, 1))})"
    return [f"{own} is overhead of the replay (see --clock recorded)."]


def loader_note(comparison: Comparison) -> str:
    if comparison.clock == "virtual":
        return "Compare the step time without data loading."
    return "Data loading ran on this machine, so compare the step time without it."


def values_sentences(comparison: Comparison) -> list[str]:
    if comparison.values.computed:
        return ["Values were computed on this machine's CPU; this did not change GPU times."]
    sentences = []
    if sizes := comparison.values.sizes_assumed:
        results = "1 data-dependent size was" if sizes == 1 else f"{count_text(sizes)} data-dependent sizes were"
        sentences.append(
            f"{results} not recorded (results of a mask, unique or bincount); replay assumed sizes: for a mask, about"
            " half of the elements at first (see --values)."
        )
    if reads := comparison.values.unrecorded_reads:
        values = "1 value that was" if reads == 1 else f"{count_text(reads)} values that were"
        supplied = "a plausible one" if reads == 1 else "plausible ones"
        sentences.append(f"The script read {values} not recorded; replay supplied {supplied} (see --values).")
    return sentences


def event_sentences(comparison: Comparison) -> list[str]:
    """Return a note if the script waited for CUDA events without calling `record` on them. CUDA ignores a wait for an
    unrecorded event."""
    count = comparison.events_never_recorded
    if not count:
        return []
    events = "an event that it never recorded" if count == 1 else f"{count_text(count)} events that it never recorded"
    return [f"The script waited for {events}. CUDA does not wait in this case, so the work was not synchronized."]
