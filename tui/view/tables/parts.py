"""Defines the tables of the timeline app.

    csv_text(table)                            # values have the units in the column headings, and names are not shortened
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

from traces.model.trace import NONE
from tui.formatting import Head, Value
from tui.view.scene.difference import Difference


class TableRow(NamedTuple):
    values: tuple[Value, ...]
    name: str = ""
    table: str = ""
    side: int = 0
    step: int = NONE
    difference: Difference | None = None

    @property
    def full_name(self) -> str:
        return self.difference.sentence if self.difference is not None else self.name or str(self.values[0])


class TabTable(NamedTuple):
    columns: Sequence[Head]
    rows: list[TableRow]
    note: str = ""  # text to show if the table has no rows


def csv_text(table: TabTable) -> str:
    """Return the table as CSV. Column headings contain units."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads, last = [], ""
    for head in table.columns:
        last = last if head.name == "→" else head.name
        heads.append(head._replace(name=f"{last} replayed" if head.name == "→" else head.name).of_file)
    writer.writerow([*heads, "full name"])
    for row in table.rows:
        values = ["" if value is None else round(value, 6) if isinstance(value, float) else value for value in row.values]
        writer.writerow([*values, row.difference.name if row.difference is not None else row.name])
    return out.getvalue()
