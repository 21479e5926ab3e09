"""Writes docs/constants.md, which lists every constant of replayer/cost_model/constants.py that affects estimates.

    python docs/constants_page.py

`tests/replayer/cost_model/test_constants.py` fails if the page is not what this script writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from replayer.cost_model.constants import DECLARED, ConstantOrigin

PAGE = Path(__file__).resolve().parent / "constants.md"
HEAD = """# Numbers that decide an estimate

This page is written by `docs/constants_page.py` from `replayer/cost_model/constants.py`. A **bold** origin marks a number
that was chosen after seeing results.

| name | value | unit | meaning | origin | used by |
|---|---|---|---|---|---|
"""


def value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{name}: {value_text(each)}" for name, each in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(value_text, value))
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    return f"{value:g}" if isinstance(value, float) else str(value)


def page() -> str:
    rows = []
    for constant in DECLARED.values():
        origin = constant.origin.value
        if constant.origin is ConstantOrigin.FITTED:
            origin = f"**{origin}**"
        files = "<br>".join(f"`{file}`" for file in constant.used_by)
        number = value_text(constant.value), constant.unit
        cells = (constant.name, *number, constant.meaning, f"{origin}: {constant.source}", files)
        rows.append("| " + " | ".join(cells) + " |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
