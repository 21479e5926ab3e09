"""Small operations on tables and string columns that several parts of the importer need.

    joined(HostSpans, [rank0.host, rank1.host])
    matching(host.name, re.compile("ProfilerStep#"), strings)  # a mask

Names are matched once per distinct text, never once per row.
"""

from __future__ import annotations

import re
from typing import TypeVar

import numpy as np

from traces.model import Column, Strings, Table

SomeTable = TypeVar("SomeTable", bound=Table)


def joined(table: type[SomeTable], parts: list[SomeTable]) -> SomeTable:
    """The rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return table.empty()
    return table(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in table.DTYPES})


def matching(names: Column, pattern: re.Pattern[str], strings: Strings) -> Column:
    """Which rows have a name that the pattern matches at its start."""
    matches = np.zeros(len(strings) + 1, bool)  # the last answers for NONE
    for index in np.unique(names).tolist():
        matches[index] = index >= 0 and pattern.match(strings[index]) is not None
    return np.asarray(matches[names])
