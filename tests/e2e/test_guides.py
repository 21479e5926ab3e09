"""Tests that each command in the guides of docs/ runs and prints the output in the guide, except for numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_studies import study

GUIDES = study("guides")


def words(output: str) -> list[str]:
    """Return the lines of an output without numbers, units and column widths. These differ between runs and machines."""
    number = r"[-+~]?\d[\d.,]*( ?(ns|µs|ms|s|%|[KMG]iB|MB/s))?"
    return [
        re.sub(number, "#", " ".join(line.split())) for line in output.splitlines()
    ]


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
            first = [words(part)[:2] for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)]
            assert first == [words(part)[:2] for part in re.split(r"^(?=\$ )", shown, flags=re.MULTILINE)]


def test_command_output_is_inserted_after_its_command() -> None:
    text = "a\n```console\n$ one    # exit code 1\nold\n$ two\nx\n...\n```\nb\n```\n$ no\n```\n"
    ran = [GUIDES.Ran("one    # exit code 1", "new\n", 1), GUIDES.Ran("two", "y\nz\n", 0)]
    assert (
        GUIDES.with_output(text, ran) == "a\n```console\n$ one    # exit code 1\nnew\n$ two\ny\n...\n```\nb\n```\n$ no\n```\n"
    )
    assert [one.exit_code == one.expected_exit_code for one in ran] == [True, True]
