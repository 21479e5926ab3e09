"""Names of copies and waits as four vendors' profilers write them."""

from __future__ import annotations

import pytest

from traces.names.device_names import copy_direction


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "h2d"),
        ("Memcpy DtoH (Device -> Host)", "d2h"),
        ("CopyHostToDevice", "h2d"),
        ("Memcpy M2D (MEMORY(Unknown) -> DEVICE)", "h2d"),
        ("Memcpy H2D (HOST -> DEVICE)", "h2d"),
        ("Memcpy D2M (DEVICE -> MEMORY(Unknown))", "d2h"),
        ("Memcpy D2D (DEVICE -> DEVICE)", "d2d"),
        ("Memcpy PtoP (Device -> Device)", "p2p"),
        ("void pooling_D2Max<float>()", ""),
        ("Memset (Device)", ""),
    ],
)
def test_the_direction_of_a_copy_is_read_from_its_name(name: str, direction: str) -> None:
    assert copy_direction(name) == direction
