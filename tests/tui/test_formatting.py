"""Tests how numbers with units, shortened names and tables are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.formatting import (
    count_text,
    curve_text,
    error_text,
    fit,
    fit_apart,
    kernel_text,
    kernel_texts,
    names_text,
    of_devices,
    paint,
    ranges_text,
    rough_text,
    share_text,
    size_text,
    table,
    time_text,
    wrapped,
)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 ns"), (417, "417 ns"), (12_345, "12.3 µs"), (176_100_000, "176.1 ms"), (1_204_000_000, "1.204 s"),
     (61_000_000_000, "61.0 s"), (-2_500, "-2.5 µs"), (None, "-"), (999, "999 ns"), (1000, "1.0 µs"), (10**6, "1.0 ms"),
     (10**9, "1.000 s"), (9_999_000_000, "9.999 s"), (10**10, "10.0 s")],
)  # fmt: skip
def test_times_are_formatted_with_units(time_ns: int | None, text: str) -> None:
    assert time_text(time_ns) == text


def test_sizes_counts_shares_and_errors_are_formatted_with_units() -> None:
    assert time_text(2_500, signed=True) == "+2.5 µs" and time_text(0, signed=True) == "0 ns"
    assert [size_text(n) for n in (512, 1536, 34 << 30, None, -1)] == ["512 B", "1.5 KiB", "34.0 GiB", "-", "-"]
    assert [count_text(n) for n in (8772, 4.5, 3.0, 1234.5)] == ["8,772", "4.5", "3", "1,234"]
    assert [share_text(s) for s in (0.972, None)] == ["97.2 %", "-"]
    assert [error_text(e) for e in (0.0132, -0.5, 0.0001, -0.0001, None)] == [
        "+1.3 %",
        "-50.0 %",
        "0.0 %",
        "0.0 %",
        "-",
    ]
    assert paint("x", "red", colour=False) == "x" and paint("x", "red", colour=True) == "\x1b[31mx\x1b[0m"


def test_figures_are_formatted_correctly_at_the_limits_of_each_unit() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1 << 20, 1 << 30, 1 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 GiB", "1.0 TiB",
    ]  # fmt: skip
    assert [size_text(n, signed=True) for n in (-1024, 0, 1)] == ["-1.0 KiB", "0 B", "+1 B"]
    assert [count_text(n) for n in (99.5, 100.5, 100.25)] == ["99.5", "100", "100"]
    assert [rough_text(s) for s in (0.0049, 0.005, 0.0051, 0.5, None)] == ["<1 %", "<1 %", "1 %", "50 %", "-"]
    shares = {f"cuda:{index}": index / 10 for index in range(5)}
    assert of_devices({device: shares[device] for device in list(shares)[:4]}, share_text) == [
        "cuda:0 0.0 %", "cuda:1 10.0 %", "cuda:2 20.0 %", "cuda:3 30.0 %",
    ]  # fmt: skip
    assert of_devices(shares, share_text) == ["0.0 % (cuda:0) to 40.0 % (cuda:4)"]
    assert [fit("kernel", width) for width in (6, 5)] == ["kernel", "kern…"]
    assert names_text(["a", "b"]) == "a + b" and [curve_text(of) for of in ([0, 0], [1, 8], [])] == ["··", "▁█", ""]


def test_kernel_names_are_shortened_by_removing_return_type_and_parameters() -> None:
    assert kernel_text("void at::native::relu<float (*)(int)>(int, float (*)(int))") == "at::native::relu<float (*)(int)>"
    assert kernel_text("Memcpy HtoD (Pageable -> Device)") == "Memcpy HtoD (Pageable -> Device)"
    assert kernel_text("volta_sgemm_nn") == "volta_sgemm_nn"
    assert kernel_text("odd)") == "odd)"


def test_long_names_are_shortened_with_an_ellipsis() -> None:
    assert fit("a  b\nc", 10) == "a b c"
    assert fit("volta_sgemm", 6) == "volta…"


def test_shortening_never_makes_different_names_equal() -> None:
    assert fit_apart(["volta_sgemm_128x64_nn", "volta_sgemm_128x64_nt", "relu"], 16) == [
        "volta_sgemm…4_nn",
        "volta_sgemm…4_nt",
        "relu",
    ]
    # From a width of 12 characters, shortened names differ.
    assert fit_apart(["volta_sgemm_nn", "volta_sgemm_nt"], 12) == ["volta_sg…_nn", "volta_sg…_nt"]
    assert fit_apart(["volta_sgemm_nn", "volta_sgemm_nt"], 11) == ["volta_sgem…"] * 2
    assert fit_apart(["same_name_of_a_kernel"] * 2, 16) == ["same_name_of_a_…"] * 2
    between = [f"{'a' * 40}{middle}{'z' * 40}" for middle in "bc"]
    assert fit_apart(between, 16) == ["aaaaaaaaaaaaa…#1", "aaaaaaaaaaaaa…#2"]


@given(st.lists(st.text("abc", min_size=1, max_size=40), max_size=8), st.integers(12, 40))
def test_shortened_names_stay_distinct(names: list[str], width: int) -> None:
    short = fit_apart(names, width)
    assert len(set(short)) == len(set(names)) and all(len(name) <= width for name in short)


def test_kernel_names_that_differ_only_in_parameters_are_not_shortened() -> None:
    assert kernel_texts(["void f<int>(long)", "void f<int>(char)", "void g(int)"]) == [
        "void f<int>(long)",
        "void f<int>(char)",
        "g",
    ]
    assert names_text(["void a(int)", "b", "c", "d"]) == "a + b and 2 more"


@given(st.lists(st.tuples(st.text(max_size=60), st.integers(0, 10**9)), max_size=5), st.integers(40, 120), st.booleans())
def test_tables_never_exceed_the_width_and_align_figures_right(rows: list[tuple[str, int]], width: int, stretch: bool) -> None:
    lines = table(["name", "figure"], [[name, str(figure)] for name, figure in rows], width=width, stretch=stretch)
    assert len({len(line) for line in lines}) == bool(rows)  # a table without rows is empty
    assert all(len(line) == width if stretch else len(line) <= width for line in lines)
    assert all(line.endswith(str(figure)) for line, (_, figure) in zip(lines[1:], rows, strict=True))


def test_consecutive_ranks_are_written_as_ranges() -> None:
    assert ranges_text([0, 2, 3, 4, 7]) == "0, 2-4, 7"
    assert ranges_text([*range(0, 16, 2)]) == "0, 2, 4, 6, 8, 10, 12, 14"
    assert ranges_text([*range(0, 16, 2), 16, 17, 18, 20]) == "0, 2, 4, 6, 8, 10, 12, 14 and 4 more"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("it takes 99.0 µs or less", ["> it takes", "  99.0 µs or", "  less"]),
        ("it takes 99.0 % of a step", ["> it takes", "  99.0 % of a", "  step"]),
        ("it takes 99 steps in total", ["> it takes 99", "  steps in", "  total"]),
    ],
)
def test_numbers_and_their_units_stay_on_one_line(text: str, lines: list[str]) -> None:
    assert wrapped(text, 13, "> ", "  ") == lines
