"""Writes docs/constants.md, which lists all numbers that decide verdicts and estimates.

    python docs/constants_page.py

`tests/traces/comparison/test_thresholds.py` fails if the page is not what this script writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from replayer.cost_model.constants import DECLARED
from traces.comparison.declared_constants import ConstantOrigin, DeclaredConstant
from traces.comparison.thresholds import THRESHOLDS

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "constants.md"
HEAD = """# Numbers that decide a verdict or an estimate

This page is written by `docs/constants_page.py` from `traces/comparison/thresholds.py` and
`replayer/cost_model/constants.py`. A **bold** origin marks a number that was chosen after seeing results.
[sensitivity.md](sensitivity.md) shows what changes if a threshold is a fifth higher or lower.

## Verdicts

"""
ESTIMATES = """
## Estimates

Paths in the last column are relative to `replayer/`.

"""
COLUMNS = ("name", "value", "unit", "meaning", "origin", "used by")


def value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{name}: {value_text(each)}" for name, each in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(value_text, value))
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(constants: Iterable[DeclaredConstant]) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for constant in constants:
        origin = constant.origin.value
        if constant.origin is ConstantOrigin.FITTED:
            origin = f"**{origin}**"
        files = "<br>".join(f"`{file}`" for file in constant.used_by)
        number = value_text(constant.value), constant.unit
        rows.append((constant.name, *number, constant.meaning, f"{origin}: {constant.source}", files))
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows)


def page() -> str:
    return HEAD + table(THRESHOLDS.values()) + ESTIMATES + table(DECLARED.values())


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
