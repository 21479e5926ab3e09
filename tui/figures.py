"""Figures and tables as text for people: human units, right-aligned columns, names cut to fit a narrow terminal.

    time_text(176_100_000)                       # "176.1 ms"
    table(["kernel", "time"], [["sgemm", "81.0 µs"]], width=30)
    # ["kernel                  time",
    #  "sgemm                81.0 µs"]

Nothing here writes to a terminal or asks what it can do: the caller says how wide it is and whether it takes colour.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from traces.names.equivalent_ops import kernel_text as kernel_text

ABSENT = "-"
T = TypeVar("T", int, float)
_FEW_DEVICES = 4
_LEAST_APART = 12  # characters: names cut shorter than this all look alike

_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_HEIGHTS = "·▁▂▃▄▅▆▇█"
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "blue": "\x1b[34m", "green": "\x1b[32m"}
_RESET = "\x1b[0m"
_OURS = {*_STYLES.values(), _RESET}
# Escape sequences that choose a style, other control characters but tab and line end, and those that turn text around.
_OBEYED = re.compile("\x1b\\[\\d*m|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def time_text(time_ns: float | None, *, signed: bool = False) -> str:
    """ "1.204 s", "176.1 ms", "12.3 µs", "417 ns": three to four digits that matter."""
    if time_ns is None:
        return ABSENT
    sign = "-" if time_ns < 0 else "+" if signed and time_ns > 0 else ""
    size = abs(time_ns)
    for unit_ns, unit in _TIMES:
        if size >= unit_ns:
            value = size / unit_ns
            return f"{sign}{value:.{3 if unit == 's' and value < 10 else 1}f} {unit}"
    return f"{sign}{round(size)} ns"


def size_text(size_bytes: float | None, *, signed: bool = False) -> str:
    """ "31.7 GiB", "512 B"; a difference has a sign: "-1.2 MiB"."""
    if size_bytes is None or (size_bytes < 0 and not signed):
        return ABSENT
    sign = ("-" if size_bytes < 0 else "+" if size_bytes > 0 else "") if signed else ""
    size_bytes = abs(size_bytes)
    for unit_bytes, unit in _SIZES:
        if size_bytes >= unit_bytes:
            return f"{sign}{size_bytes / unit_bytes:.1f} {unit}"
    return f"{sign}{round(size_bytes)} B"


def count_text(count: float) -> str:
    """ "8,772"; means per step that are not whole keep one decimal: "4.5"."""
    return f"{count:,.0f}" if float(count).is_integer() or count >= 100 else f"{count:.1f}"


def counted(count: float, noun: str) -> str:
    """ "1 step", "1,204 steps"."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def share_text(share: float | None) -> str:
    """ "97.2 %"."""
    return ABSENT if share is None else f"{100 * share:.1f} %"


def error_text(error: float | None) -> str:
    """A relative difference with its sign: "+1.3 %"."""
    if error is None:
        return ABSENT
    text = f"{100 * error:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def paint(text: str, style: str, *, colour: bool) -> str:
    """`text` in a style ("bold", "dim", "red", "blue", "green"), or as it is where colour is not wanted."""
    return f"{_STYLES[style]}{text}{_RESET}" if colour and style and text else text


def printable(text: str, *, colour: bool) -> str:
    """`text` without what a terminal would obey: names in a recording are somebody else's. Our own styles stay."""
    return _OBEYED.sub(lambda found: found[0] if colour and found[0] in _OURS else "\ufffd", text)


def of_devices(values: Mapping[str, T], text: Callable[[T], str]) -> list[str]:
    """The figure of each device; of more than four the least and the most: "61.8 % (cuda:0) to 99.0 % (cuda:4)"."""
    if len(values) <= _FEW_DEVICES:
        return [f"{device} {text(value)}" for device, value in values.items()]
    least, most = (end(values, key=lambda device: values[device]) for end in (min, max))
    return [f"{text(values[least])} ({least}) to {text(values[most])} ({most})"]


def fit(text: str, width: int) -> str:
    """`text` in at most `width` characters; what is cut is marked. Spaces and breaks become one space, but for those at the
    beginning, which say how deep within others a row is."""
    indent = len(text) - len(text.lstrip(" "))
    text = " " * min(indent, max(width - 8, 0)) + " ".join(text.split())
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def fit_apart(texts: Sequence[str], width: int) -> list[str]:
    """Each text as `fit` cuts it, except that different texts stay different.

    Where the beginnings are alike, the cut moves to the middle, so that the ends show; texts that differ in between alone get
    numbers: "multi_tensor_apply…#2".
    """
    short = [fit(text, width) for text in texts]
    alike = {cut for cut in short if len({text for text, one in zip(texts, short, strict=True) if one == cut}) > 1}
    if not alike or width < _LEAST_APART:
        return short
    cut_texts = list(dict.fromkeys(text for text, one in zip(texts, short, strict=True) if one in alike))
    others = {one for one in short if one not in alike}
    for end in range(width // 4, width - 4):
        told = {text: fit(text, width - end).rstrip("…") + "…" + " ".join(text.split())[-end:] for text in cut_texts}
        if len({*told.values()} | others) == len(cut_texts) + len(others):
            break
    else:
        numbers = {text: f"…#{number}" for number, text in enumerate(cut_texts, 1)}
        told = {text: fit(text, width - len(number) + 1).rstrip("…") + number for text, number in numbers.items()}
    return [told.get(text, one) if one in alike else one for text, one in zip(texts, short, strict=True)]


def kernel_texts(names: Sequence[str]) -> list[str]:
    """The text of each kernel; those that differ in the types of their parameters alone keep them."""
    counts = Counter(kernel_text(name) for name in set(names))
    return [kernel_text(name) if counts[kernel_text(name)] == 1 else name for name in names]


def names_text(names: Sequence[str], most: int = 2) -> str:
    """ "aten::mul + aten::add and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " + ".join(map(kernel_text, names[:most])) + more


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, indent: int = 0, stretch: bool = False
) -> list[str]:
    """Lines of a table at most `width` wide, none of one without rows. The first column is cut to what the others leave; those
    are right-aligned.

    `stretch` makes it exactly `width` wide, so that the columns of several tables stand under each other.
    """
    lines = [list(heads), *map(list, rows)] if rows else []
    columns = range(1, len(heads))
    widths = [max((len(line[column]) for line in lines), default=0) for column in columns]
    first = max(width - indent - sum(widths) - 2 * len(widths), 8)
    if not stretch:
        first = min(first, max((len(fit(line[0], first)) for line in lines), default=0))
    names = fit_apart([line[0] for line in lines], first)
    return [
        " " * indent + "  ".join([name.ljust(first), *(line[c].rjust(widths[c - 1]) for c in columns)]).rstrip()
        for name, line in zip(names, lines, strict=True)
    ]


def curve_text(values: Sequence[float]) -> str:
    """One sign for each value, as high as it is beside the largest: " ▁▃█"."""
    most = max(values, default=0.0)
    return "".join(_HEIGHTS[math.ceil(value / most * 8) if most > 0 else 0] for value in values)
