"""Changes each threshold up and down by a fifth, and shows which results and tests change.

    python benchmarks/fidelity.py --runs 1 --keep fidelity
    python benchmarks/sensitivity.py fidelity [--markdown docs/sensitivity.md]

The script compares each recording of docs/fidelity.md with its replay, and recordings with each other. The tests compare small
programs with variants that differ in one thing. Whole numbers are changed by a fifth, rounded, but at least by 1.

A threshold is changed in all modules that imported it. Comparisons and tests are repeated only for thresholds that they read.
The first repetitions use groups of changed thresholds. If a result changes, the group is divided into single thresholds. Few
thresholds change a test's result, so the first group of a test contains all thresholds that the test reads.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import traces  # noqa: E402
from docs.constants_page import FITTED, constants_of  # noqa: E402
from traces.comparison import thresholds  # noqa: E402
from traces.comparison.compare import compare  # noqa: E402
from traces.comparison.explain import explain  # noqa: E402
from traces.model.trace import Trace  # noqa: E402

THRESHOLDS = constants_of(thresholds)
MOVES = {"up": 1.2, "down": 0.8}
PAIRS = (
    ("v100_resnet50_workers0", "v100_resnet50_workers0_rerun"),
    ("v100_resnet50_workers0", "v100_resnet50_workers4"),
    ("h100_qwen05b_inference", "mi300x_qwen05b_inference"),
    ("a100_particle_fwd_bs2", "a100_particle_fwd_bs32"),
)
TWINS = tuple(
    f"tests/traces/{name}.py"
    for name in (
        "comparison/test_compare",
        "comparison/test_compared_steps",
        *(f"comparison/program/test_{own}" for own in ("same_program", "device_ops", "op_numbers", "op_order")),
        "comparison/program/test_despite_same_ops",
        "comparison/test_explain",
        "comparison/test_counterparts",
        "comparison/test_changed_ops",
        "comparison/test_gate",
        "figures/test_pace",
        "figures/test_spread",
        "figures/test_bottleneck",
        "figures/test_problems",
        "analyses/test_idle",
        "analyses/test_stragglers",
        "analyses/test_waits",
        "analyses/test_launches",
        "analyses/test_critical_path",
        "kineto/test_impossible",
        "combining/test_rank_clocks",
        "stalls/test_data_stalls",
        "library/test_library_limits",
    )
)
_GROUP = 6  # number of thresholds that are first changed together in a comparison
Pairs = dict[str, tuple[Trace, Trace]]
R = TypeVar("R")


def moved(value: object, factor: float) -> object:
    if isinstance(value, tuple):
        return tuple(moved(each, factor) for each in value)
    if isinstance(value, int):
        apart = max(round(abs(value * (factor - 1))), 1)
        return value + apart if factor > 1 else value - apart
    return value * factor if isinstance(value, float) else value


def compared_pairs(folder: Path) -> Pairs:
    recordings = {of.parent.name: traces.load(of) for of in sorted(folder.glob("*/*.msgpack")) if of.stem != "replay"}
    replays = {of.parent.name: traces.load(of) for of in sorted(folder.glob("*/replay.msgpack"))}
    pairs = {f"{name} and its replay": (recordings[name], replay) for name, replay in replays.items()}
    return pairs | {f"{a} and {b}": (recordings[a], recordings[b]) for a, b in PAIRS if a in recordings and b in recordings}


def verdicts(first: Trace, second: Trace) -> dict[str, str]:
    """Return all results that a user reads: whether programs and times are the same, and what limits the training speed."""
    of = compare(first, second, tolerance=thresholds.DEFAULT_TOLERANCE)
    found = {"program": of.verdict.sameness.value, "within tolerance": str(of.within_tolerance)}
    sides = zip(("first", "second"), of.bottlenecks, of.paces, of.problems, strict=True)
    for which, limit, pace, problems in sides:
        found[f"pace limit of the {which} trace"] = "none" if limit is None else limit.limit
        falls = pace is not None and pace.falls_behind_ns > 0
        found[f"the {which} falls behind"] = "yes" if falls else "no"
        found[f"serious problems of the {which}"] = " ".join(problems) or "none"
    found["largest reason"] = next((reason.what for reason in explain(of).reasons), "none")
    return found


@contextlib.contextmanager
def read_thresholds(names: set[str]) -> Iterator[None]:
    """Add the thresholds that occur in functions called in the context to `names`."""
    called: set[CodeType] = set()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code)

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
    names |= THRESHOLDS.keys() & {name for code in called for name in code.co_names if code.co_name != "<module>"}


@contextlib.contextmanager
def moved_thresholds(names: Sequence[str], factor: float) -> Iterator[None]:
    usual = [(module, name) for module in list(sys.modules.values()) for name in names if name in vars(module)]
    for module, name in usual:
        setattr(module, name, moved(THRESHOLDS[name].value, factor))
    try:
        yield
    finally:
        for module, name in usual:
            setattr(module, name, THRESHOLDS[name].value)


def changed_by(names: Sequence[str], factor: float, run: Callable[[], R], usual: R) -> Iterator[tuple[str, R]]:
    """Return the thresholds that change the result of a function if each is moved alone, and the changed results."""
    with moved_thresholds(names, factor):
        found = run()
    if found == usual:
        return
    if len(names) == 1:
        yield names[0], found
        return
    middle = len(names) // 2
    for half in (names[:middle], names[middle:]):
        yield from changed_by(half, factor, run, usual)


def changes(run: Callable[[], R], together: int) -> tuple[R, Iterator[tuple[str, R]]]:
    """Return the usual result of a function, and an iterator over keys such as "MUCH_DATA up" and the changed results."""
    names: set[str] = set()
    with read_thresholds(names):
        usual = run()
    groups = [sorted(names)[at : at + together] for at in range(0, len(names), together)]
    found = (
        (f"{name} {move}", result)
        for move, factor in MOVES.items()
        for group in groups
        for name, result in changed_by(group, factor, run, usual)
    )
    return usual, found


class _Tests:
    """Repeats each test with changed thresholds, as a pytest plugin."""

    def __init__(self) -> None:
        self.failed: dict[str, list[str]] = {}  # keys are texts such as "MUCH_DATA up", or "" if no threshold is changed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Function, nextitem: pytest.Item | None) -> bool:
        def fails() -> bool:
            item._initrequest()
            return any(report.failed for report in runtestprotocol(item, log=False, nextitem=nextitem))

        usual, found = changes(fails, len(THRESHOLDS))
        for key in [""] if usual else [key for key, _ in found]:
            self.failed.setdefault(key, []).append(item.nodeid.rpartition("/")[2])
        return True


def failed_tests() -> dict[str, list[str]]:
    plugin = _Tests()
    os.chdir(ROOT)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main(["-q", "-n", "0", "-m", "not program", "-p", "no:cacheprovider", *TWINS], plugins=[plugin])
    return plugin.failed


HEADER = ("threshold", "value", "origin", "moved", "changed conclusions", "failed tests")


def _first(texts: list[str]) -> str:
    others = f", and {len(texts) - 1} more" if len(texts) > 1 else ""
    return f"{texts[0]}{others}" if texts else "none"


def row(name: str, move: str, apart: list[str], failures: list[str]) -> tuple[str, ...]:
    of = THRESHOLDS[name]
    value = moved(of.value, MOVES[move])
    shown = ", ".join(f"{each:g}" for each in (value if isinstance(value, tuple) else (value,)))
    origin = f"**{FITTED}**" if of.origin == FITTED else of.origin
    return name, shown, origin, move, _first(apart), _first(failures)


def page(rows: list[tuple[str, ...]], figures: int) -> str:
    still = sorted({cells[0] for cells in rows} - {cells[0] for cells in rows if cells[4:] != ("none", "none")})
    steps = sum(cells[4] != "none" for cells in rows)
    shown = sorted((cells for cells in rows if cells[4:] != ("none", "none")), key=lambda cells: cells[4] == "none")
    lines = [
        "# What a threshold changes",
        "",
        '`trace` draws conclusions about recordings, such as "the host limits the step time". To draw a conclusion,',
        "`trace` compares measured values with the thresholds in [constants.md](constants.md). Would a slightly different",
        "threshold lead to a different conclusion?",
        "",
        f"The benchmark raised or lowered one threshold at a time by about 20 %. In {steps} of {len(rows)} such changes, at",
        "least one conclusion changed. For each changed threshold, the benchmark compared the same pairs of traces and drew",
        f"{figures} conclusions. Each conclusion answers one of these questions: Did both traces run the same program? Do",
        "their times agree? What limits a trace's step time? What is the largest difference?",
        "",
        "To repeat the benchmark, run `python benchmarks/fidelity.py --runs 1 --keep FOLDER` and then `python",
        "benchmarks/sensitivity.py FOLDER --markdown docs/sensitivity.md`.",
        "",
        "Each row of the table shows one changed threshold: its changed value, how the original value was found",
        "(`origin`), and whether the benchmark raised the threshold (`up`) or lowered it (`down`). The last two columns",
        "name one changed conclusion and one failed test, and the number of other changed conclusions and failed tests.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(cells) + " |" for cells in shown),
        "",
        "The following thresholds of [constants.md](constants.md) can be raised or lowered by about 20 % without any effect on"
        f" the conclusions and tests: {', '.join(still)}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder that benchmarks/fidelity.py --keep wrote")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    args = parser.parse_args()
    figures = 0
    apart: dict[str, list[str]] = {}
    for name, (first, second) in compared_pairs(args.folder.resolve()).items():
        usual, found = changes(partial(verdicts, first, second), _GROUP)
        figures += len(usual)
        for key, now in found:
            apart.setdefault(key, []).extend(f"{name}: {of}: {usual[of]} → {now[of]}" for of in usual if usual[of] != now[of])
    failed = failed_tests()
    if "" in failed:
        print(f"left out, because they fail with unchanged thresholds: {', '.join(failed[''])}", file=sys.stderr)
    keys = [(name, move) for name in THRESHOLDS for move in MOVES]
    rows = [row(name, move, apart.get(f"{name} {move}", []), failed.get(f"{name} {move}", [])) for name, move in keys]
    for cells in rows:
        print("  ".join(cells))
    if args.markdown:
        args.markdown.resolve().write_text(page(rows, figures), encoding="utf-8")


if __name__ == "__main__":
    main()
