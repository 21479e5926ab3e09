"""Tests that this tool's packages and the script's modules can have the same names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from traces.bootstrap._trace_names import OurNames

PREFIX = "_private_"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the package `wares`, which imports the library `shelf`."""
    (tmp_path / "wares").mkdir()
    (tmp_path / "wares/__init__.py").write_text(
        "import shelf\nfrom json import dumps\nclass Broken(Exception): ...\ndef f(): ...\n"
    )
    (tmp_path / "wares/part.py").write_text("")
    (tmp_path / "shelf.py").write_text("owner = 'ours'")
    before = dict(sys.modules)
    yield tmp_path
    sys.modules.clear()
    sys.modules.update(before)


def ours(folder: Path) -> tuple[OurNames, Any]:
    names = OurNames([str(folder)], {"wares"}, PREFIX, libraries={"shelf": str(folder)})
    with names:
        importlib.import_module("wares.part")
        return names, importlib.import_module("wares")


def test_trace_packages_get_private_names(folder: Path) -> None:
    _, package = ours(folder)
    assert package.__spec__.name == PREFIX + "wares" and package.__package__ == PREFIX + "wares"
    assert package.__name__ == PREFIX + "wares" and package is sys.modules[PREFIX + "wares"]
    assert "wares" not in sys.modules and PREFIX + "wares.part" in sys.modules
    assert package.Broken.__module__ == package.f.__module__ == PREFIX + "wares"
    assert package.dumps.__module__ == "json"
    assert not any(isinstance(finder, OurNames) for finder in sys.meta_path)


def test_modules_of_the_script_that_share_names_with_this_tool_are_restored(folder: Path) -> None:
    theirs = {name: ModuleType(name) for name in ("wares", "shelf")}
    sys.modules.update(theirs)
    sys.modules["shelf"].__spec__ = importlib.machinery.ModuleSpec("shelf", None, origin="/theirs/shelf.py")
    _, package = ours(folder)
    assert package.shelf.owner == "ours"
    assert all(sys.modules[name] is module for name, module in theirs.items())


def test_importing_the_private_modules_again_returns_the_same_modules(folder: Path) -> None:
    _, first = ours(folder)
    _, second = ours(folder)
    assert second is first and sys.modules[PREFIX + "wares"] is first


def test_a_library_that_the_script_can_import_is_loaded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    shelf = importlib.import_module("shelf")
    _, package = ours(folder)
    assert package.shelf is shelf and sys.modules["shelf"] is shelf


def test_a_library_that_the_script_cannot_import_is_removed_again(folder: Path) -> None:
    _, package = ours(folder)
    assert package.shelf.owner == "ours" and "shelf" not in sys.modules
