"""Describes problems of a recording, such as lost kernels, in full sentences.

    problems = problems_of({"lost-kernel": 4}, kernels=2)
    problems[0].text        # "4 of 6 kernels are missing: idle time is not reliable."
    problems[0].severity    # Severity.SERIOUS

`Trace.problems` counts the problems that were found while a recording was read. If a problem has the severity INFORMATION, all
results remain reliable. A problem of severity SERIOUS makes the main output of `trace info` unreliable.
"""

from __future__ import annotations

import re
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
        _INFORMATION,
        "Backlog at start: {n} kernel[|s] or cop[y|ies] had been launched before the recording began."
        " [It belongs|They belong] to no step.",
    ),
    "begin-without-end": _Kind(
        _WARNING, "{n} begin event[|s] [has|have] no end event, or the reverse. [It is|They are] left out."
    ),
    "byte-order-mark": _Kind(_INFORMATION, "The file begins with a byte-order mark, which is skipped."),
    "clean-steps-after-profile": _Kind(
        _WARNING,
        "{n} clean step[|s] ran after the profile, which slows later steps, because too few ran before it."
        " A larger `--clean-steps` avoids this.",
    ),
    "clocks-apart": _Kind(
        _WARNING,
        "{n} kernel[|s] or cop[y|ies] begin[s|] more than 1 ms before the call that launched [it|them]: the clocks of host and"
        " GPU disagree, so idle time is not reliable.",
        serious_if_many=True,
        why_work_is_hidden="the clocks of host and GPU disagree",
    ),
    "clocks-late": _Kind(
        _SERIOUS,
        "All {n} kernels or copies that were launched while the GPU was idle begin more than 1 ms after the launch: the clocks"
        " of host and GPU seem to disagree, so idle time is not reliable.",
        why_work_is_hidden="the clocks of host and GPU disagree",
    ),
    "collective-without-kernel": _Kind(
        _WARNING,
        "{n} collective[|s] [has|have] no kernel on the GPU: the time that [it|each] took is unknown.",
    ),
    "concatenated-files": _Kind(
        _INFORMATION, "The file contains {n} more recording[|s] after the first. All of them are read."
    ),
    "control-character": _Kind(_INFORMATION, "{n} unescaped control character[|s] in texts [is|are] kept."),
    "damaged-gzip": _Kind(
        _SERIOUS, "The compressed data is damaged: everything after the damage is missing.", why_work_is_hidden=_CUT
    ),
    "damaged-log": _Kind(_INFORMATION, "The profiler's own log in the header is not valid JSON. It is left out."),
    "duplicate-correlation": _Kind(
        _WARNING,
        "{n} kernel[|s] or cop[y|ies] [has a correlation id|have correlation ids] that several calls share."
        " The External id, or else the time, decides which call launched [it|each].",
    ),
    "duration-beyond-window": _Kind(
        _WARNING,
        "{n} kernel[|s] or cop[y|ies] seem[s|] to take longer than the whole recording. [It counts|They count] as 0.",
    ),
    "duration-overflow": _Kind(
        _WARNING, "{n} duration[|s] [is|are] absurdly long, as of an event that never ended. [It counts|They count] as 0."
    ),
    "event-without-category": _Kind(
        _WARNING, "{n} event[|s] without category [is|are] kept as host [activity|activities] of no op."
    ),
    "event-without-duration": _Kind(_WARNING, "{n} event[|s] [has|have] no duration. [It counts|They count] as 0."),
    "event-without-name": _Kind(_WARNING, "{n} event[|s] [has|have] no name. [It is|They are] called `unknown`."),
    "half-character": _Kind(_INFORMATION, "{n} incomplete character[|s] in texts [is|are] replaced."),
    "impossible-overlap": _Kind(
        _WARNING,
        "{n} kernel[|s] or cop[y|ies] seem[s|] to run while later work of the same stream runs, which is impossible."
        " [It ends|They end] where the later work begins, or [counts|count] as 0.",
        serious_if_many=True,
        why_work_is_hidden="the recorded times of kernels are impossible",
    ),
    "invalid-escape": _Kind(
        _INFORMATION, "{n} backslash[|es] that begin[s|] no known escape [is|are] kept as [it is|they are]."
    ),
    "invalid-utf8": _Kind(_INFORMATION, "{n} byte[|s] that [is|are] not UTF-8 [is|are] replaced."),
    "kernel-before-launch": _Kind(
        _WARNING,
        "{n} kernel[|s] or cop[y|ies] begin[s|] before the call that launched [it|them]: the clocks of host and GPU disagree,"
        " so launch delays and idle reasons are inexact.",
    ),
    "kernel-without-launch": _Kind(
        _WARNING,
        "The calls that launched {n} kernel[|s] or cop[y|ies] are missing."
        " [It belongs|They belong] to no op, and launch delays and idle reasons leave [it|them] out.",
        serious_if_many=True,
    ),
    "launches-in-order": _Kind(
        _INFORMATION,
        "{n} kernel[|s] or cop[y|ies] [has no id|have no ids]. The order of the calls shows which call launched [it|each].",
    ),
    "killed-script": _Kind(
        _WARNING, "The script was killed, or its disk was full: the end of [the|{n}] recording[|s] is missing."
    ),
    "lost-kernel": _Kind(
        _WARNING,
        "{n} of {of} kernels [is|are] missing: idle time is not reliable.",
        serious_if_many=True,
        why_work_is_hidden="kernels are missing from the recording",
    ),
    "mostly-captured": _Kind(
        _SERIOUS,
        "{n} launch[|es] [was|were] captured into CUDA graphs and did not run, more than the recording has kernels:"
        " idle time means nothing.",
        why_work_is_hidden="most launches were captured into CUDA graphs and did not run",
    ),
    "negative-duration": _Kind(_WARNING, "{n} event[|s] end[s|] before [it begins|they begin]. [It counts|They count] as 0."),
    "non-finite-number": _Kind(_INFORMATION, "{n} number[|s] written as NaN, Infinity or N/A count[s|] as missing."),
    "open-at-the-end": _Kind(
        _WARNING,
        "{n} host span[|s] [was|were] still open when the profiler stopped."
        " [It ends|They end] with the last event on the host.",
    ),
    "other-phase-event": _Kind(_INFORMATION, "{n} event[|s] of a type without duration (samples, marks) [is|are] left out."),
    "partial-overlap": _Kind(
        _INFORMATION,
        "{n} host span[|s] begin[s|] within another span of the same thread and end[s|] after that span."
        " The import does not make [it|them] a part of that span.",
    ),
    "profile-steps-missing-or-extra": _Kind(
        _WARNING, "{n} step[|s] [is|are] in only one of the profile and the recording. Steps that both have are used."
    ),
    "profile-without-steps": _Kind(_SERIOUS, "{n} profile[|s] contain[s|] no step: [its|their] kernels are left out."),
    "rank-told-twice": _Kind(
        _WARNING, "{n} recording[|s] had a rank number that another has too. [It got|They got] the next free number[|s]."
    ),
    "repeated-event": _Kind(_INFORMATION, "{n} event[|s] [is|are] in the file twice. [It is|Each is] read once."),
    "repeated-recording": _Kind(
        _INFORMATION, "The file contains {n} exact cop[y|ies] of a recording. The recording is read once."
    ),
    "skipped-file": _Kind(
        _WARNING, "{n} file[|s] [is|are] not a recording and [is|are] left out (`trace info` lists skipped_files)."
    ),
    "trailing-comma": _Kind(_INFORMATION, "{n} comma[|s] before a closing bracket [is|are] skipped."),
    "truncated-file": _Kind(_SERIOUS, "The file ends early: everything after the cut is missing.", why_work_is_hidden=_CUT),
    "truncated-gzip": _Kind(
        _SERIOUS, "The compressed data ends early: everything after the cut is missing.", why_work_is_hidden=_CUT
    ),
    "truncated-json": _Kind(
        _SERIOUS, "The file ends in the middle of an event: everything after the cut is missing.", why_work_is_hidden=_CUT
    ),
    "unescaped-quote": _Kind(_INFORMATION, "{n} name[|s] contain[s|] unescaped quotation marks, which are kept."),
    "unfinished-launch": _Kind(
        _WARNING,
        "The recording ends before the GPU ran the last [launch|{n} launches]: [its|their] GPU time is missing.",
    ),
    "unknown-category": _Kind(
        _WARNING, "{n} event[|s] of the unknown category {what} [is|are] kept as host [activity|activities] of no op."
    ),
    "unreadable-duration": _Kind(_WARNING, "{n} duration[|s] [is not a number|are not numbers]. [It counts|They count] as 0."),
    "unreadable-event": _Kind(_WARNING, "{n} event[|s] could not be read and [is|are] left out."),
    "unreadable-header": _Kind(_WARNING, "What the file says about devices and versions could not be read."),
    "unreadable-profile": _Kind(_SERIOUS, "{n} profile[|s] could not be read: [its|their] kernels are missing."),
    "zero-timestamp": _Kind(_WARNING, "{n} event[|s] [has|have] no time stamp and [is|are] left out."),
}
_UNKNOWN = _Kind(_WARNING, "{n} problem[|s] of the kind {kind} [was|were] counted while reading.")
_NUMBERS = re.compile(r"\[([^|\]]*)\|([^\]]*)\]")


def problems_of(counts: Mapping[str, int], kernels: int) -> list[Problem]:
    found = [_problem(kind, count, kernels) for kind, count in counts.items() if count]
    return sorted(found, key=lambda problem: (-problem.severity, problem.kind))


def serious_problems(trace: Trace) -> list[Problem]:
    kernels = int((trace.device.kind == DeviceKind.KERNEL).sum())
    return [of for of in problems_of(trace.problems, kernels) if of.severity is Severity.SERIOUS]


def why_work_is_hidden(trace: Trace) -> str:
    """Return the reason why the recorded idle times of GPUs are unreliable, or "" if they are reliable."""
    reasons = (_KINDS.get(of.kind, _UNKNOWN).why_work_is_hidden for of in serious_problems(trace))
    return next((reason for reason in reasons if reason), "")


def is_cut(problems: Mapping[str, int]) -> bool:
    """Return True if the trace was read from a file whose end is missing."""
    return any(_KINDS.get(kind, _UNKNOWN).why_work_is_hidden == _CUT for kind in problems)


def _problem(kind: str, count: int, kernels: int) -> Problem:
    name, _, what = kind.partition(" ")
    of = _KINDS.get(name, _UNKNOWN)
    expected = kernels + count if name == "lost-kernel" else max(kernels, count)
    severity = Severity.SERIOUS if of.serious_if_many and count >= SERIOUS_SHARE * expected else of.severity
    text = _NUMBERS.sub(lambda words: words[1 if count == 1 else 2], of.text)
    return Problem(kind, count, severity, text.format(n=f"{count:,}", of=f"{expected:,}", kind=kind, what=what))
