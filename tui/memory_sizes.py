"""Parses memory sizes on the command line, such as `--gpu-memory 7.79GiB`.

    parse_sizes("7.79GiB")        # [8364448808]
    parse_sizes("16G, 8000MB")    # [17179869184, 8000000000]

GiB and G are powers of 1024, and GB is a power of 1000.
"""

from __future__ import annotations

import re

from traces.model.trace import TraceError

_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE)


_SMALLEST_BARE = 1024  # bytes: a smaller number without a unit is treated as a mistake


def parse_sizes(text: str) -> list[int]:
    """Return comma-separated sizes in bytes. Raise TraceError for a size of 0, and for text that is not a size."""
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
        raise TraceError(f"{text.strip() or 'an empty word'!r} is not a memory size; write 7.79GiB, 16GB or 8000MiB")
    return size_bytes
