"""Describes problems of a recording, such as lost kernels, in full sentences.

    problems = problems_of({"lost-kernel": 4}, kernels=2)
    problems[0].text        # "The recording lacks 4 of 6 kernels, so idle time is not reliable."
    problems[0].severity    # Severity.SERIOUS

`Trace.problems` counts the problems that were found while a recording was read. A problem of severity INFORMATION does not
affect results. A problem of severity SERIOUS makes the main results of `trace info` unreliable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from traces.comparison.thresholds import SERIOUS_SHARE
from traces.model.trace import DeviceKind, Trace


class Severity(IntEnum):
    INFORMATION = 0
    WARNING = 1
    SERIOUS = 2


@dataclass(frozen=True, slots=True)
class Problem:
    kind: str
    count: int
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class _Kind:
    severity: Severity
    text: str
    serious_if_many: bool = False  # the problem becomes serious at SERIOUS_SHARE of the kernels
    why_work_is_hidden: str = ""  # why the device may have worked at times that look idle


_INFORMATION, _WARNING, _SERIOUS = Severity.INFORMATION, Severity.WARNING, Severity.SERIOUS
_CUT = "the end of the file is missing"

_KINDS = {
    "backlog-at-start": _Kind(
        _INFORMATION, "Kernels or copies were launched before the recording began (count: {n}). They belong to no step."
    ),
    "begin-without-end": _Kind(
        _WARNING, "Begin events without an end event, and end events without a begin event, are left out (count: {n})."
    ),
    "byte-order-mark": _Kind(_INFORMATION, "The file begins with a byte-order mark, which is skipped."),
    "clean-steps-after-profile": _Kind(
        _WARNING,
        "Medians include clean steps that ran after the profile (count: {n}), which slows later steps, because too few clean"
        " steps ran before the profile. A larger `--clean-steps` avoids this.",
    ),
    "clocks-apart": _Kind(
        _WARNING,
        "Kernels or copies begin more than 1 ms before the call that launched them (count: {n}). The clocks of host and GPU"
        " disagree, so idle time is not reliable.",
        serious_if_many=True,
        why_work_is_hidden="the clocks of host and GPU disagree",
    ),
    "clocks-late": _Kind(
        _SERIOUS,
        "All {n} kernels or copies that were launched while the GPU was idle begin more than 1 ms after the launch. The clocks"
        " of host and GPU seem to disagree, so idle time is not reliable.",
        why_work_is_hidden="the clocks of host and GPU disagree",
    ),
    "collective-without-kernel": _Kind(
        _WARNING, "Collectives have no kernel on the GPU (count: {n}), so their durations are unknown."
    ),
    "concatenated-files": _Kind(
        _INFORMATION, "The file contains several recordings, which are all read (count of recordings after the first: {n})."
    ),
    "control-character": _Kind(_INFORMATION, "Unescaped control characters in texts are kept (count: {n})."),
    "damaged-gzip": _Kind(
        _SERIOUS, "The compressed data is damaged: everything after the damage is missing.", why_work_is_hidden=_CUT
    ),
    "damaged-log": _Kind(
        _INFORMATION, "The profiler's own log in the file header is not valid JSON. The import leaves the log out."
    ),
    "duplicate-correlation": _Kind(
        _WARNING,
        "Several calls have the same correlation id as a kernel or copy (count: {n}). The External id, or else the time,"
        " decides which call launched the kernel or copy.",
    ),
    "duration-beyond-window": _Kind(
        _WARNING, "Kernels or copies seem to take longer than the whole recording (count: {n}). Their durations count as 0."
    ),
    "duration-overflow": _Kind(
        _WARNING, "Durations are impossibly long, as if an event had never ended (count: {n}). These durations count as 0."
    ),
    "event-without-category": _Kind(
        _WARNING, "Events without a category are kept as host activities that belong to no op (count: {n})."
    ),
    "event-without-duration": _Kind(_WARNING, "Events without a duration count as 0 ns long (count: {n})."),
    "event-without-name": _Kind(_WARNING, "Events without a name get the name `unknown` (count: {n})."),
    "half-character": _Kind(_INFORMATION, "Incomplete characters in texts are replaced (count: {n})."),
    "impossible-overlap": _Kind(
        _WARNING,
        "Kernels or copies seem to run at the same time as later work of the same stream, which is impossible (count: {n})."
        " They are cut where the later work begins, or count as 0 ns long.",
        serious_if_many=True,
        why_work_is_hidden="the recorded times of kernels are impossible",
    ),
    "invalid-escape": _Kind(_INFORMATION, "Backslashes that begin no known escape sequence are kept (count: {n})."),
    "invalid-utf8": _Kind(_INFORMATION, "Bytes that are not UTF-8 are replaced (count: {n})."),
    "kernel-before-launch": _Kind(
        _WARNING,
        "Kernels or copies begin before the call that launched them (count: {n}). The clocks of host and GPU disagree, so"
        " launch delays and idle reasons are inexact.",
    ),
    "kernel-without-duration": _Kind(
        _WARNING,
        "Kernels take 0 ns in the recording (count: {n}), so GPU time and idle time are not reliable.",
        serious_if_many=True,
        why_work_is_hidden="the durations of kernels are missing",
    ),
    "kernel-without-launch": _Kind(
        _WARNING,
        "The launch calls of some kernels or copies are missing (count: {n}). Such work belongs to no op, and launch delays"
        " and idle reasons leave it out.",
        serious_if_many=True,
    ),
    "launches-in-order": _Kind(
        _INFORMATION,
        "Kernels or copies have no correlation ids (count: {n}). The order of the calls shows which call launched which kernel"
        " or copy.",
    ),
    "killed-script": _Kind(
        _WARNING, "The script was killed, or its disk was full: the end of the recording is missing (count of recordings: {n})."
    ),
    "lost-kernel": _Kind(
        _WARNING,
        "The recording lacks {n} of {of} kernels, so idle time is not reliable.",
        serious_if_many=True,
        why_work_is_hidden="kernels are missing from the recording",
    ),
    "mostly-captured": _Kind(
        _SERIOUS,
        "More launches were captured into CUDA graphs without running (count: {n}) than the recording has kernels, so idle"
        " time is unknown.",
        why_work_is_hidden="most launches were captured into CUDA graphs and did not run",
    ),
    "negative-duration": _Kind(_WARNING, "Events that end before they begin count as 0 ns long (count: {n})."),
    "non-finite-number": _Kind(_INFORMATION, "Numbers written as NaN, Infinity or N/A count as missing (count: {n})."),
    "open-at-the-end": _Kind(
        _WARNING, "Host spans were still open when the profiler stopped (count: {n}). They end with the last event on the host."
    ),
    "other-phase-event": _Kind(
        _INFORMATION, "Events of types without a duration, such as samples and marks, are left out (count: {n})."
    ),
    "partial-overlap": _Kind(
        _INFORMATION,
        "Host spans begin within another span of the same thread and end after that span (count: {n}). The import does not"
        " nest the two spans.",
    ),
    "profile-steps-missing-or-extra": _Kind(
        _WARNING,
        "Steps occur only in the profile or only in the recording (count: {n}). Only steps that occur in both are used.",
    ),
    "profile-without-steps": _Kind(_SERIOUS, "Profiles contain no step, so their kernels are left out (count: {n})."),
    "rank-told-twice": _Kind(
        _WARNING, "Recordings with the rank number of another recording got the next free rank number (count: {n})."
    ),
    "repeated-event": _Kind(_INFORMATION, "Events that the file contains twice are read once (count: {n})."),
    "repeated-recording": _Kind(
        _INFORMATION, "The file contains exact copies of a recording, which is read only once (count: {n})."
    ),
    "skipped-file": _Kind(
        _WARNING, "Files that are not recordings are left out (count: {n}; `trace info` lists them as skipped_files)."
    ),
    "trailing-comma": _Kind(_INFORMATION, "Commas before a closing bracket are skipped (count: {n})."),
    "truncated-file": _Kind(_SERIOUS, "The file ends early: everything after the cut is missing.", why_work_is_hidden=_CUT),
    "truncated-gzip": _Kind(
        _SERIOUS, "The compressed data ends early: everything after the cut is missing.", why_work_is_hidden=_CUT
    ),
    "truncated-json": _Kind(
        _SERIOUS, "The file ends in the middle of an event: everything after the cut is missing.", why_work_is_hidden=_CUT
    ),
    "unescaped-quote": _Kind(_INFORMATION, "Unescaped quotation marks in names are kept (count: {n})."),
    "unfinished-launch": _Kind(
        _WARNING,
        "The recording ends before the GPU ran the last launches (count: {n}), so the GPU time of these launches is missing.",
    ),
    "unknown-category": _Kind(
        _WARNING, "Events of the unknown category {what} are kept as host activities that belong to no op (count: {n})."
    ),
    "unreadable-duration": _Kind(_WARNING, "Durations that are not numbers count as 0 (count: {n})."),
    "unreadable-event": _Kind(_WARNING, "Events that could not be read are left out (count: {n})."),
    "unreadable-header": _Kind(_WARNING, "The file's description of devices and versions could not be read."),
    "unreadable-profile": _Kind(_SERIOUS, "Profiles could not be read, so their kernels are missing (count: {n})."),
    "work-after-synchronization": _Kind(
        _WARNING,
        "Kernels or copies end more than 1 ms after a call that waited for them (count: {n}). The clocks of host and GPU"
        " disagree, so idle time is not reliable.",
        serious_if_many=True,
        why_work_is_hidden="the clocks of host and GPU disagree",
    ),
    "zero-timestamp": _Kind(_WARNING, "Events without a time stamp are left out (count: {n})."),
}
_UNKNOWN = _Kind(_WARNING, "Problems of the kind {kind} were found in the file (count: {n}).")


def problems_of(counts: Mapping[str, int], kernels: int) -> list[Problem]:
    found = [_problem(kind, count, kernels) for kind, count in counts.items() if count]
    return sorted(found, key=lambda problem: (-problem.severity, problem.kind))


def serious_problems(trace: Trace) -> list[Problem]:
    kernels = int((trace.device.kind == DeviceKind.KERNEL).sum())
    return [of for of in problems_of(trace.problems, kernels) if of.severity is Severity.SERIOUS]


def why_work_is_hidden(trace: Trace) -> str:
    reasons = (_KINDS.get(of.kind, _UNKNOWN).why_work_is_hidden for of in serious_problems(trace))
    return next((reason for reason in reasons if reason), "")


def is_cut(problems: Mapping[str, int]) -> bool:
    return any(_KINDS.get(kind, _UNKNOWN).why_work_is_hidden == _CUT for kind in problems)


def _problem(kind: str, count: int, kernels: int) -> Problem:
    name, _, what = kind.partition(" ")
    of = _KINDS.get(name, _UNKNOWN)
    expected = kernels + count if name == "lost-kernel" else max(kernels, count)
    severity = Severity.SERIOUS if of.serious_if_many and count >= SERIOUS_SHARE * expected else of.severity
    return Problem(kind, count, severity, of.text.format(n=f"{count:,}", of=f"{expected:,}", kind=kind, what=what))
