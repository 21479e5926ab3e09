"""Writes numbers with their units, and tables no wider than the terminal.

    time_text(176_100_000)                       # "176.1 ms"
    table(["kernel", "time"], [["sgemm", "81.0 µs"]], width=30)
    # ["kernel                  time",
    #  "sgemm                81.0 µs"]
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from traces.drawing.safe_text import OBEYED
from traces.names.equivalent_ops import kernel_text as kernel_text

ABSENT = "-"
T = TypeVar("T", int, float)
FEW_DEVICES = 4
_LEAST_APART = 12  # minimum width in characters; in narrower columns, different names may be shortened to the same text
_MOST_RANGES = 8  # a longer list of numbers ends with "and 12 more"

_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"))
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_UNIT = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|[KMGT]iB)(?!\w))")
_HEIGHTS = "·▁▂▃▄▅▆▇█"
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "red": "\x1b[31m", "blue": "\x1b[34m", "green": "\x1b[32m"}
_RESET = "\x1b[0m"
_OURS = {*_STYLES.values(), _RESET}


def time_text(time_ns: float | None, *, signed: bool = False) -> str:
    """Return a time such as "1.204 s", "12.3 µs" or "417 ns", with up to four significant digits."""
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
    if size_bytes is None or (size_bytes < 0 and not signed):
        return ABSENT
    sign = ("-" if size_bytes < 0 else "+" if size_bytes > 0 else "") if signed else ""
    size_bytes = abs(size_bytes)
    for unit_bytes, unit in _SIZES:
        if size_bytes >= unit_bytes:
            return f"{sign}{size_bytes / unit_bytes:.1f} {unit}"
    return f"{sign}{round(size_bytes)} B"


def count_text(count: float) -> str:
    return f"{count:,.0f}" if float(count).is_integer() or count >= 100 else f"{count:.1f}"


def counted(count: float, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def share_text(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.1f} %"


def rough_text(share: float | None) -> str:
    return ABSENT if share is None else "<1 %" if share <= 0.005 else f"{100 * share:.0f} %"


def error_text(error: float | None) -> str:
    if error is None:
        return ABSENT
    text = f"{100 * error:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def paint(text: str, style: str, *, colour: bool) -> str:
    """Add the terminal codes for a style, such as "bold" or "red", if `colour` is true."""
    return f"{_STYLES[style]}{text}{_RESET}" if colour and style and text else text


def printable(text: str, *, colour: bool) -> str:
    return OBEYED.sub(lambda found: found[0] if colour and found[0] in _OURS else "\ufffd", text)


def of_devices(values: Mapping[str, T], text: Callable[[T], str]) -> list[str]:
    """Format the values of all devices or, if there are more than four devices, the lowest and the highest value."""
    if len(values) <= FEW_DEVICES:
        return [f"{device} {text(value)}" for device, value in values.items()]
    least, most = (end(values, key=lambda device: values[device]) for end in (min, max))
    return [f"{text(values[least])} ({least}) to {text(values[most])} ({most})"]


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Wrap text, but keep numbers and their units together. `hanging` indents all lines except the first."""
    whole = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(whole, width, initial_indent=indent, subsequent_indent=indent if hanging is None else hanging)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def fit(text: str, width: int) -> str:
    indent = len(text) - len(text.lstrip(" "))
    text = " " * min(indent, max(width - 8, 0)) + " ".join(text.split())
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def fit_apart(texts: Sequence[str], width: int) -> list[str]:
    """Shorten texts to `width` characters. Different texts stay different."""
    short = [fit(text, width) for text in texts]
    alike = {cut for cut in short if len({text for text, one in zip(texts, short, strict=True) if one == cut}) > 1}
    if not alike or width < _LEAST_APART:
        return short
    cut_texts = list(dict.fromkeys(text for text, one in zip(texts, short, strict=True) if one in alike))
    others = {one for one in short if one not in alike}
    for end in range(width // 4, width - 4):
        short_texts = {text: fit(text, width - end).rstrip("…") + "…" + " ".join(text.split())[-end:] for text in cut_texts}
        if len({*short_texts.values()} | others) == len(cut_texts) + len(others):
            break
    else:
        numbers = {text: f"…#{number}" for number, text in enumerate(cut_texts, 1)}
        short_texts = {text: fit(text, width - len(number) + 1).rstrip("…") + number for text, number in numbers.items()}
    return [short_texts.get(text, one) if one in alike else one for text, one in zip(texts, short, strict=True)]


def kernel_texts(names: Sequence[str]) -> list[str]:
    """Return a short name for each kernel, or the full name if several kernels would get the same short name."""
    counts = Counter(kernel_text(name) for name in set(names))
    return [kernel_text(name) if counts[kernel_text(name)] == 1 else name for name in names]


def names_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return " + ".join(map(kernel_text, names[:2])) + more


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, indent: int = 0, stretch: bool = False
) -> list[str]:
    """Return the lines of a table, each at most `width` characters long. With `stretch`, the table is exactly `width`
    characters wide."""
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
    most = max(values, default=0.0)
    return "".join(_HEIGHTS[math.ceil(value / most * 8) if most > 0 else 0] for value in values)


Value = str | int | float | None


class Unit(Enum):
    """Says how a table column is formatted.

        Unit.TIME.text(1_200_000)       # "1.2 ms"
    """

    TEXT = ""
    COUNT = " "
    TIME = "ns"
    CHANGE = "change ns"
    SHARE = "share"
    BYTES = "bytes"
    NUMBER = "number"

    def text(self, value: Value) -> str:
        if value is None:
            return ABSENT
        if isinstance(value, str):
            return value
        return _TEXTS[self](value)


_TEXTS: dict[Unit, Callable[[float], str]] = {
    Unit.TEXT: str,
    Unit.COUNT: lambda value: count_text(round(value, 1)),
    Unit.TIME: time_text,
    Unit.CHANGE: lambda value: time_text(value, signed=True) if round(value) else "0",
    Unit.SHARE: share_text,
    Unit.BYTES: size_text,
    Unit.NUMBER: lambda value: f"{value:z.{2 if 0 < abs(value) < 10 else 1}f}",
}


class Head(NamedTuple):
    name: str
    unit: Unit = Unit.TEXT

    @property
    def of_file(self) -> str:
        unit = self.unit.value.split(" ")[-1] if self.unit is not Unit.NUMBER else ""
        return f"{self.name} ({unit})" if unit else self.name


class FigureTable(NamedTuple):
    """Stores a table for the terminal, the HTML report and the timeline app."""

    title: str
    heads: list[Head]
    rows: list[tuple[Value, ...]]

    def cells(self) -> list[list[str]]:
        return [[head.unit.text(value) for head, value in zip(self.heads, row, strict=True)] for row in self.rows]


def side_by_side(
    title: str, head: str, figures: Sequence[Head], sides: Sequence[Mapping[str, tuple[Value, ...]]], words: Sequence[str]
) -> FigureTable:
    if len(sides) == 1:
        return FigureTable(title, [Head(head), *figures], [(name, *values) for name, values in sides[0].items()])
    first, *others = figures
    change = Unit.CHANGE if first.unit is Unit.TIME else first.unit
    heads = [Head(head), Head("change", change), *(Head(word, first.unit) for word in words)]
    heads += [column for figure in others for column in (figure, Head("→", figure.unit))]
    nothing: tuple[Value, ...] = (None,) * len(figures)
    rows = []
    for name in dict.fromkeys(name for side in sides for name in side):
        ours, theirs = (side.get(name, nothing) for side in sides)
        paired = [value for pair in zip(ours, theirs, strict=True) for value in pair]
        rows.append((name, None if paired[:2] == [None, None] else _number(theirs[0]) - _number(ours[0]), *paired))
    return FigureTable(title, heads, rows)


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def ranges_text(numbers: Sequence[int]) -> str:
    gaps = [n for n in range(1, len(numbers)) if numbers[n] != numbers[n - 1] + 1]
    runs = [numbers[begin:end] for begin, end in itertools.pairwise([0, *gaps, len(numbers)])]
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:_MOST_RANGES])
    rest = sum(map(len, runs[_MOST_RANGES:]))
    return f"{text} and {rest} more" if rest else text
