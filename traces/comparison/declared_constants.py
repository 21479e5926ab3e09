"""Declares numbers that decide verdicts or estimates: each has a unit, a meaning, an origin and the files that use it.

    THRESHOLDS = DeclaredConstants()
    TOLERANCE = THRESHOLDS.declare("TOLERANCE", 0.05, "share", "largest ...", origin=CHOSEN, source="...", used_by="...")
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
    """Holds one number or one table of numbers. `used_by` has the paths of the files that use the number."""

    name: str
    value: object
    unit: str
    meaning: str
    origin: ConstantOrigin
    source: str
    used_by: tuple[str, ...]


T = TypeVar("T")


class DeclaredConstants(dict[str, DeclaredConstant]):
    def declare(
        self,
        name: str,
        value: T,
        unit: str,
        meaning: str,
        *,
        origin: ConstantOrigin,
        source: str,
        used_by: str | tuple[str, ...],
    ) -> T:
        files = (used_by,) if isinstance(used_by, str) else used_by
        self[name] = DeclaredConstant(name, value, unit, meaning, origin, source, files)
        return value
