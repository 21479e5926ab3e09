"""Compares the script's workload signature with the recorded one."""

from __future__ import annotations

from traces.model.workload import Sameness, WorkloadSignature, compare_workloads
from traces.script.workload_observer import WorkloadObserver


class WorkloadCheck:
    """Compares the script's workload with the recorded workload until the script's signature is complete, then keeps the
    result.
    """

    def __init__(self, recorded: WorkloadSignature | None, script: WorkloadObserver) -> None:
        self._recorded = recorded
        self._script = script
        self._is_same = True

    def is_same(self) -> bool:
        """Return whether no difference between the workloads has been found so far."""
        if self._script.is_open and self._recorded is not None and (seen := self._script.so_far) is not None:
            sameness = compare_workloads(self._recorded, seen).sameness
            self._is_same = sameness in (Sameness.SAME_PROGRAM, Sameness.CANNOT_BE_TOLD)
        return self._is_same
