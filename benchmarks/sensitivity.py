"""Changes each threshold up and down by a fifth, and shows which results and tests change.

    python benchmarks/fidelity.py --runs 1 --keep fidelity
    python benchmarks/sensitivity.py fidelity [--only SAME] [--markdown docs/sensitivity.md]

The script compares each recording of docs/fidelity.md with its replay, and recordings with each other. The tests compare small
programs with variants that differ in one thing. Whole numbers are changed by a fifth, rounded, but at least by 1.

Each changed threshold needs a new process, because modules import thresholds as plain numbers. The process is forked after the
traces were loaded, but before any module that uses a threshold is imported. The process repeats only the comparisons and the
test files whose code reads the threshold.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import traces  # noqa: E402
from traces.comparison import thresholds  # noqa: E402
from traces.comparison.declared_constants import ConstantOrigin  # noqa: E402
from traces.comparison.thresholds import THRESHOLDS  # noqa: E402
from traces.model.trace import Trace  # noqa: E402

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
        "kineto/test_text",
        "stalls/test_data_stalls",
        "library/test_library_limits",
    )
)
Verdicts = dict[str, str]  # by the name of a figure
Judged = tuple[Verdicts, list[str]]  # verdicts and failed tests
COMPARISONS = "comparisons"
R = TypeVar("R")
PARTS = (COMPARISONS, *TWINS)  # parts of the benchmark that can be repeated separately


def moved(value: object, factor: float) -> object:
    if isinstance(value, tuple):
        return tuple(moved(each, factor) for each in value)
    if isinstance(value, int):
        apart = max(round(abs(value * (factor - 1))), 1)
        return value + apart if factor > 1 else value - apart
    return value * factor if isinstance(value, float) else value


def verdicts(recordings: dict[str, Trace], replays: dict[str, Trace]) -> Verdicts:
    """Return all results that a user reads: whether programs and times are the same, and what limits the training speed."""
    from traces.comparison.compare import compare
    from traces.comparison.explain import explain

    found: Verdicts = {}
    both = {f"{name} and its replay": (recordings[name], replay) for name, replay in replays.items()}
    both |= {f"{a} and {b}": (recordings[a], recordings[b]) for a, b in PAIRS if a in recordings and b in recordings}
    for name, (first, second) in both.items():
        of = compare(first, second)
        found[f"{name}: program"] = of.verdict.sameness.value
        found[f"{name}: within tolerance"] = str(of.within_tolerance)
        sides = zip(("first", "second"), of.bottlenecks, of.paces, of.problems, strict=True)
        for which, limit, pace, problems in sides:
            found[f"{name}: pace limit of the {which} trace"] = "none" if limit is None else limit.limit
            falls = pace is not None and pace.falls_behind_ns > 0
            found[f"{name}: the {which} falls behind"] = "yes" if falls else "no"
            found[f"{name}: serious problems of the {which}"] = " ".join(problems) or "none"
        found[f"{name}: largest reason"] = next((reason.what for reason in explain(of).reasons), "none")
    return found


class _Failures:
    """Collects the names of failed tests as a pytest plugin."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid.rpartition("/")[2])


def failed_tests(files: Sequence[str]) -> list[str]:
    failures = _Failures()
    os.chdir(ROOT)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main(["-q", "-n", "0", "-m", "not program", "-p", "no:cacheprovider", *files], plugins=[failures])
    return sorted(set(failures.names))


@contextlib.contextmanager
def called_code() -> Iterator[set[CodeType]]:
    """Collect the code of all functions and modules that are called in the context."""
    called: set[CodeType] = set()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code)

    sys.settrace(trace)
    try:
        yield called
    finally:
        sys.settrace(None)


def in_a_child(work: Callable[[], R]) -> R:
    """Run a function in a forked process, and return the function's result. Raises RuntimeError if the process fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                result.write_text(json.dumps(work()), encoding="utf-8")
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(child, 0)[1] != 0:
            raise RuntimeError("the process that computes the verdicts failed")
        found: R = json.loads(result.read_text(encoding="utf-8"))
        return found


def judged(parts: Sequence[str], recordings: dict[str, Trace], replays: dict[str, Trace]) -> Judged:
    found = verdicts(recordings, replays) if COMPARISONS in parts else {}
    files = [part for part in parts if part != COMPARISONS]
    return found, failed_tests(files) if files else []


def with_names(part: str, recordings: dict[str, Trace], replays: dict[str, Trace]) -> tuple[Judged, list[str]]:
    """Return the results of a part without a changed threshold, and the thresholds that the part reads."""
    with called_code() as called:
        found = judged([part], recordings, replays)
    loads = (of for code in called for of in dis.get_instructions(code) if of.opname.startswith("LOAD_"))
    return found, sorted({of.argval for of in loads} & THRESHOLDS.keys())


def with_moved(
    name: str, factor: float, parts: Sequence[str], recordings: dict[str, Trace], replays: dict[str, Trace]
) -> Judged:
    early = [module for module, of in sys.modules.items() if of is not thresholds and name in vars(of)]
    if early:
        raise RuntimeError(f"{name} cannot be moved: {early[0]} was imported too early")
    setattr(thresholds, name, moved(THRESHOLDS[name].value, factor))
    return judged(parts, recordings, replays)


def changes(before: Judged, after: Judged) -> tuple[list[str], list[str]]:
    """Return the changed results as sentences, and the tests that fail only with the changed threshold."""
    apart = [f"{name}: {before[0][name]} → {now}" for name, now in after[0].items() if before[0][name] != now]
    return apart, [name for name in after[1] if name not in before[1]]


HEADER = ("threshold", "value", "origin", "moved", "changed conclusions", "twin tests that fail")


def row(name: str, move: str, apart: list[str], failures: list[str]) -> tuple[str, ...]:
    of = THRESHOLDS[name]
    value = moved(of.value, MOVES[move])
    shown = ", ".join(f"{each:g}" for each in (value if isinstance(value, tuple) else (value,)))
    origin = f"**{of.origin.value}**" if of.origin is ConstantOrigin.FITTED else of.origin.value
    return name, shown, origin, move, "<br>".join(apart) or "none", "<br>".join(failures) or "none"


def page(rows: list[tuple[str, ...]], figures: int) -> str:
    still = sorted({cells[0] for cells in rows} - {cells[0] for cells in rows if cells[4:] != ("none", "none")})
    missing = sorted(THRESHOLDS.keys() - {cells[0] for cells in rows})
    steps, page = sum(cells[4] != "none" for cells in rows), "[constants.md](constants.md)"
    lines = [
        "# What a threshold changes",
        "",
        '`trace` draws conclusions about recordings, such as "the host limits the step time". Each conclusion compares',
        "measured values with thresholds from [constants.md](constants.md). For this page, one threshold at a time was changed",
        "by 20 %, all conclusions were drawn again, and the tests were run. Each row of the table shows a raised or lowered",
        "threshold, the conclusions that changed, and the tests that failed. The page was written by",
        "`python benchmarks/sensitivity.py FOLDER --markdown docs/sensitivity.md`.",
        "",
        "The benchmark compares pairs of traces: a recording of docs/fidelity.md and its replay, or two recordings. These",
        f"comparisons give {figures} conclusions. Each conclusion answers a question about two traces: Are they traces of the",
        "same program? Do their times agree? What limits the step time of a trace? What is the largest difference? Only",
        f"{steps} of {len(rows)} changed thresholds affect a conclusion.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(cells) + " |" for cells in rows if cells[4:] != ("none", "none")),
        "",
        "The following thresholds of [constants.md](constants.md) can be raised or lowered by a fifth without any effect on the"
        f" conclusions and tests: {', '.join(still)}.",
        *(["", f"The benchmark was not run for the following thresholds of {page}:", ""] if missing else []),
        *(f"* {name}" for name in missing),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what benchmarks/fidelity.py --keep wrote")
    parser.add_argument("--only", default="", metavar="TEXT", help="thresholds whose names contain this")
    parser.add_argument("--json", type=Path, help="keep the results here; moves that the file already has are not repeated")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    args = parser.parse_args()
    recordings = {of.parent.name: traces.load(of) for of in sorted(args.folder.glob("*/*.msgpack")) if of.stem != "replay"}
    replays = {of.parent.name: traces.load(of) for of in sorted(args.folder.glob("*/replay.msgpack"))}
    np.ones(1).sum()  # loads what numpy loads late, so that children share it
    parts = {part: in_a_child(partial(with_names, part, recordings, replays)) for part in PARTS}
    usual = parts[COMPARISONS][0][0], [test for (_, failed), _ in parts.values() for test in failed]
    if usual[1]:
        print(f"fail without a moved threshold, and are left out: {', '.join(usual[1])}", file=sys.stderr)
    rows = []
    known = json.loads(args.json.read_text(encoding="utf-8")) if args.json and args.json.exists() else {}
    for name in THRESHOLDS:
        for move, factor in MOVES.items():
            key = f"{name} {move}"
            if args.only in name and key not in known:
                again = [part for part, (_, names) in parts.items() if name in names]
                work = partial(with_moved, name, factor, again, recordings, replays)
                known[key] = changes(usual, in_a_child(work)) if again else ([], [])
                if args.json:
                    args.json.write_text(json.dumps(known, indent=1), encoding="utf-8")
            if key in known:
                rows.append(row(name, move, *known[key]))
                print("  ".join(rows[-1]), flush=True)
    if args.markdown:
        args.markdown.write_text(page(rows, len(usual[0])), encoding="utf-8")


if __name__ == "__main__":
    main()
