"""Writes docs/constants.md, which lists the thresholds for comparing traces and the constants for estimating times.

    python docs/constants_page.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from replayer.cost_model import constants
from traces.comparison import thresholds

DOCS = Path(__file__).resolve().parent
ROOMS = ("replayer", "trace_replay", "tracer", "traces", "tui")
PAGE = DOCS / "constants.md"
HEAD = """# Numbers that decide a verdict or an estimate

Which numbers decide whether two traces agree, what limits a training step, or how long an operation takes? This page lists
the thresholds of comparisons (`traces/comparison/thresholds.py`) and the constants of estimates
(`replayer/cost_model/constants.py`). To write the page again, run `python docs/constants_page.py`. The page
[sensitivity.md](sensitivity.md) shows what changes if a threshold is a fifth higher or lower.

The column `origin` shows how we found each number:

* *published*: the number comes from a data sheet, a paper or another program.
* *measured*: a benchmark or a recording shows the number.
* *chosen*: we chose the number for the reason given.
* **chosen after seeing results**: we chose the number after we saw the results of a benchmark.

The tables use these words: The *pace* is the step time. A *clean* step was recorded without the profiler. A *phase* is a part
of a step, such as the forward pass.

## Verdicts

"""
ESTIMATES = """
## Estimates

"""
COLUMNS = ("name", "value", "unit", "meaning", "origin", "used by")
FITTED = "chosen after seeing results"
_ABOVE = re.compile(rf"(.+?)\n(published|measured|chosen|{FITTED}): (.+)", re.DOTALL)


class Constant(NamedTuple):
    value: object  # a number or a table of numbers
    unit: str
    meaning: str
    origin: str
    source: str


def constants_of(module: ModuleType) -> dict[str, Constant]:
    """Return the constants that a module defines, in a dictionary with their names as keys. Raises ValueError if a comment is
    missing."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            above = [*takewhile(lambda line: line.startswith("# "), reversed(lines[: node.lineno - 1]))]
            described = _ABOVE.fullmatch("\n".join(line.removeprefix("# ") for line in reversed(above)))
            unit = lines[(node.end_lineno or 0) - 1].partition("  # ")[2]
            if described is None or not unit:
                raise ValueError(f"{name} has no comment with its unit, its meaning and its origin")
            found[name] = Constant(getattr(module, name), unit, *(of.replace("\n", " ") for of in described.groups()))
    return found


def value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{name}: {value_text(each)}" for name, each in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(value_text, value))
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def _names(root: Path) -> dict[str, tuple[set[tuple[str | None, str]], set[tuple[str, str]]]]:
    """Return the imported names and the attribute accesses of each Python file."""
    found = {}
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = {(of.module, name.name) for of in nodes if isinstance(of, ast.ImportFrom) for name in of.names}
        read = {(of.value.id, of.attr) for of in nodes if isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name)}
        found[path.relative_to(root).as_posix()] = imports, read
    return found


def users(module: str, root: Path = DOCS.parent) -> dict[str, list[str]]:
    """Return a dictionary from each name in a module to the files that use the name."""
    package, _, short = module.rpartition(".")
    found: dict[str, list[str]] = {}
    for file, (imports, read) in _names(root).items():
        names = {name for of, name in imports if of == module}
        if (package, short) in imports:
            names |= {name for of, name in read if of == short}
        for name in names:
            found.setdefault(name, []).append(file)
    return found


def table(module: ModuleType) -> str:
    rows, used_by = [COLUMNS, ("---",) * len(COLUMNS)], users(module.__name__)
    for name, constant in constants_of(module).items():
        origin = f"**{FITTED}**" if constant.origin == FITTED else constant.origin
        files = "<br>".join(f"`{file}`" for file in used_by[name])
        rows.append((name, value_text(constant.value), constant.unit, constant.meaning, f"{origin}: {constant.source}", files))
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows)


def page() -> str:
    return HEAD + table(thresholds) + ESTIMATES + table(constants)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
