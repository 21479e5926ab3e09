"""Replaces the tables of a documentation page by the output of a benchmark. Two HTML comments mark the place of a table on the
page."""

from __future__ import annotations


def with_tables(page: str, tables: str, begin: str, end: str) -> str:
    """Return the page with new tables between its two marks. Raises ValueError if the page lacks a mark."""
    before, begins, rest = page.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"the page has no markers {begin} and {end}")
    return f"{before}{begin}\n\n{tables}\n\n{end}{after}"
