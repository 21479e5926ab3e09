"""Declares constants such as thresholds, with their unit, meaning and source.

    THRESHOLDS = DeclaredConstants()
    TOLERANCE = THRESHOLDS.declare("TOLERANCE", 0.05, "share", CHOSEN, "largest ...", "usual in benchmarks")
    TOLERANCE                               # 0.05, a plain number
    THRESHOLDS["TOLERANCE"].origin          # ConstantOrigin.CHOSEN

`docs/constants_page.py` lists all declared numbers in docs/constants.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar


class ConstantOrigin(Enum):
    PUBLISHED = "published"  # by a vendor, a library's source or a study
    MEASURED = "measured"
    CHOSEN = "chosen"  # by reasoning, before seeing results
    FITTED = "chosen after seeing results"


@dataclass(frozen=True)
class DeclaredConstant:
    name: str
    value: object  # a number or a table of numbers
    unit: str
    origin: ConstantOrigin
    meaning: str
    source: str


T = TypeVar("T")


class DeclaredConstants(dict[str, DeclaredConstant]):
    def declare(self, name: str, value: T, unit: str, origin: ConstantOrigin, meaning: str, source: str) -> T:
        self[name] = DeclaredConstant(name, value, unit, origin, meaning, source)
        return value
