"""Tests which library entry is nearest to a script's network, and which differences are listed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.traces.library.test_library_cells import GPU, NETWORK, a_cell
from traces.library.cells import read_cells, write_cells
from traces.library.matching import batch_of, match_with, nearest_network
from traces.model.trace import TraceLibraryError
from traces.model.workload import InputTensor, WorkloadSignature


def script(**changes: Any) -> WorkloadSignature:
    return replace(NETWORK, **changes)


def inputs(*shapes: tuple[int, ...]) -> tuple[InputTensor, ...]:
    return tuple(InputTensor(shape, "float32") for shape in shapes)


@pytest.mark.parametrize(
    ("shapes", "batch"), [([(4, 3), (4,)], 4), ([(4, 3), (5, 3)], None), ([()], None), ([(0, 3)], None), ([], None)]
)
def test_the_batch_size_is_the_first_dimension_of_all_inputs(shapes: list[tuple[int, ...]], batch: int | None) -> None:
    assert batch_of(WorkloadSignature(inputs=inputs(*shapes))) == batch


@pytest.mark.parametrize(
    ("parameters", "modules", "model"),
    [
        (1000, 3, "small"),
        (1999, 3, "small"),  # 4,000 is 2.001 times as many parameters
        (2001, 3, "large"),
        (4000, 3, "large"),
        (4000, 4, "large"),
        (1000, 5, "small"),
    ],
)
def test_the_nearest_library_entry_has_the_most_similar_number_of_parameters(
    tmp_path: Path, parameters: int, modules: int, model: str
) -> None:
    """GIVEN networks of 1,000 and 4,000 parameters THEN a script with 1,999 parameters is nearer to the small one."""
    cells = [a_cell("small"), a_cell("large", workload=replace(NETWORK, parameters=4000))]
    write_cells(tmp_path / "g9.cells", GPU, cells, {})
    found = nearest_network([read_cells(tmp_path / "g9.cells")], script(parameters=parameters, modules={"Conv2d": modules}))
    assert found.cell.model == model and found.is_same is (parameters in (1000, 4000) and modules == 3)


def test_the_library_entry_with_the_same_kind_of_training_is_preferred(tmp_path: Path) -> None:
    cells = [a_cell("a"), a_cell("b", workload=replace(NETWORK, optimizer="AdamW")), a_cell("c")]
    write_cells(tmp_path / "g9.cells", GPU, cells, {})
    file = read_cells(tmp_path / "g9.cells")
    assert nearest_network([file], script(optimizer="AdamW")).cell.model == "b"
    assert nearest_network([file], script()).cell.model == "a"
    with pytest.raises(TraceLibraryError, match="the library has no step times of any network on this GPU"):
        nearest_network([], script())


@pytest.mark.parametrize(
    ("changes", "differences", "scalable", "ratio"),
    [
        ({}, (), True, 1.0),
        ({"optimizer": None, "autocast": None, "inputs": None}, (), True, 1.0),  # unknown facts are not compared
        ({"inputs": inputs((7, 3, 8, 8))}, (), True, 1.0),  # only the batch size differs
        ({"inputs": inputs((1, 3, 16, 16))}, ((
            "inputs Nx3x8x8 float32 in the library, "
            "1x3x16x16 float32 in the script"
        ),), True, 4.0),
        ({"inputs": inputs((1, 3, 4, 8))}, ((
            "inputs Nx3x8x8 float32 in the library, "
            "1x3x4x8 float32 in the script"
        ),), True, 0.5),
        ({"inputs": inputs((1, 192))}, ("inputs Nx3x8x8 float32 in the library, 1x192 float32 in the script",), False, 1.0),
        ({"optimizer": "AdamW"}, ("optimizer SGD in the library, AdamW in the script",), True, 1.0),
        ({"autocast": "float16"}, ("autocast off in the library, float16 in the script",), False, 1.0),
        ({"trainable_parameters": 10}, ("trainable parameters 1,000 in the library, 10 in the script",), False, 1.0),
        ({"parameter_bytes": 2000}, ("4,000 parameter bytes in the library, 2,000 in the script",), False, 1.0),
        ({"modules": {"Conv2d": 3, "ReLU": 9}}, (), True, 1.0),  # activation modules are not compared
        (
            {"modules": {"Conv2d": 2, "Linear": 1}},
            ("Conv2d modules: 3 in the library, 2 in the script", "Linear modules: 0 in the library, 1 in the script"),
            False, 1.0,
        ),
    ],
)  # fmt: skip
def test_differences_between_a_library_entry_and_a_script_are_listed(
    changes: dict[str, Any], differences: tuple[str, ...], scalable: bool, ratio: float
) -> None:
    found = match_with(a_cell(), script(**changes))
    assert (found.differences, found.scalable, found.input_ratio) == (differences, scalable, ratio)
    assert found.is_same is (differences == ())


@pytest.mark.parametrize(
    ("modules", "is_related"), [({"Conv2d": 3}, True), ({"Conv2d": 3, "Linear": 1}, True), ({"Conv2d": 9}, False), ({}, False)]
)
def test_a_related_entry_has_most_modules_in_common(modules: dict[str, int], is_related: bool) -> None:
    assert match_with(a_cell(), script(parameters=7, modules=modules)).is_related is is_related
