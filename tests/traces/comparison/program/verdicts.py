"""Contains a function that returns the verdict on two whole traces."""

from __future__ import annotations

import numpy as np

from traces.comparison.program.same_program import same_program
from traces.model.trace import Trace

# --- verdicts on whole traces


def verdict_of(recorded: Trace, other: Trace) -> tuple[bool | None, str]:
    verdict = same_program(recorded, other, np.arange(len(recorded.steps)), np.arange(len(other.steps)))
    return verdict.same, verdict.reason
