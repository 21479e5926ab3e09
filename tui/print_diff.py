"""`trace diff` for people, and the end of every replay: are they the same program, how far apart, and where.

    comparison = compare(load("v100.msgpack"), load("replay.msgpack"))
    print(diff_text(comparison, "v100.msgpack", "replay.msgpack"))

Longer is red and shorter blue where there is colour; the sign says the same without.
"""

from __future__ import annotations

import textwrap

from traces.changes import ChangeLists
from traces.comparison import Comparison, HostFigures
from tui.figures import (
    ABSENT,
    count_text,
    counted,
    error_text,
    fit,
    kernel_text,
    paint,
    printable,
    share_text,
    table,
    time_text,
)
from tui.print_communication import communication_rows
from tui.print_memory import memory_sentences, peak_rows
from tui.print_pace import event_sentences, loader_note, pace_sentences

_SHOWN_CHANGES = 5  # of each kind; the JSON has more
_SHOWN_MISSING = 8
_STEPS_FOR_A_SPREAD = 4
_CHANGE_TITLES = {
    "longer": "take longer",
    "shorter": "take less time",
    "added": "only in {second}",
    "gone": "only in {first}",
}
_JUDGED = {"steps": "the whole step", "compute_side": "the step without data loading", "gpu_busy": "GPU busy time"}
_COVERAGE = {
    "exact": "matched, the same op and shapes",
    "equivalent": "matched, recorded under another name of the op",
    "scaled": "estimated from the op at other shapes",
    "phase": "unmatched remainder of a recorded phase",
    "roofline": "estimated from bytes and FLOPs",
    "published": "estimated from data sheets and published figures",
    "unmatched": "recorded phases that the script never entered",
}


def diff_text(comparison: Comparison, recorded: str, other: str, *, width: int = 80, colour: bool = False) -> str:
    """The text for a terminal `width` wide. The names are what people say."""
    page = _Page(comparison, width, colour)
    lines = [
        *page.names(recorded, other),
        "",
        *page.program(),
        "",
        *page.sentences(pace_sentences(comparison)),
        *page.per_step(),
        *page.phases(),
        *page.parts(),
        *page.streams(),
        *page.coverage(),
        *page.host(),
        *page.communication(),
        *page.memory(),
        *page.values(),
        *page.sentences(event_sentences(comparison)),
        *page.missing(),
        *page.changes(comparison.changes.kernels, "Kernels"),
        *page.changes(comparison.changes.ops, "Ops"),
        *page.verdict(),
    ]
    return printable("\n".join(lines), colour=colour)


class _Page:
    def __init__(self, comparison: Comparison, width: int, colour: bool) -> None:
        self.of = comparison
        self.width = width
        self.colour = colour
        self.first, self.second = ("recorded", "replayed") if comparison.replay else ("A", "B")

    def names(self, recorded: str, other: str) -> list[str]:
        """Which is which, and how many steps of each are compared."""
        counts = self.of.steps_compared
        # Of a replay's recording the steps count as often as they were replayed: no number that would mean anything.
        ours = 0 if self.of.replay else counts.recorded
        rows = ((self.first, recorded, ours), (self.second, other, counts.replayed))
        longest = max(len(self.first), len(self.second))
        lines = []
        for which, name, count in rows:
            text = fit(f"{name}, {counted(count, 'step')}" if count else name, self.width - longest - 2)
            lines.append(f"{self.bold(which.ljust(longest))}  {text}")
        return lines

    def program(self) -> list[str]:
        same, reason = self.of.verdict.same, self.of.verdict.reason
        if same is None:
            said = f"Whether this is the same program cannot be told: {reason}. The figures below are not judged."
            return _wrapped(said, self.width)
        if same:
            return _wrapped(f"The same program: {reason}.", self.width)
        said = f"NOT the same program: {reason}. The figures below compare different work."
        return self.said(said, "red")

    def per_step(self) -> list[str]:
        steps, busy = self.of.steps, self.of.gpu_busy
        if steps.recorded_median_ns is None:
            row = ["GPU busy", *self.pair(busy.recorded_median_ns, busy.replayed_median_ns)]
            return self.times("Whole traces, for not both have training steps", [row, *self.evaluation()])
        rows = [
            [words, *self.pair(of.recorded_median_ns, of.replayed_median_ns)]
            for of, words in (
                (steps, "whole step"),
                (self.of.compute_side, "without data loading"),
                (busy, "GPU busy"),
            )
        ]
        if min(self.of.steps_compared.recorded, self.of.steps_compared.replayed) >= _STEPS_FOR_A_SPREAD:
            rows.append(["fast steps (5th percentile)", *self.pair(steps.recorded_p5_ns, steps.replayed_p5_ns)])
            rows.append(["slow steps (95th percentile)", *self.pair(steps.recorded_p95_ns, steps.replayed_p95_ns)])
        rows += self.evaluation()
        lines = self.times("Median per step", rows)
        floors = [
            f"{share_text(of.noise_floor)} {words}"
            for of, words in ((steps, "of a whole step"), (self.of.compute_side, "without data loading"))
            if of.noise_floor
        ]
        if floors:
            said = (
                f"Steps of {self.first_name()} differ among themselves by {', '.join(floors)}: less than that is noise."
            )
            lines = self.noted(lines, said)
        if self.of.judged == "compute_side":
            lines = self.noted(lines, loader_note(self.of))
        return lines

    def evaluation(self) -> list[list[str]]:
        """A row for validation and inference, where there is any."""
        spread = None if self.of.evaluation is None else self.of.evaluation.steps
        if spread is None or spread == self.of.steps:  # inference: its steps are the steps
            return []
        return [["a batch evaluated", *self.pair(spread.recorded_median_ns, spread.replayed_median_ns)]]

    def phases(self) -> list[str]:
        """Three kinds of time, each in a table of its own: on the host, elapsed between events, and of the GPU being busy."""
        phases = self.of.phases.items()
        if self.of.host_phases_comparable:
            rows = [[name, *self.pair(p.recorded_median_ns, p.replayed_median_ns)] for name, p in phases]
            lines = self.times("Phases on the host, per step", rows)
        else:
            said = (
                "Host times of phases are not compared: one trace's were taken with the GPU synchronized at each boundary, the"
                " other's when the host got there."
            )
            lines = [*_wrapped(said, self.width), ""] if phases else []
        elapsed = {name: (p.device_recorded_median_ns, p.device_replayed_median_ns) for name, p in phases}
        busy = {name: (p.busy_recorded_median_ns, p.busy_replayed_median_ns) for name, p in phases}
        lines += self.pairs("Phases between events, waiting included", elapsed)
        return lines + self.pairs("GPU busy, by the phase that launched", busy)

    def parts(self) -> list[str]:
        """Of nn.DataParallel; between events too, where an asynchronous host would hide it."""
        parts = self.of.parts.items()
        rows = [[name, *self.pair(p.recorded_median_ns, p.replayed_median_ns)] for name, p in parts]
        elapsed = {name: (p.device_recorded_median_ns, p.device_replayed_median_ns) for name, p in parts}
        lines = self.times("Parts of nn.DataParallel on the host", rows)
        return lines + self.pairs("Parts of nn.DataParallel between CUDA events", elapsed)

    def pairs(self, title: str, times_ns: dict[str, tuple[int | None, int | None]]) -> list[str]:
        """A table of what either trace has."""
        known = [[name, *self.pair(*both)] for name, both in times_ns.items() if any(both)]
        return self.times(title, known)

    def streams(self) -> list[str]:
        rows = []
        for row in self.of.streams:
            numbers = [str(n) for n in (row.recorded_stream, row.replayed_stream) if n is not None]
            stream = "/".join(dict.fromkeys(numbers))
            a, b = row.recorded_busy, row.replayed_busy
            points = ABSENT if a is None or b is None else f"{100 * (b - a):+.1f} points"
            rows.append([f"{row.device} stream {stream}", share_text(a), share_text(b), points])
        if not rows:
            return []
        return self.titled(
            table(["Busy share", self.first, self.second, "change"], rows, width=self.width, stretch=True)
        )

    def coverage(self) -> list[str]:
        coverage = self.of.coverage
        if coverage is None:
            return []
        rows = [
            [f"{kind}: {words}", f"{100 * coverage[kind]:.2f} %"]
            for kind, words in _COVERAGE.items()
            if round(coverage[kind], 4) or kind == "exact"  # what shows as 0.00 % is left out
        ]
        return self.titled(
            table(["Where the replay's GPU time comes from", "share"], rows, width=self.width, stretch=True)
        )

    def host(self) -> list[str]:
        host = self.of.host
        if host == HostFigures():
            return []
        rows = [
            ["host overhead: behind the recorded host, per step", time_text(host.lag_ns_per_step)],
            ["time per op", ABSENT if host.us_per_op is None else f"{host.us_per_op:.1f} µs"],
            ["ops per step", ABSENT if host.ops_per_step is None else count_text(round(host.ops_per_step, 1))],
        ]
        return self.titled(table(["Replaying host", ""], rows, width=self.width, stretch=True))

    def communication(self) -> list[str]:
        sides = self.of.communication
        if not sides:
            return []
        head = ["Communication between ranks", self.first, self.second]
        return self.titled(table(head, communication_rows(sides), width=self.width, stretch=True))

    def memory(self) -> list[str]:
        rows = peak_rows(self.of.memory)
        if not rows:
            return []
        lines = self.titled(
            table(["Memory peak", self.first, self.second, "change"], rows, width=self.width, stretch=True)
        )
        for sentence in memory_sentences(self.of.memory):
            lines = self.noted(lines, sentence)
        return lines

    def values(self) -> list[str]:
        if self.of.values.computed:
            said = "Values were computed on this machine's CPU, not recorded; the GPU's times are the trace's."
            return [*_wrapped(said, self.width), ""]
        reads = self.of.values.unrecorded_reads
        if not reads:
            return []
        times = "once" if reads == 1 else f"{count_text(reads)} times"
        said = f"Values that were not recorded were read {times}: as what the script had put there, else as 1.0, 0 or False."
        return [*_wrapped(said, self.width), ""]

    def missing(self) -> list[str]:
        missing = self.of.missing
        rows = [
            [f"{row.op} {row.shapes.replace(',', 'x').replace(';', ' ')}", count_text(row.count)]
            for row in missing[:_SHOWN_MISSING]
        ]
        if len(missing) > _SHOWN_MISSING:
            rows.append([f"and {len(missing) - _SHOWN_MISSING} more", ""])
        if not rows:
            return []
        return self.titled(table(["Not in the recording", "calls"], rows, width=self.width, stretch=True))

    def changes(self, lists: ChangeLists, title: str) -> list[str]:
        lines: list[str] = []
        kinds = {"longer": lists.longer, "shorter": lists.shorter, "added": lists.added, "gone": lists.gone}
        for kind, changes in kinds.items():
            words = _CHANGE_TITLES[kind]
            rows = []
            for change in changes[:_SHOWN_CHANGES]:
                a, b = change.recorded_ns, change.replayed_ns
                counts = [count_text(round(count, 1)) for count in (change.recorded_count, change.replayed_count)]
                number = counts[0] if counts[0] == counts[1] else "→".join(counts)
                times = [time_text(a) if counts[0] != "0" else ABSENT, time_text(b) if counts[1] != "0" else ABSENT]
                rows.append([kernel_text(change.name), number, *times, time_text(b - a, signed=True)])
            if rows:
                words = words.format(first=self.first_name(), second=self.second_name())
                head = f"{title} that {words}" if kind in ("longer", "shorter") else f"{title} {words}"
                per = ", per step" if self.of.steps_compared.recorded else ", in all"
                heads = [head + per, "count", self.first, self.second, "change"]
                lines += self.titled(table(heads, rows, width=self.width, stretch=True))
        return lines

    def verdict(self) -> list[str]:
        if self.of.verdict.same is None:
            return self.said("Not judged: whether this is the same program cannot be told.", "bold")
        error, tolerance = self.of.judged_error, share_text(self.of.tolerance)
        inner = self.of.compute_side.error
        beside = f", without data loading by {error_text(inner)}" if self.of.judged == "steps" else ""
        differs = f"{_JUDGED[self.of.judged]} differs by {error_text(error)}{beside}."
        if self.of.within_tolerance and error is None:
            return self.said("Identical traces; there are neither steps nor GPU work in them to compare.", "green")
        if self.of.within_tolerance:
            return self.said(f"Within {tolerance}: {differs}", "green")
        if error is None:
            return self.said("Nothing to judge: neither steps nor GPU work in both.", "red")
        if self.of.verdict.same is False:
            return self.said(f"Not the same program; {differs}", "red")
        behind_ns = self.of.host.lag_ns_per_step or 0
        if behind_ns > self.of.tolerance * (self.of.steps.recorded_median_ns or 0):
            differs += f" The host here is slower than the recorded one, by {time_text(behind_ns)} per step."
        return self.said(f"Beyond {tolerance}: {differs}", "red")

    def first_name(self) -> str:
        return "the recording" if self.of.replay else "A"

    def second_name(self) -> str:
        return "the replay" if self.of.replay else "B"

    def pair(self, recorded_ns: int | None, replayed_ns: int | None) -> list[str]:
        """The cells of a time in both traces."""
        if recorded_ns is None or replayed_ns is None:
            return [time_text(recorded_ns), time_text(replayed_ns), ABSENT, ABSENT]
        error = replayed_ns / recorded_ns - 1 if recorded_ns else None
        change = time_text(replayed_ns - recorded_ns, signed=True)
        return [time_text(recorded_ns), time_text(replayed_ns), change, error_text(error)]

    def times(self, title: str, rows: list[list[str]]) -> list[str]:
        """A table of `pair` rows; those that differ by more than the tolerance are coloured."""
        if not rows:
            return []
        lines = self.titled(
            table([title, self.first, self.second, "change", "error"], rows, width=self.width, stretch=True)
        )
        for number, row in enumerate(rows, start=1):
            error = row[-1]
            if error != ABSENT and abs(float(error.removesuffix(" %"))) > 100 * self.of.tolerance:
                lines[number] = paint(lines[number], "blue" if error.startswith("-") else "red", colour=self.colour)
        return lines

    def sentences(self, sentences: list[str]) -> list[str]:
        return [line for sentence in sentences for line in [*_wrapped(sentence, self.width), ""]]

    def titled(self, lines: list[str]) -> list[str]:
        return [self.bold(lines[0]), *lines[1:], ""]

    def noted(self, lines: list[str], note: str) -> list[str]:
        """`lines` of a table with a sentence under it."""
        return [*lines[:-1], *_wrapped(note, self.width, "  "), ""]

    def said(self, sentence: str, style: str) -> list[str]:
        return [paint(line, style, colour=self.colour) for line in _wrapped(sentence, self.width)]

    def bold(self, text: str) -> str:
        return paint(text, "bold", colour=self.colour)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """`text` in lines; a figure is not parted from its percent sign."""
    whole = text.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(whole, width, initial_indent=indent, subsequent_indent=indent)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
