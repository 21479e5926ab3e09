"""Tests that packages import each other only in one direction: trace_replay -> tui -> {tracer, replayer} -> traces."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("traces", "tracer", "replayer", "tui", "trace_replay")
FORBIDDEN = {
    "traces": {"tracer", "replayer", "tui", "trace_replay", "torch", "textual", "typer"},
    "tracer": {"replayer", "tui", "trace_replay", "textual", "typer"},
    "replayer": {"tracer", "tui", "trace_replay", "textual", "typer"},
    "tui": {"trace_replay", "torch"},  # only the process of the script needs torch, not the command
    "trace_replay": {"tracer", "replayer", "torch", "numpy", "textual", "typer"},
}
# This list contains the packages and modules of the replayer. Each of them imports only those further down the list.
FLOORS = (
    "child",
    "backend",
    "surfaces",
    "distributed",
    "compiled",
    "ops",
    "tensor",
    "state",
    "torch_shortcuts",
    "gpu",
    "timing",
    "prediction",
    "recording",
    "memory",
    "cost_model",
    "cuda_error",
    "op_signature",
    "torch_types",
    "errors",
)
# Installed code must not import code that only a checkout contains.
UNINSTALLED = {"tests", "examples", "benchmarks"}


def nodes_of(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Return the top-level name of every import in the source, including imports in functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def test_the_checker_finds_every_absolute_import() -> None:
    source = "import a.b, c\nfrom d.e import f\nfrom . import g\ndef h():\n    import i\n"
    assert sorted(imports_of(ast.walk(ast.parse(source)))) == ["a", "c", "d", "i"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_imports_only_packages_of_lower_layers(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for file in files:
        wrong = (FORBIDDEN[room] | UNINSTALLED).intersection(imports_of(nodes_of(file)))
        assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}"


def replayer_imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Return the packages and modules of the replayer that a source file imports, also if it imports them only for types."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("replayer."))
        elif isinstance(node, ast.ImportFrom) and node.module == "replayer":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("replayer."):
            yield str(node.module).split(".")[1]


def test_the_list_of_layers_contains_every_module_of_the_replayer() -> None:
    there = {path.stem for path in (ROOT / "replayer").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - {"__init__"} == set(FLOORS)
    assert sum((ROOT / "replayer" / f"{name}.py").exists() for name in FLOORS) <= 8
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    described = text.partition("in this list, even for type annotations:\n\n```\n")[2].partition("```")[0]
    assert tuple(line.split()[0].rstrip("/") for line in described.splitlines()) == FLOORS


def test_replayer_modules_import_only_modules_of_lower_layers() -> None:
    upward: dict[tuple[str, str], list[str]] = {}
    for file in sorted((ROOT / "replayer").rglob("*.py")):
        own = file.relative_to(ROOT / "replayer").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for other in replayer_imports(nodes_of(file)):
            if FLOORS.index(other) < FLOORS.index(own):
                upward.setdefault((own, other), []).append(str(file.relative_to(ROOT)))
    assert not upward


def classes_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Return the name of every class in the source, including nested classes. The underscore of private names is removed."""
    yield from (node.name.lstrip("_") for node in nodes if isinstance(node, ast.ClassDef))


def test_the_checker_finds_every_nested_class() -> None:
    source = "class _A:\n    class B: ...\ndef f():\n    class C(A): ...\n"
    assert sorted(classes_of(ast.walk(ast.parse(source)))) == ["A", "B", "C"]


def test_every_class_name_is_used_once() -> None:
    """A search for a class name must find only one class."""
    where: dict[str, list[str]] = {}
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            for name in classes_of(nodes_of(file)):
                where.setdefault(name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def test_modules_of_traces_import_each_other_only_at_module_level() -> None:
    """If another distribution is called `traces`, a late `from traces` would import the other distribution. See Note [Private
    module names]."""
    for file in sorted((ROOT / "traces").rglob("*.py")):
        for function in nodes_of(file):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                late = set(ROOMS).intersection(imports_of(ast.walk(function)))
                assert not late, f"{file.relative_to(ROOT)}:{function.lineno} imports {sorted(late)}"


def test_every_module_of_traces_imports_without_torch_or_terminal_packages() -> None:
    program = """
import importlib, pkgutil, sys, traces
for module in pkgutil.walk_packages(traces.__path__, "traces."):
    importlib.import_module(module.name)
print(sorted({"torch", "textual", "typer", "rich", "pandas"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_no_command_except_predict_imports_torch() -> None:
    """Importing torch takes longer than the rest of a command. Only `trace predict` uses torch in its own process, to compute
    estimates."""
    program = """
import importlib, pkgutil, sys, tui.commands
for module in pkgutil.iter_modules(tui.commands.__path__, "tui.commands."):
    if module.name != "tui.commands.predict":
        importlib.import_module(module.name)
print(sorted({"torch", "pandas", "sympy"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_examples_do_not_import_trace_packages() -> None:
    for file in sorted((ROOT / "examples").glob("*.py")):
        wrong = set(ROOMS).intersection(imports_of(nodes_of(file)))
        assert not wrong, f"{file.name} imports {sorted(wrong)}"
