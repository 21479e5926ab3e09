"""Describes problems of a recording, such as lost kernels, in full sentences.

    problems = problems_of({"lost-kernel": 4}, kernels=2)
    problems[0].text        # "The recording lacks 4 of 6 kernels, so idle time is not reliable."
    problems[0].severity    # Severity.SERIOUS

`Trace.problems` counts the problems that were found while a recording was read. problems.toml contains the sentences that
describe each problem. INFORMATION does not affect results. A SERIOUS problem makes the main results of `trace info` unreliable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

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
    serious_if_many: bool = False  # True if the problem is serious when it affects at least SERIOUS_SHARE of the kernels
    why_work_is_hidden: str = ""  # why the device may have worked at times at which it seems idle


_UNKNOWN = _Kind(Severity.WARNING, "Problems of the kind {kind} were found in the file (count: {n}).")


@cache
def _kinds() -> dict[str, _Kind]:
    import tomllib  # not needed if there are no problems

    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    many, hidden = table["serious_if_many"], table["why_work_is_hidden"]
    texts = [(severity, name, text) for severity in Severity for name, text in table[severity.name].items()]
    return {name: _Kind(severity, text, name in many, hidden.get(name, "")) for severity, name, text in texts}


def _kind(problem: str) -> _Kind:
    return _kinds().get(problem.partition(" ")[0], _UNKNOWN)


def problems_of(counts: Mapping[str, int], kernels: int) -> list[Problem]:
    found = [_problem(kind, count, kernels) for kind, count in counts.items() if count]
    return sorted(found, key=lambda problem: (-problem.severity, problem.kind))


def serious_problems(trace: Trace) -> list[Problem]:
    kernels = int((trace.device.kind == DeviceKind.KERNEL).sum())
    return [of for of in problems_of(trace.problems, kernels) if of.severity is Severity.SERIOUS]


def why_work_is_hidden(trace: Trace) -> str:
    reasons = (_kind(of.kind).why_work_is_hidden for of in serious_problems(trace))
    return next((reason for reason in reasons if reason), "")


def is_cut(problems: Mapping[str, int]) -> bool:
    return any(_kind(problem).why_work_is_hidden == _kind("truncated-file").why_work_is_hidden for problem in problems)


def _problem(kind: str, count: int, kernels: int) -> Problem:
    of, what = _kind(kind), kind.partition(" ")[2]
    expected = kernels + count if kind == "lost-kernel" else max(kernels, count)
    severity = Severity.SERIOUS if of.serious_if_many and count >= SERIOUS_SHARE * expected else of.severity
    return Problem(kind, count, severity, of.text.format(n=f"{count:,}", of=f"{expected:,}", kind=kind, what=what))
