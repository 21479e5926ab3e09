"""Tests that layers, losses, gradients and reads in tests/zoo give the shapes, dtypes and layouts of the CPU. No script is
replayed."""

from __future__ import annotations

import warnings

import pytest

from tests.replayer.fake_gpu import use
from tests.zoo.groups import all_groups

FAMILIES = ("attention", "autograd", "layers", "modules", "training", "values")
_NEEDS_A_RECORDING = {"values.lengths_of_what_is_generated"}  # this group is tested in tests/zoo


@pytest.mark.parametrize("family", FAMILIES)
def test_results_on_the_gpu_have_the_shapes_and_dtypes_of_the_cpu(family: str) -> None:
    from tests.zoo.run import outcome

    warnings.simplefilter("ignore")
    wrong = {}
    for name, group in all_groups().items():
        is_own = name.startswith(f"{family}.") and name not in _NEEDS_A_RECORDING
        if is_own and "recorded" in group.values and not group.needs:
            use()
            wrong[name] = outcome(group, "recorded")
    assert {name: text for name, text in wrong.items() if text} == {}
