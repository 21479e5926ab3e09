"""Selects rows of a table by a pattern of their names.

    matching(host.name, re.compile("ProfilerStep#"), strings)  # a mask

Each distinct text is matched only once.
"""

from __future__ import annotations

import re

import numpy as np

from traces.model.trace import Column, Strings


def matching(names: Column, pattern: re.Pattern[str], strings: Strings) -> Column:
    """Return a mask of rows with a name that matches the pattern at its start."""
    matches = np.zeros(len(strings) + 1, bool)
    for index in np.unique(names).tolist():
        matches[index] = index >= 0 and pattern.match(strings[index]) is not None
    return np.asarray(matches[names])
