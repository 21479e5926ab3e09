"""Shares as people write them: `--tolerance 5%`.

share("5%", "--tolerance")      # 0.05
"""

from __future__ import annotations

import re

import typer


def share(text: str, option: str) -> float:
    """ "5%" or "0.05" as 0.05. Raises BadParameter for what is none, and for a bare number of 1 or more: 5 could mean both."""
    number, percent = text.strip().removesuffix("%").rstrip(), text.strip().endswith("%")
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", number):
        raise typer.BadParameter(f"{text!r} is no share; write 5% or 0.05", param_hint=option)
    if not percent and float(number) >= 1:
        raise typer.BadParameter(f"{number} has no unit; write {number}% or a share such as 0.05", param_hint=option)
    return float(number) / (100 if percent else 1)
