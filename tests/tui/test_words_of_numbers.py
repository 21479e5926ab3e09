"""Tests numbers at the limits of each unit, and shortened texts, with a golden file that people can read."""

from __future__ import annotations

import math
from pathlib import Path

from tests.goldens import assert_golden
from tui.formatting import (
    count_text,
    counted,
    curve_text,
    error_text,
    fit,
    fit_apart,
    kernel_texts,
    names_text,
    share_text,
    size_text,
    table,
    time_text,
)
from tui.running.replay_progress import progress_text

TIMES = [*(10**decade + by for decade in (0, 3, 6, 9, 11) for by in (-1, 0, 1)), 0.4, 0.5, 999.5, 999_949, 999_950, 3.6e12]
SIZES = [*(2 ** (10 * power) + by for power in (0, 1, 2, 3, 4) for by in (-1, 0, 1)), 0, 512.5, 1023.9 * 1024]
SHARES = [0.0, 0.00049, 0.0005, 0.001, 0.0099, 0.01, 0.0999, 0.1, 0.5, 0.9949, 0.995, 0.99951, 1.0, 1.5, math.nan]
COUNTS = [0, 1, 2, 0.5, 1.5, 999, 1000, 9999, 10_000, 1_234_567]
SPANS = [(1, 10, 1.0), (0, 59, 1.0), (0, 60, 1.0), (0, 3599, 1.0), (0, 3600, 1.0), (5, 5, 0.5), (6, 5, 2.0), (3, None, 1.0)]
KERNELS = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, float)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int, float)",
    "volta_sgemm_128x64_nn", "x" * 60, "x" * 59 + "y", "",
]  # fmt: skip
ROWS = [["a", "1", "22"], ["a long name of something", "333", ""], ["", "4", "5"]]


def test_counts_units_and_shortened_texts_are_written_correctly() -> None:
    lines = [f"time {value}: {time_text(value)}, {time_text(value, signed=True)}, {time_text(-value)}" for value in TIMES]
    lines += [f"size {value}: {size_text(value)}, {size_text(value, signed=True)}, {size_text(-value)}" for value in SIZES]
    lines += [f"share {value}: {share_text(value)}, {error_text(value)}, {error_text(-value)}" for value in SHARES]
    lines += [f"count {value}: {count_text(value)}, {counted(value, 'step')}" for value in COUNTS]
    lines += [f"unknown: {time_text(None)}, {size_text(None)}, {share_text(None)}, {error_text(None)}"]
    lines += [f"progress {words}: {progress_text(*words)}" for words in SPANS]
    alike = ["abcdefgh", "abcdefxy", "ab"]
    lines += [f"fit {width}: {fit('abcdef', width)!r}, {fit_apart(alike, width)}" for width in range(1, 10)]
    lines += [f"names: {names_text(KERNELS[:count])}" for count in range(1, 5)] + kernel_texts(KERNELS)
    for width in (12, 20, 40):
        lines += [f"table of {width}:", *table(["name", "one", "two"], ROWS, width=width)]
    lines += [f"curve: {curve_text(values)}" for values in ([], [0.0], [0.0, 1.0], [1.0, 0.5, 0.25, 0.0], [2.0, 2.0])]
    assert_golden(Path(__file__).parent / "golden" / "numbers.txt", "\n".join(lines) + "\n")
