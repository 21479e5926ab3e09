"""Checks whether the script runs the recorded model, batch size and data types."""

from __future__ import annotations

from traces.model.workload import Sameness, WorkloadSignature, compare_workloads
from traces.script.workload_observer import WorkloadObserver


class WorkloadCheck:
    def __init__(self, recorded: WorkloadSignature | None, script: WorkloadObserver) -> None:
        self._recorded = recorded
        self._script = script
        self._is_same = True

    def is_same(self) -> bool:
        """Return False if the script's workload is known to differ from the recorded workload."""
        if self._script.is_open and self._recorded is not None and (seen := self._script.so_far) is not None:
            sameness = compare_workloads(self._recorded, seen).sameness
            self._is_same = sameness in (Sameness.SAME_PROGRAM, Sameness.CANNOT_BE_TOLD)
        return self._is_same
