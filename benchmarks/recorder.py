"""Compares recordings with the log of the simulated CUDA device in tests/cuda.

    make build/simulated_device/with_device
    .venv-cuda/bin/python -m benchmarks.recorder build/simulated_device/with_device [--part PART] [--page docs/recorder.md]

The benchmark has four parts: `programs`, `stages`, `medians` and `long`. `--page` replaces the tables of the chosen parts.

`programs`: each program is recorded with phases only and with kernels, and each recording is replayed with `--clock recorded`.
Columns:

    log, trace, correct   device work of profiled steps: in the device's log, in the recording, and recorded correctly in every
                          column (times to 2 us, name, device, stream, graph, op, step, phase)
    phases                kernel grain: work in the phase that the program noted; phase grain: the largest error of a phase's
                          median time between its events, against the log
    step, busy            the replay against the recording: median step, GPU busy time of a step
    matched               GPU time of the replay that was matched op by op
    cost                  processor time of the program's thread per clean step, minus that of a run without recorder (medians);
                          hardly depends on other load

`stages`: in this part, nn.DataParallel runs on 2 and 4 devices that are slower than the host. The table compares the time
between the two events of each stage with the log and with the replay. An event that finds an idle GPU completes when the host
records it, and the log does not contain this time. Therefore, only stages that begin and end on a busy GPU are compared with
the log.

`medians`: the table is for programs in which the GPU often waits for the host. Each program is recorded `--recordings` times
with `--grain kernel`, or fewer times if `--minutes` minutes are over. The table compares the median error of the replayed step
times with the noise of the recorded steps.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.page_tables import with_tables
from tests.cuda.running import PROGRAMS, Program, Run, record, replay, run
from tests.cuda.test_recorder import completion, phase_times
from tests.cuda.truth import DeviceLog, Mark
from traces.model.trace import NONE, StepKind, Trace

LONG_STEPS = 10_000
HOST_BOUND = ("cnn_loader", "amp", "two_streams", "accumulation", "evaluation", "gan", "other_work", "fsdp2")
ALLOWED_ERROR = 0.03  # allowed error of a replayed step time; half of the noise is also allowed


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


def stages_against_log(trace: Trace, log: DeviceLog) -> dict[tuple[str, int], list[int]]:
    """Compare the times of DataParallel's stages with the log. Return the differences in ns, by stage and device. Only those
    stages of steady steps are compared that begin and end while the device is busy."""
    parts, errors = trace.parts, dict[tuple[str, int], list[int]]()
    steady = trace.steps.kind[trace.phases.step[parts.phase]] == StepKind.STEADY
    for device in range(len(trace.devices)):
        # A peer copy blocks the streams of both devices. The first device sends or receives all peer copies.
        completes = completion([work for work in log.work if work.device == device or (device == 0 and "PtoP" in work.name)])
        for row in np.flatnonzero(steady & (parts.device == device) & (parts.device_start_ns != NONE)).tolist():
            start, end = int(parts.start_ns[row]), int(parts.end_ns[row])
            begins, ends = completes(start), completes(end)
            of_stage = errors.setdefault((trace.strings[parts.name[row]], device), [])
            if begins > start and ends > end:
                of_stage.append(int(parts.device_end_ns[row] - parts.device_start_ns[row]) - (ends - begins))
    return errors


def stages_table(device: Path, folder: Path) -> str:
    lines = ["| GPUs | grain | stage | compared | error | largest | recorded | replayed |", "|---|---|---|---|---|---|---|---|"]
    for gpus in (2, 4):
        program = replace(PROGRAMS[f"data_parallel_{gpus}"], settings=(("SIMGPU_SLOWDOWN", "100"),))
        for grain in ("kernel", "phase"):
            recorded = record(device, program, grain, folder / f"{gpus}-{grain}")
            found = stages_against_log(recorded.trace, recorded.logs[0])
            replayed = replay(recorded, folder / f"{gpus}-{grain}").parts
            for (name, on), errors in found.items():
                of = replayed.get(name) or replayed[f"{name} (cuda:{on})"]
                device_ns = of.device_recorded_median_ns, of.device_replayed_median_ns
                times = ["" if ns is None else f"{ns / 1000:.1f} us" for ns in device_ns]
                sizes = [abs(error) / 1000 for error in errors]
                of_log = [f"{statistics.median(sizes):.1f} us", f"{max(sizes):.1f} us"] if sizes else ["", ""]
                cells = [str(gpus), grain, f"{name} on GPU {on}", str(len(sizes)), *of_log, *times]
                lines.append("| " + " | ".join(cells) + " |")
                print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def medians_table(device: Path, folder: Path, names: Sequence[str], recordings: int, minutes: float) -> str:
    until, found = time.monotonic() + 60 * minutes, {name: list[tuple[float, float]]() for name in names}
    longest_s = 0.0
    for number in range(recordings):
        for name, values in found.items():
            began = time.monotonic()
            if began + longest_s > until:
                break
            place = folder / f"{name}-{number}"
            try:
                compared = replay(record(device, PROGRAMS[name], "kernel", place), place).steps
            except AssertionError as error:  # the replay wrote no file
                print(name, error, file=sys.stderr, flush=True)
                continue
            shutil.rmtree(place)
            if compared.error is not None and compared.noise_floor is not None:
                values.append((compared.error, compared.noise_floor))
                print(name, *(_share(value) for value in values[-1]), file=sys.stderr, flush=True)
            longest_s = max(longest_s, time.monotonic() - began)
    lines = ["| program | recordings | median error | smallest | largest | noise | |", "|---|---|---|---|---|---|---|"]
    for name, values in found.items():
        if values:
            errors, noise = [error for error, _ in values], statistics.median(noise for _, noise in values)
            median = statistics.median(errors)
            cells = [_share(value) for value in (median, min(errors), max(errors))] + [f"{noise:.0%}".replace("%", " %")]
            met = "met" if abs(median) <= max(ALLOWED_ERROR, noise / 2) else "NOT MET"
            lines.append("| " + " | ".join([name, str(len(values)), *cells, met]) + " |")
    return "\n".join(lines)


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


def programs_table(device: Path, folder: Path, only: Sequence[str]) -> str:
    rows: list[Row] = []
    for name, program in PROGRAMS.items():
        if only and name not in only:
            continue
        native = run(device, program, folder / name / "native")
        for grain in ("kernel", "phase"):
            rows.append(row_of(device, name, program, grain, native, folder / name / grain))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return table(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("device", type=Path, help="the script with_device that tests/cuda/build.py made")
    names, parts = list(PROGRAMS), ("programs", "stages", "medians", "long")
    parser.add_argument(
        "--only", action="append", default=[], choices=names, metavar="PROGRAM", help=f"only this program: {', '.join(names)}"
    )
    parser.add_argument("--part", choices=parts, action="append", help="only this part of the benchmark")
    parser.add_argument("--recordings", type=int, default=7, help="number of recordings of each program for the medians")
    parser.add_argument("--minutes", type=float, default=18.0, help="time limit of the medians")
    parser.add_argument("--page", type=Path, help="also replace the tables of this page, docs/recorder.md")
    options = parser.parse_args(arguments)
    device = options.device.absolute()  # an absolute path, because each program runs in a separate folder
    for part in options.part or parts:
        marks = f"<!-- {part} of benchmarks.recorder -->", f"<!-- end of {part} -->"
        if options.page:
            with_tables(options.page.read_text(), "", *marks)  # checks the page now, and not after all programs have run
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if part == "programs":
                text = programs_table(device, folder, options.only)
            elif part == "stages":
                text = stages_table(device, folder)
            elif part == "medians":
                text = medians_table(device, folder, options.only or HOST_BOUND, options.recordings, options.minutes)
            else:
                text = long_table(long_run(device, folder))
        print(text)
        if options.page:
            options.page.write_text(with_tables(options.page.read_text(), text, *marks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
