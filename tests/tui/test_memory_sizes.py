"""Tests how memory sizes of GPUs are read from an option."""

from __future__ import annotations

import pytest

from traces.model.trace import TraceError
from tui.memory_sizes import parse_sizes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7.79GiB", [8_364_448_808]),
        ("7.79 gib", [8_364_448_808]),
        ("16G", [16 << 30]),
        ("16g,8G", [16 << 30, 8 << 30]),
        ("16GB, 512MiB", [16_000_000_000, 512 << 20]),
        ("8000 MB", [8_000_000_000]),
        (".5TiB", [1 << 39]),
        ("1024", [1024]),
        ("1024B", [1024]),
        ("2k", [2048]),
    ],
)
def test_memory_sizes_are_parsed(text: str, found: list[int]) -> None:
    assert parse_sizes(text) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [(text, text) for text in ("much", "-4GiB", "4 GiB 5", "0GiB", "4iB", "1e9", "4GiB;8GiB", "GiB")]
    + [("", "an empty word"), ("4GiB, ", "an empty word"), ("4GiB, 4XiB ", "4XiB")],
)
def test_invalid_sizes_are_named_in_the_error(text: str, named: str) -> None:
    with pytest.raises(TraceError, match=rf"^'{named}' is not a memory size; write 7\.79GiB"):
        parse_sizes(text)
