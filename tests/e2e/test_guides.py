"""Tests that each command in the guides of docs/ prints the output in the guide, except for `trace stalls`, which measures this
machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_studies import study

GUIDES = study("guides")


def repeatable(command: str) -> list[str]:
    """Return a command and the lines of its output that are the same on all machines. For `trace stalls`, this is only the line
    that says where the GPU times come from."""
    lines = command.splitlines()
    return lines[:2] if lines[0].startswith("$ trace stalls") else lines


@pytest.mark.slow
@pytest.mark.parametrize("guide", sorted(GUIDES.GUIDES.glob("*.md")), ids=lambda guide: guide.stem)
def test_the_commands_of_a_guide_print_the_output_in_the_guide(guide: Path, tmp_path: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    ran = list(GUIDES.run(text, tmp_path))
    assert ran
    assert [(one.line, one.exit_code) for one in ran] == [(one.line, one.expected_exit_code) for one in ran]
    again = GUIDES.with_output(text, ran)
    for (language, block), (_, shown) in zip(GUIDES.blocks(again), GUIDES.blocks(text), strict=True):
        if language == "console":
            parts = [re.split(r"^(?=\$ )", one, flags=re.MULTILINE)[1:] for one in (block, shown)]
            assert [repeatable(part) for part in parts[0]] == [repeatable(part) for part in parts[1]]


def test_command_output_is_inserted_after_its_command() -> None:
    text = "a\n```console\n$ one    # exit code 1\nold\n$ two\nx\n...\n```\nb\n```\n$ no\n```\n"
    ran = [GUIDES.Ran("one    # exit code 1", "new\n", 1), GUIDES.Ran("two", "y\nz\n", 0)]
    assert (
        GUIDES.with_output(text, ran) == "a\n```console\n$ one    # exit code 1\nnew\n$ two\ny\n...\n```\nb\n```\n$ no\n```\n"
    )
    assert [one.exit_code == one.expected_exit_code for one in ran] == [True, True]
