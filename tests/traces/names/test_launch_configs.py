"""Tests that launch configurations are written as text and read from text."""

from __future__ import annotations

from typing import Any

import pytest

from traces.names.launch_configs import config_args, config_text, grid_of

HUGE = 1 << 31


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([[50, 1, 1], [256, 1, 1], 16, 0, 6, None], "50|256|16|0|6"),
        ([[1, 1, 1], [32, 4, 1], 255, 4096, 12, 50.5], "1|32,4|255|4096|12|50.5"),
        ([[1, 1, 2], [0, 1, 1]], "1,1,2|0"),
        ([[HUGE - 1, 1, 1], [HUGE, 1, 1], HUGE - 1, HUGE], f"{HUGE - 1}||{HUGE - 1}"),
        ([[1, 1], [1, 2, 3]], "|1,2,3"),
        ([[-1, 1, 1], [1.0, 1, 1], True, "8"], ""),
        ([None, None, None, -5], "|||-5"),
        ([], ""),
    ],
)
def test_launch_configurations_are_written_as_text(values: list[Any], text: str) -> None:
    assert config_text(values) == text


def test_launch_configurations_are_read_from_text() -> None:
    assert config_args("50|32,4|16|0|6.5|1e2") == {
        "grid": [50, 1, 1],
        "block": [32, 4, 1],
        "registers per thread": 16,
        "shared memory": 0,
        "est. achieved occupancy %": 6.5,
        "theoretical occupancy %": 100.0,
    }
    assert config_args("|1,2,3") == {"block": [1, 2, 3]} and config_args("") == {}
    assert (grid_of("5,6|1"), grid_of("|1"), grid_of("")) == ((5, 6), (), ())
    with pytest.raises(ValueError, match="invalid literal"):
        config_args("a|1")
