"""Defines the verdict on two traces: whether they were recorded from the same program, and the evidence for it.

    Verdict(Sameness.OTHER_PROGRAM, Evidence.PHASES, "only one of them has the phase backward").same     # False
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from traces.model.workload import Sameness


class Evidence(Enum):
    IDENTICAL = "identical traces"
    OPS_AND_SHAPES = "ops and shapes"
    OP_NAMES = "names of ops"  # used if shapes were not recorded
    KERNEL_NAMES = "names of kernels"  # used if CUDA graphs without ops launch most of a trace's work
    WORKLOAD_SIGNATURE = "workload signature"
    PHASES = "phases"  # one trace has a phase that the other trace lacks
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Verdict:
    sameness: Sameness
    evidence: Evidence
    reason: str
    not_compared: tuple[str, ...] = ()  # data that a trace lacks, such as "shapes"
    batch_sizes: tuple[int, int] | None = None  # batch sizes of both traces, if their ops differ only in the batch size

    @property
    def same(self) -> bool | None:
        if self.sameness is Sameness.CANNOT_BE_TOLD:
            return None
        return self.sameness in (Sameness.SAME_PROGRAM, Sameness.OTHER_COMPILATION)


def same_program_verdict(evidence: Evidence, reason: str, lacking: list[str]) -> Verdict:
    text = f"{reason}. Not compared (missing from one trace): {', '.join(lacking)}" if lacking else reason
    return Verdict(Sameness.SAME_PROGRAM, evidence, text, tuple(lacking))


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
