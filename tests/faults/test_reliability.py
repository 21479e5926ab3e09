"""Tests that the quick form of benchmarks/reliability.py finds no fault."""

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

# The quick run contains the tests that do not need torch. Only the long run tests signals and unusual scripts.
QUICK = (
    *(raw_mutations, sealed_mutations, extreme_numbers, strange_names),
    *(closed_pipes, full_disks, few_descriptors, several_writers),
)


@pytest.mark.parametrize("run", QUICK, ids=lambda run: run.__name__)
def test_damaged_files_cause_no_faults(run: Callable[[Path, Random, bool], Row]) -> None:
    row = campaign(run, seed=7, quick=True)

    assert row.faults == [] and row.outcomes.total() > 4
