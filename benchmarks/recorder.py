"""Compares recordings with the log of the simulated CUDA device in tests/cuda.

    make build/simulated_device/with_device
    .venv-cuda/bin/python -m benchmarks.recorder build/simulated_device/with_device [--only PROGRAM] [--page docs/recorder.md]

Each program is recorded with phases only and with kernels, and each recording is replayed with `--clock recorded`. Columns:

    log, trace, correct   device work of profiled steps: in the device's log, in the recording, and recorded correctly in every
                          column (times to 2 us, name, device, stream, graph, op, step, phase)
    phases                kernel grain: work in the phase that the program noted; phase grain: the largest error of a phase's
                          median time between its events, against the log
    step, busy            the replay against the recording: median step, GPU busy time of a step
    matched               GPU time of the replay that was matched op by op
    cost                  processor time of the program's thread per clean step, minus that of a run without recorder (medians);
                          hardly depends on other load
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.page_tables import with_tables
from tests.cuda.running import PROGRAMS, Program, Run, record, replay, run
from tests.cuda.test_recorder import phase_times
from tests.cuda.truth import Mark
from traces.model.trace import StepKind, Trace

LONG_STEPS = 10_000
BEGIN, END = "<!-- tables of benchmarks.recorder -->", "<!-- end of the tables -->"


@dataclass(frozen=True)
class Row:
    """Contains the results of one program, recorded with phases only or with kernels. Fractions and errors are None if there is
    nothing to compare."""

    program: str
    grain: str
    in_log: int | None
    in_trace: int | None
    correct: int | None
    phases: str
    step_error: float | None
    noise: float | None
    busy_error: float | None
    matched: float | None
    cost_us: float | None
    remark: str = ""


def _step_intervals(marks: Sequence[Mark], within: Sequence[tuple[int, int]] | None = None) -> list[int]:
    """Return the processor times between a program's optimizer steps in ns, optionally only within some time spans."""
    steps = [mark for mark in marks if mark.name == "optimizer" and mark.pid == marks[0].pid]
    return [
        after.processor_ns - before.processor_ns
        for before, after in list(pairwise(steps))[4:]
        if within is None or any(start <= before.start_ns and after.start_ns <= end for start, end in within)
    ]


def _clean_spans(trace: Trace) -> list[tuple[int, int]]:
    """Return the start and the end of each sequence of steps without the profiler on the first rank."""
    spans: list[tuple[int, int]] = []
    steps, before = trace.steps, False
    for row in np.flatnonzero(steps.rank == steps.rank[0]).tolist():
        clean = steps.kind[row] == StepKind.STEADY
        start, end = int(steps.start_ns[row]), int(steps.start_ns[row] + steps.duration_ns[row])
        if clean and before:
            spans[-1] = (spans[-1][0], end)
        elif clean:
            spans.append((start, end))
        before = bool(clean)
    return spans


def _cost(native: Run, recorded: Run) -> float | None:
    """Return the recorder's processor time in µs per step without the profiler."""
    if not native.marks or not recorded.marks:
        return None
    plain, ours = _step_intervals(native.marks), _step_intervals(recorded.marks, _clean_spans(recorded.trace))
    return (statistics.median(ours) - statistics.median(plain)) / 1000 if plain and ours else None


def _phases_against_log(recorded: Run) -> str:
    """Compare the median time of each phase with the device's log. Return the largest error, for one process with one GPU."""
    if len(recorded.logs) != 1 or recorded.program.gpus != 1:
        return ""
    by_name: dict[str, list[tuple[int, int]]] = {}
    for name, measured, logged in phase_times(recorded.trace, recorded.logs[0]):
        by_name.setdefault(name, []).append((measured, logged))
    errors = []
    for pairs in by_name.values():
        measured, logged = np.median(pairs, axis=0).tolist()
        errors.append(abs(measured - logged))
    return f"{max(errors) / 1000:.1f} us" if errors else ""


def row_of(device: Path, name: str, program: Program, grain: str, native: Run, folder: Path) -> Row:
    """Record one program with phases only or with kernels, and replay the recording."""
    recorded = record(device, program, grain, folder)
    if not recorded.file.exists():
        return Row(name, grain, None, None, None, "", None, None, None, None, None, "no recording")
    found = recorded.agreement if grain == "kernel" else None
    right = ""
    if found is not None and recorded.marks:
        right = f"{found.in_log - found.phases_wrong} of {found.in_log}"
    remark = "" if recorded.exit_code == program.exit_code else f"exit code {recorded.exit_code}, not {program.exit_code}"
    step = noise = busy = matched = None
    try:
        compared = replay(recorded, folder)
    except AssertionError as error:
        remark = str(error).splitlines()[0]
    else:
        step, noise, busy = compared.steps.error, compared.steps.noise_floor, compared.gpu_busy.error
        if compared.coverage and grain == "kernel":
            matched = compared.coverage["exact"] + compared.coverage["equivalent"]
        if compared.verdict.sameness.value != "same program":
            remark = remark or compared.verdict.reason
    return Row(
        name,
        grain,
        found.in_log if found else None,
        found.in_trace if found else None,
        found.correct if found else None,
        right if found else _phases_against_log(recorded),
        step,
        noise,
        busy if grain == "kernel" else None,
        matched,
        _cost(native, recorded),
        remark,
    )


def long_run(device: Path, folder: Path) -> dict[str, float]:
    """Run ten thousand steps without the recorder, recorded with phases, and recorded with kernels, and return the seconds,
    peak memory and file size."""
    facts: dict[str, float] = {}
    program = Program("long.py", (str(LONG_STEPS),))
    for grain in ("native", "kernel", "phase"):
        began = time.monotonic()
        one = run(device, program, folder / grain) if grain == "native" else record(device, program, grain, folder / grain)
        facts[f"{grain}_s"] = round(time.monotonic() - began, 1)
        facts[f"{grain}_peak_mib"] = float(one.output or "nan")
        if grain != "native":
            facts[f"{grain}_file_kib"] = round(one.file.stat().st_size / 1024, 1)
            facts[f"{grain}_steps"] = len(one.trace.steps)
    return facts


def _share(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:+.{digits}%}".replace("%", " %")


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| program | grain | log | trace | correct | phases | step | noise | busy | matched | cost | remark |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        counts = ["" if count is None else str(count) for count in (row.in_log, row.in_trace, row.correct)]
        noise = "" if row.noise is None else f"{row.noise:.0%}".replace("%", " %")
        matched = "" if row.matched is None else f"{row.matched:.1%}".replace("%", " %")
        cells = [row.program, row.grain, *counts, row.phases, _share(row.step_error), noise, _share(row.busy_error, 2), matched]
        lines.append("| " + " | ".join([*cells, "" if row.cost_us is None else f"{row.cost_us:+.0f} us", row.remark]) + " |")
    return "\n".join(lines)


def long_table(facts: dict[str, float]) -> str:
    """Return the results of the long program as a Markdown table."""
    lines = ["| 10 000 steps | seconds | peak memory | file |", "|---|---|---|---|"]
    for grain in ("native", "phase", "kernel"):
        file = f"{facts[f'{grain}_file_kib']:.0f} KiB" if grain != "native" else ""
        lines.append(f"| {grain} | {facts[f'{grain}_s']:.1f} | {facts[f'{grain}_peak_mib']:.0f} MiB | {file} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("device", type=Path, help="the script with_device that tests/cuda/build.py made")
    names = [*PROGRAMS, "long"]
    parser.add_argument(
        "--only", action="append", default=[], choices=names, metavar="PROGRAM", help=f"only this program: {', '.join(names)}"
    )
    parser.add_argument("--grain", choices=("kernel", "phase"), action="append", help="only this grain")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--page", type=Path, help="also replace the tables of this page, docs/recorder.md")
    options = parser.parse_args(arguments)
    if options.page:
        with_tables(options.page.read_text(), "", BEGIN, END)  # fails now and not after all programs
    options.device = options.device.absolute()  # each program runs in a separate folder
    rows: list[Row] = []
    facts: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program_name, program in PROGRAMS.items():
            if options.only and program_name not in options.only:
                continue
            native = run(options.device, program, folder / program_name / "native")
            for grain in options.grain or ("kernel", "phase"):
                rows.append(row_of(options.device, program_name, program, grain, native, folder / program_name / grain))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        if not options.only or "long" in options.only:
            facts = long_run(options.device, folder / "long")
    tables = "\n\n".join(text for text in (table(rows) if rows else "", long_table(facts) if facts else "") if text)
    print(tables)
    if options.page:
        options.page.write_text(with_tables(options.page.read_text(), tables, BEGIN, END))
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "long": facts}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
