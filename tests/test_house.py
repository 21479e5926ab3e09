"""Tests that the source has no import cycles, no large folders and no large classes."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("traces", "tracer", "replayer", "tui")
FLAT = ("replayer/surfaces", "tracer/surfaces", "tui/commands")  # these folders may have any number of files
MOST_FILES = 12  # the number of files directly in a folder, including __init__.py
MOST_METHODS = 30  # the number of methods in a class, including private methods and properties


def modules_in(files: Mapping[str, str]) -> dict[str, str]:
    """Return the sources by dotted module name. The keys of `files` are paths, such as `room/part/__init__.py`."""
    return {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source for path, source in files.items()}


def imports_within(files: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the modules of `files` that each module imports, anywhere in the file and also only for types."""
    modules = modules_in(files)
    packages = {name for path, name in zip(files, modules, strict=True) if path.endswith("/__init__.py")}
    graph: dict[str, set[str]] = {}
    for name, source in modules.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = name.split(".")[: len(name.split(".")) - node.level + (name in packages)] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                # `from room import part` imports the module room.part if this module exists. Otherwise it imports a name that
                # room defines.
                found.update(inner if (inner := f"{base}.{alias.name}") in modules else base for alias in node.names)
        graph[name] = (found & modules.keys()) - {name}
    return graph


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one import cycle in order, with the first module again at the end. Return an empty list if there is
    none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def crowded_folders(paths: list[str]) -> dict[str, int]:
    """Return the folders that contain too many .py files, and the number of these files."""
    counts = Counter(path.rpartition("/")[0] for path in paths)
    return {folder: count for folder, count in counts.items() if count > MOST_FILES and folder not in FLAT}


def methods_of(source: str) -> Iterator[tuple[str, int]]:
    """Return every class in the source, nested classes included, and its number of methods."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name, sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)


def files_of(room: str) -> dict[str, str]:
    paths = sorted((ROOT / room).rglob("*.py"))
    assert paths
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize(
    "late", ["    from room import b", "if TYPE_CHECKING:\n    import room.b", "from . import b", "from .b import x"]
)
def test_an_import_cycle_is_found_for_every_form_of_import(late: str) -> None:
    files = {"room/__init__.py": "", "room/a.py": f"def f():\n    pass\n{late.strip()}\n", "room/b.py": "from room.a import f"}
    assert sorted(cycle_in(imports_within(files))) in (["room.a", "room.a", "room.b"], ["room.a", "room.b", "room.b"])


def test_imports_of_names_or_other_packages_form_no_cycle() -> None:
    files = {
        "room/__init__.py": "NAME = 1",
        "room/a.py": "import numpy\nfrom room import NAME",
        "room/b.py": "from room import a",
    }
    graph = imports_within(files)
    assert graph == {"room": set(), "room.a": {"room"}, "room.b": {"room.a"}}
    assert cycle_in(graph) == []


def test_relative_imports_of_a_package_are_resolved() -> None:
    files = {"room/part/__init__.py": "from . import a\nfrom .. import b", "room/part/a.py": "", "room/b.py": ""}
    assert imports_within(files)["room.part"] == {"room.part.a", "room.b"}


def test_the_checker_reports_folders_with_thirteen_or_more_files() -> None:
    twelve = [f"room/{i}.py" for i in range(12)]
    assert crowded_folders([*twelve, "room/part/a.py"]) == {}
    assert crowded_folders([*twelve, "room/a.py"]) == {"room": 13}
    assert crowded_folders([f"tui/commands/{i}.py" for i in range(13)]) == {}


def test_the_checker_counts_methods_per_class() -> None:
    source = "class A:\n    x = 1\n    def f(self): ...\n    async def _g(self): ...\n    class B:\n        def h(self): ...\n"
    assert dict(methods_of(source)) == {"A": 2, "B": 1}


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_has_no_import_cycles(room: str) -> None:
    assert cycle_in(imports_within(files_of(room))) == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_folder_has_too_many_files(room: str) -> None:
    assert crowded_folders(list(files_of(room))) == {}


@pytest.mark.parametrize("room", ROOMS)
def test_no_class_has_too_many_methods(room: str) -> None:
    sizes = {f"{path}: {name}": count for path, source in files_of(room).items() for name, count in methods_of(source)}
    assert {where: count for where, count in sizes.items() if count > MOST_METHODS} == {}
