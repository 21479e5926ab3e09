"""Tests that the groups of operations in tests/zoo give the shapes, dtypes and layouts of the CPU. No script is replayed."""

from __future__ import annotations

import warnings

import pytest

from tests.replayer.fake_gpu import use
from tests.zoo.groups import all_groups

FAMILIES = ("around", "indexing", "inference", "layouts", "linalg", "pointwise", "random", "reductions", "shapes")


@pytest.mark.parametrize("family", FAMILIES)
def test_results_on_the_gpu_have_the_shapes_and_dtypes_of_the_cpu(family: str) -> None:
    from tests.zoo.run import outcome

    warnings.simplefilter("ignore")
    wrong = {}
    for name, group in all_groups().items():
        if name.startswith(f"{family}.") and "recorded" in group.values and not group.needs:
            use()
            wrong[name] = outcome(group, "recorded")
    assert {name: text for name, text in wrong.items() if text} == {}
