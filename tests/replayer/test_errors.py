"""Tests the messages of replay errors."""

from __future__ import annotations

from replayer.errors import NotExact


def test_the_error_of_strict_mode_names_the_op_and_its_shapes() -> None:
    error = NotExact("aten::where", ((2, 3), (), (7,)), "one op of another shape")
    assert str(error) == (
        "--strict: aten::where (2x3, scalar, 7) has no exact match in the recording (one op of another shape);"
        " remove --strict to continue"
    )
