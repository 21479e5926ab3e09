"""The README names every command and every option: what is not there does not exist for a user."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup, TyperOption

from tui.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GROUP = typer.main.get_command(app)
COMMANDS = GROUP.commands if isinstance(GROUP, TyperGroup) else {}


def section_of(name: str) -> str:
    """What the README says about one command: from its bold name to the next one's."""
    _, _, rest = README.partition(f"**`trace {name}")
    return rest.partition("\n**`trace ")[0].partition("\n## ")[0]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_and_its_options_are_in_the_readme(name: str) -> None:
    section = section_of(name)
    assert section, f"README.md has no paragraph that begins with **`trace {name}"
    for option in COMMANDS[name].params:
        if isinstance(option, TyperOption):
            assert option.help, f"trace {name} {option.opts[0]} has no help text"
            for spelling in option.opts:
                assert f"`{spelling}" in section or f" {spelling} " in section, f"trace {name}: {spelling} is not told"


def test_no_command_of_the_readme_is_missing() -> None:
    told = {line.split()[1].strip("`*") for line in README.splitlines() if line.startswith("**`trace ")}
    assert told == set(COMMANDS)


def test_the_exit_and_debug_rules_are_told() -> None:
    for text in ("TRACE_DEBUG=1", "exit code is the script's", "--version", "--help"):
        assert text in README


def test_the_glossary_is_short_and_says_each_word_once() -> None:
    glossary = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    rows = [line for line in glossary.splitlines() if line.startswith("| ")]
    terms = [term.strip() for row in rows if not row.startswith("| term ") for term in row.split("|")[1].split(",")]
    assert 20 <= len(terms) <= 30 and len(set(terms)) == len(terms)
