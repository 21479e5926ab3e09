"""Maps the names of dtypes in PyTorch's C++ code to their names in Python.

    SCALAR_TYPES["Half"], CPP_TYPES["c10::Half"]    # "float16", "float16"
"""

from __future__ import annotations

import csv
from pathlib import Path

with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    _ROWS = list(csv.DictReader(_file))
SCALAR_TYPES = {row["scalar_type"]: row["dtype"] for row in _ROWS if row["scalar_type"]}
CPP_TYPES = {name: row["dtype"] for row in _ROWS for name in row["cpp_types"].split("|") if name}
