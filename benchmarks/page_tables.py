"""Replaces the tables of a page in docs/ that a benchmark prints. Two HTML comments on the page mark the place."""

from __future__ import annotations


def with_tables(page: str, tables: str, begin: str, end: str) -> str:
    """The page with these tables between its markers. Raises ValueError if the page lacks a marker."""
    before, begins, rest = page.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"the page has no markers {begin} and {end}")
    return f"{before}{begin}\n\n{tables}\n\n{end}{after}"
