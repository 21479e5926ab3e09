"""Tests that each command has a page that equals its `--help`, that the README is short, and that links are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption

from tests.test_studies import study

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = study("command_pages")
MOST_README_LINES = 150
MOST_CELL_WORDS = 15


@pytest.mark.parametrize("path", sorted(PAGES.pages()), ids=lambda path: path.stem)
def test_the_page_of_each_command_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES.pages()[path], "run python docs/command_pages.py"
    assert f"(docs/commands/{path.name})" in README


@pytest.mark.parametrize(("name", "command"), list(PAGES.commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_option_has_a_help_text_and_every_command_an_example(name: str, command: TyperCommand | TyperGroup) -> None:
    for option in command.params:
        if isinstance(option, TyperOption):
            assert option.help, f"trace {name} {option.opts[0]} has no help text"
    assert PAGES.examples(command)
    assert all(line.startswith(f"trace {name}") for line in PAGES.examples(command))


def test_every_command_page_belongs_to_a_command() -> None:
    assert set((ROOT / "docs" / "commands").iterdir()) == set(PAGES.pages())


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= MOST_README_LINES
    cells = [cell for line in README.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]
    assert cells and all(len(cell.split()) <= MOST_CELL_WORDS for cell in cells)
    table = [line for line in README.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + 8  # one header row, and eight rows


def pages_with_links() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", pages_with_links(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_documentation_lead_to_existing_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")) and "command_notes" not in page.parts:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_documents_trace_debug() -> None:
    assert "TRACE_DEBUG=1" in README


def test_the_glossary_is_short_and_defines_each_word_once() -> None:
    glossary = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    rows = [line for line in glossary.splitlines() if line.startswith("| ")]
    terms = [term.strip() for row in rows if not row.startswith("| term ") for term in row.split("|")[1].split(",")]
    assert 20 <= len(terms) <= 30 and len(set(terms)) == len(terms)
