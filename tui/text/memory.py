"""Formats the memory peaks of a recording and its replay.

    peak_rows({"cuda:0": MemoryComparison(recorded_peak_bytes=2 << 30, replayed_peak_bytes=2 << 30, ...)})
    # [["cuda:0", "2.0 GiB", "2.0 GiB", "same"]]
    memory_sentences({"cuda:0": MemoryComparison(capacity_bytes=8 << 30, fits=True, ...)})
    # ["cuda:0: fits into 8.0 GiB: peak 5.7 GiB reserved and 512.0 MiB outside of PyTorch, 1.8 GiB left."]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from traces.comparison.thresholds import DEFAULT_TOLERANCE
from tui.formatting import ABSENT, size_text

if TYPE_CHECKING:
    from traces.comparison.comparison_figures import MemoryComparison


def peak_rows(memory: Mapping[str, MemoryComparison]) -> list[list[str]]:
    rows = []
    for device, of in memory.items():
        rows.append(_row(device, of.recorded_peak_bytes, of.replayed_peak_bytes))
        if of.rises_compared:
            rows.append(_row(f"{device}, rise within a step", *of.compared_bytes))
    return rows


def memory_name(of: MemoryComparison) -> str:
    return "memory rise within a step" if of.rises_compared else "memory peak"


def _row(label: str, a: int | None, b: int | None) -> list[str]:
    change = ABSENT if a is None or b is None else "same" if a == b else size_text(b - a, signed=True)
    return [label, size_text(a), size_text(b), change]


def memory_sentences(memory: Mapping[str, MemoryComparison]) -> list[str]:
    sentences = []
    if any("summed" in (of.recorded_source, of.replayed_source) for of in memory.values()):
        sentences.append("Memory that was allocated before a recording began is not in its memory peak.")
    peaks = [(of.recorded_source, of.recorded_peak_bytes) for of in memory.values()]
    if ("run", None) in peaks + [(of.replayed_source, of.replayed_peak_bytes) for of in memory.values()]:
        sentences.append(
            "Memory peaks are not compared, because a compiled trace has no memory events. The peak of its whole run includes"
            " the memory that compiling took."
        )
    without_events = [of for of in memory.values() if of.recorded_source == "run" and of.reserved_peak_bytes is not None]
    pairs = [(of.recorded_peak_bytes, of.replayed_peak_bytes) for of in without_events]
    if any(a and b and a > b and size_text(a) != size_text(b) for a, b in pairs):
        sentences.append(
            "The recording has no memory events, so the replay lacks temporary memory of kernels, such as cuDNN's workspaces."
        )
    for device, of in memory.items():
        whole = 0 if of.recorded_peak_bytes is None else of.replayed_run_peak_bytes or 0
        if whole > (1 + DEFAULT_TOLERANCE) * (of.replayed_peak_bytes or whole):
            sentences.append(
                f"{device}: the peak of the whole second trace is {size_text(whole)}. Memory is compared only in steps that"
                " do not compile and that have memory events in both traces."
            )
    return sentences + fit_sentences(memory)


def fit_sentences(memory: Mapping[str, MemoryComparison]) -> list[str]:
    limited = {device: of for device, of in memory.items() if of.capacity_bytes is not None}
    return [_fit(device, of) for device, of in limited.items() if of.fits is False or of.capacity_given]


def _fit(device: str, of: MemoryComparison) -> str:
    capacity, outside, reserved = of.capacity_bytes or 0, of.outside_bytes or 0, of.reserved_peak_bytes or 0
    needed = f"peak {size_text(reserved)} reserved" + (f" and {size_text(outside)} outside of PyTorch" if outside else "")
    if of.fits is None:
        return f"{device}: {size_text(capacity)} were sufficient until the script failed: {needed}."
    if of.fits:
        return f"{device}: fits into {size_text(capacity)}: {needed}, {size_text(capacity - outside - reserved)} left."
    count = "once" if of.ooms == 1 else f"{of.ooms} times"
    return f"{device}: does NOT fit into {size_text(capacity)}: out of memory {count}, {needed}."
