"""The quick form of benchmarks/reliability.py runs without a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from benchmarks.reliability import (
    Row,
    campaign,
    closed_pipes,
    extreme_numbers,
    few_descriptors,
    full_disks,
    raw_mutations,
    sealed_mutations,
    several_writers,
    strange_names,
)

# The quick run contains the kinds of tests that do not need torch; signals and unusual scripts are only in the long run.
QUICK = (
    *(raw_mutations, sealed_mutations, extreme_numbers, strange_names),
    *(closed_pipes, full_disks, few_descriptors, several_writers),
)


@pytest.mark.parametrize("run", QUICK, ids=lambda run: run.__name__)
def test_damaged_files_cause_no_faults(run: Callable[[Path, Random, bool], Row]) -> None:
    row = campaign(run, seed=7, quick=True)

    assert row.faults == [] and row.outcomes.total() > 4
