"""Tests that ARCHITECTURE.md is short, and that every function in its call chains exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROOMS = ("traces", "tracer", "replayer", "tui", "trace_replay")
MOST_LINES = 200
PATHS = (
    "A kernel is launched",
    "A value is read",
    "An allocation fails",
    "Four ranks call all-reduce",
    "A kernel's time is estimated from a data sheet",
    "DataParallel scatters and gathers",
    "A step ends",
    "The recorder reads CUDA events",
    "The importer finds the op of a kernel",
    "A script calls an op that the virtual GPU does not emulate",
    "`trace fit` finds a batch size",
    "A damaged file is read",
    "A key is pressed in the app",
    "`trace diff` decides whether two traces ran the same program",
)


def call_chains(page: str) -> dict[str, list[str]]:
    """Return the dotted names in each numbered call chain of the page, by the title of the chain."""
    section = page.partition("\n## Call chains\n")[2].partition("\n## ")[0]
    items = re.findall(r"^\d+\. \*\*(.+?)\.\*\* (.*(?:\n {3}.*)*)", section, re.MULTILINE)
    return {title: re.findall(r"`([^`]+)`", names) for title, names in items}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_defined(name: str, root: Path = ROOT) -> bool:
    """Return whether a dotted name is a class or function in a module file. The module is not imported."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        file = root.joinpath(*parts[:length]).with_suffix(".py")
        if file.is_file():
            body: list[ast.stmt] = parsed(file).body
            for part in parts[length:]:
                found = [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part]
                if not found:
                    return False
                body = found[-1].body
            return True
    return False


def test_the_architecture_page_is_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES


def test_the_architecture_page_has_a_call_chain_for_each_common_path() -> None:
    assert tuple(call_chains(PAGE)) == PATHS


@pytest.mark.parametrize(("title", "chain"), call_chains(PAGE).items())
def test_each_call_chain_names_five_to_eight_existing_functions(title: str, chain: list[str]) -> None:
    assert 5 <= len(chain) <= 8
    assert [name for name in chain if not is_defined(name)] == []


def test_the_code_map_lists_only_existing_functions_and_modules() -> None:
    page = (ROOT / "docs" / "code_map.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| .* \| (`.*`) \|$", page, re.MULTILINE)
    named = [name for cell in names for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) > 100
    assert [name for name in named if not is_defined(name) and not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []


def test_call_chains_are_read_across_line_breaks() -> None:
    page = "\n## Call chains\n\nText `x.y`.\n\n1. **One.** `a.b` →\n   `c.d`\n2. **Two.** `e.f`\n\n## Next\n\n3. **No.** `g`\n"
    assert call_chains(page) == {"One": ["a.b", "c.d"], "Two": ["e.f"]}


def test_function_names_are_looked_up_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "module.py").write_text("class A:\n    def f(self): ...\ndef g(): ...\n", encoding="utf-8")
    for name in ("room.module.A", "room.module.A.f", "room.module.g"):
        assert is_defined(name, tmp_path)
    for name in ("room.module.A.g", "room.module.f", "room.other.g", "room.module"):
        assert not is_defined(name, tmp_path)


def test_each_reference_to_a_note_leads_to_the_note() -> None:
    """WHEN a comment refers to a note THEN the note is in the same file, or the comment names the file of the note."""
    texts = {path: path.read_text(encoding="utf-8") for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    notes = [(path, title) for path, text in texts.items() for title in re.findall(r"^ *Note \[(.+)\]$", text, re.MULTILINE)]
    lost = []
    for path, text in texts.items():
        for found in re.finditer(r"Note \[(.+?)\]", text):
            beside = text[max(found.start() - 60, 0) : found.end() + 120]
            homes = [home for home, title in notes if title == found[1]]
            if "PyTorch's" not in beside and not any(home == path or re.search(rf"\b{home.stem}\b", beside) for home in homes):
                lost.append(f"{path.relative_to(ROOT)}: {found[0]}")
    assert lost == []
