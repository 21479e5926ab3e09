"""What the kinds of problems that an import counts mean, in a line each: what was found, and what was done about it.

explain("truncated-json")  # "the file ends in the midst of an event: all whole events before that were read"
"""

from __future__ import annotations

_EXPLANATIONS = {
    "byte-order-mark": "the file begins with a byte-order mark, which was skipped",
    "control-character": "a raw control character inside a text was kept",
    "damaged-gzip": "the compressed data is damaged: what came before the damage was read",
    "half-character": "half of a character that is written in two parts was replaced",
    "duration-overflow": "a duration is absurdly long, as of an event that never ended: it was set to 0",
    "event-without-duration": "an event that lasts has no `dur`: it was kept with a duration of 0",
    "event-without-name": "an event has no name: it was kept as `unknown`",
    "invalid-escape": "a backslash inside a text begins no known escape: it was taken as it stands",
    "invalid-utf8": "bytes that are no UTF-8 were replaced",
    "kernel-before-launch": "device work begins before the call that launched it: the clocks of host and GPU disagree",
    "kernel-without-launch": "device work whose launching call was not recorded, mostly from before the window",
    "negative-duration": "an event ends before it begins: its duration was set to 0",
    "non-finite-number": "NaN, Infinity or N/A stands where a number should: it was taken as missing",
    "other-phase-event": "an event of a kind that says nothing about time (a counter, a sample) was left out",
    "partial-overlap": "a host span overlaps its neighbour without lying inside it: it was kept beside it",
    "profile-steps-missing-or-extra": "a profile holds other steps than were recorded: those that both have were used",
    "profile-without-steps": "a profile holds no step: its kernels were left out",
    "rank-told-twice": "two recordings say that they are of one rank: the second got the next free number",
    "skipped-file": "a file among the recordings is none: it was left out; `trace info` has its name under skipped_files",
    "trailing-comma": "a comma before a closing bracket was passed over",
    "truncated-file": "the file ends early: everything before the cut was read",
    "truncated-gzip": "the compressed data ends early: everything before the cut was read",
    "truncated-json": "the file ends in the midst of an event: all whole events before that were read",
    "unescaped-quote": "a quotation mark inside a name was not escaped: it was taken as part of the name",
    "unknown-category": "events of a category that is not known: those that last were kept, as nobody's work",
    "unreadable-duration": "a duration is no number: it was set to 0",
    "unreadable-event": "an event could not be understood and was left out",
    "unreadable-header": "what the file says about devices and versions could not be read",
    "zero-timestamp": "an event has no time stamp: it was left out",
}


def explain(kind: str) -> str:
    return _EXPLANATIONS.get(kind.partition(" ")[0], "counted while reading")
