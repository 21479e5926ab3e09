"""Tests the sentences that describe problems of a recording, and the severity of each problem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from traces.figures.problems import Severity, is_cut, problems_of


@pytest.mark.parametrize(
    ("count", "kernels", "severity", "text"),
    [
        (4, 2, Severity.SERIOUS, "The recording lacks 4 of 6 kernels, so idle time is not reliable."),
        (1, 2, Severity.SERIOUS, "The recording lacks 1 of 3 kernels, so idle time is not reliable."),
        (10, 990, Severity.SERIOUS, "The recording lacks 10 of 1,000 kernels, so idle time is not reliable."),
        (9, 991, Severity.WARNING, "The recording lacks 9 of 1,000 kernels, so idle time is not reliable."),
    ],
)
def test_missing_kernels_are_serious_at_one_percent_or_more(count: int, kernels: int, severity: Severity, text: str) -> None:
    (found,) = problems_of({"lost-kernel": count}, kernels)
    assert (found.severity, found.text, found.count) == (severity, text, count)


def test_problems_are_sorted_by_severity_and_zero_counts_are_omitted() -> None:
    counts = {"backlog-at-start": 998, "zero-timestamp": 1, "truncated-json": 1, "unescaped-quote": 0}
    assert [(p.kind, p.severity) for p in problems_of(counts, 10)] == [
        ("truncated-json", Severity.SERIOUS),
        ("zero-timestamp", Severity.WARNING),
        ("backlog-at-start", Severity.INFORMATION),
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("zero-timestamp", "Events without a time stamp are left out (count: 2,000)."),
        (
            "unknown-category mtia_x",
            "Events of the unknown category mtia_x are kept as host activities that belong to no op (count: 2,000).",
        ),
        ("a-new-kind", "Problems of the kind a-new-kind were found in the file (count: 2,000)."),
    ],
)
def test_a_problem_is_described_with_its_count(kind: str, text: str) -> None:
    assert problems_of({kind: 2000}, 0)[0].text == text


def test_every_counted_kind_of_problem_has_a_sentence() -> None:
    product = Path(__file__).resolve().parents[3]
    files = [file for room in ("traces", "tui") for file in (product / room).rglob("*.py")]
    counted = {kind for file in files for kind in re.findall(r'problems\["([a-z0-9-]+)"\]', file.read_text())}
    counted |= {kind for file in files for kind in re.findall(r'_count\(problems, "([a-z0-9-]+)"', file.read_text())}
    assert len(counted) > 15 and {"truncated-json", "lost-kernel"} & counted
    for kind in sorted(counted):
        text = problems_of({kind: 1}, 1)[0].text
        assert "Problems of the kind" not in text and not re.search(r"[\[\]{}|]", text), kind


@pytest.mark.parametrize(
    ("problem", "cut"),
    [("truncated-file", True), ("truncated-gzip", True), ("lost-kernel", False), ("trailing-comma", False), ("new", False)],
)
def test_only_a_file_without_its_end_counts_as_truncated(problem: str, cut: bool) -> None:
    assert is_cut({problem: 1}) is cut
    assert is_cut({problem: 1, "zero-timestamp": 1}) is cut
