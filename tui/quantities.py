"""Sizes and shares as people write them: `--gpu-memory 16GiB,8GiB`, `--tolerance 5%`.

    sizes("7.79GiB")                # [8364448808]
    sizes("16G, 8000MB")            # [17179869184, 8000000000]
    share("5%", "--tolerance")      # 0.05

GiB, MiB... and the bare letters G, M... are powers of 1024; GB, MB... are powers of 1000. A bare number counts bytes.
"""

from __future__ import annotations

import re

import typer

from traces.model.trace import TraceError

_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE)


_SMALLEST_BARE = 1024  # a smaller number without a unit was not meant as bytes


def sizes(text: str) -> list[int]:
    """The sizes in bytes, separated by commas. Raises TraceError for what is none, and for 0."""
    return [_size(part) for part in text.split(",")]


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    size_bytes = 0
    if match is not None and not (match[2] == "" and (match[3] or "").lower() == "ib"):
        base = 1000 if match[2] and (match[3] or "").lower() == "b" else 1024
        size_bytes = int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))
    if match is not None and not match[2] and not match[3] and 0 < size_bytes < _SMALLEST_BARE:
        raise TraceError(f"{text.strip()} has no unit; write {text.strip()}GiB or {text.strip()}GB")
    if size_bytes <= 0:
        raise TraceError(f"{text.strip() or 'an empty word'!r} is no size of a GPU's memory; write 7.79GiB, 16GB or 8000MiB")
    return size_bytes


def share(text: str, option: str) -> float:
    """ "5%" or "0.05" as 0.05. Raises BadParameter for what is none, and for a bare number of 1 or more: 5 could mean both."""
    number, percent = text.strip().removesuffix("%").rstrip(), text.strip().endswith("%")
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", number):
        raise typer.BadParameter(f"{text!r} is no share; write 5% or 0.05", param_hint=option)
    if not percent and float(number) >= 1:
        raise typer.BadParameter(f"{number} has no unit; write {number}% or a share such as 0.05", param_hint=option)
    return float(number) / (100 if percent else 1)
