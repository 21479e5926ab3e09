"""Replays our recordings of real GPUs on a machine without a GPU, and compares each replay with its recording.

    python benchmarks/hardware.py [--recordings FOLDER] [--only NAME] [--json FILE] [--page docs/hardware.md]

The recordings were made with `benchmarks/on_gpu.sh` on machines with GPUs. The file `benchmarks/recordings/README.md` lists the
date, the machine and the command of each recording. Each recording contains the name and the arguments of its script, which is
in one of the folders in `SCRIPTS`. The scripts run under `trace replay --clock recorded`, so the load of the replaying machine
does not matter. The replays use the installed release of PyTorch. The recorded host times without the profiler are estimated
again, because the recordings contain estimates of earlier versions of `trace record`.

    step, replay     median step time of the recording's steps without the profiler, and of the replay
    error, noise     relative error of the step time, and half the interquartile range of the recorded steps
    GPU time         relative error of the GPU time per step
    matched          share of the GPU time that was matched op by op
    memory           relative error of the peak of allocated memory
    program          whether the replay is the same program as the recording
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.page_tables import with_tables  # noqa: E402
from traces.combining.profiler_cost import with_clean_pace  # noqa: E402
from traces.format.trace_file import load, save  # noqa: E402
from traces.model.trace import Trace  # noqa: E402

RECORDINGS = Path(__file__).resolve().parent / "recordings"
SCRIPTS = (ROOT / "examples", ROOT / "tests" / "cuda" / "programs", ROOT / "benchmarks")
RENAMED = {"big.py": "gpu_workloads.py"}  # scripts that had another name when they were recorded
STEPS = "20"  # number of replayed steps, for scripts with the option --steps
BEGIN, END = "<!-- table of benchmarks/hardware.py -->", "<!-- end of the table -->"


@dataclass(frozen=True)
class Row:
    """Errors and shares are fractions, times are in ns, and missing values are None."""

    recording: str
    gpu: str
    torch: str
    grain: str
    recorded_ns: float | None
    replayed_ns: float | None
    error: float | None
    noise: float | None
    gpu_time: float | None
    matched: float | None
    memory: float | None
    same_program: bool | None


def command(trace: Trace) -> list[str]:
    """Return a recording's script and its arguments, with fewer steps. Ends the process if the script is in none of the
    folders."""
    run = trace.run_of(0)
    name = run.script.name if run.script else ""
    name = RENAMED.get(name, name)
    script = next((folder / name for folder in SCRIPTS if name and (folder / name).exists()), None)
    if script is None:
        sys.exit(f"no folder has the script {name!r} of the recording")
    words = list(run.argv or ())
    if "--steps" in words:
        words[words.index("--steps") + 1] = STEPS
    return [str(script), *words]


def run_replay(words: Sequence[str], folder: Path) -> str:
    """Run `trace replay --clock recorded` with these arguments, and return the last line that it printed on stderr."""
    main = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from trace_replay import main; main()"
    call = [sys.executable, "-c", main, "replay", "-q", "--clock", "recorded", *words]
    done = subprocess.run(call, capture_output=True, text=True, cwd=folder)
    return done.stderr.strip().rpartition("\n")[2]


def replayed(file: Path, trace: Trace, folder: Path) -> dict[str, Any]:
    """Return the report of a replay of the recording."""
    report = folder / f"{file.stem}.json"
    report.unlink(missing_ok=True)  # delete the report of a recording with the same name from another GPU
    script = command(trace)
    ranks = ["--nproc", "1"] if 'environ["LOCAL_RANK"]' in Path(script[0]).read_text() else []  # torchrun started such a script
    failure = run_replay([*ranks, "--report", str(report), "--trace", str(file), *script], folder)
    if not report.exists():
        sys.exit(f"{file.name}: {failure}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def with_current_pace(trace: Trace) -> Trace:
    """Return a copy of the recording in which the host times without the profiler are estimated by the current rules of `trace
    record`."""
    for rank, run in trace.runs.items():
        if run.profiler_cost is not None:
            trace.runs[rank] = with_clean_pace(replace(run, profiler_cost=None, host_scale={}), trace, rank)
    return trace


def row_of(recording: Path, folder: Path) -> Row:
    trace = with_current_pace(load(recording))
    file = folder / recording.name
    save(trace, file)
    report = replayed(file, trace, folder)
    steps, busy = report["steps"] or {}, report["gpu_busy"] or {}
    coverage = report.get("coverage") or {}
    peaks = [
        one["replayed_peak_bytes"] / one["recorded_peak_bytes"] - 1
        for one in (report.get("memory") or {}).values()
        if one["recorded_peak_bytes"] and one["replayed_peak_bytes"]
    ]
    return Row(
        recording=file.stem,
        gpu=trace.devices[0].name,
        torch=trace.machine_of(0).torch or "",
        grain=trace.grain,
        recorded_ns=steps.get("recorded_median_ns"),
        replayed_ns=steps.get("replayed_median_ns"),
        error=steps.get("error"),
        noise=steps.get("noise_floor"),
        gpu_time=busy.get("error"),
        matched=coverage["exact"] + coverage["equivalent"] if coverage and trace.grain == "kernel" else None,
        memory=max(peaks, key=abs) if peaks else None,
        same_program=report["same_program"],
    )


def table(rows: Sequence[Row]) -> str:
    def share(value: float | None, form: str) -> str:
        return "" if value is None else f"{100 * value:{form}} %"

    def milliseconds(value: float | None) -> str:
        return "" if value is None else f"{value / 1e6:.2f} ms"

    lines = [
        "| recording | GPU | torch | grain | step | replay | error | noise | GPU time | matched | memory | program |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        program = {True: "same", False: "different", None: "unknown"}[row.same_program]
        cells = [row.recording, row.gpu, row.torch, row.grain, milliseconds(row.recorded_ns), milliseconds(row.replayed_ns)]
        cells += [share(row.error, "+.1f"), share(row.noise, ".0f"), share(row.gpu_time, "+.2f"), share(row.matched, ".1f")]
        lines.append("| " + " | ".join([*cells, share(row.memory, "+.2f"), program]) + " |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    steps = sorted(abs(row.error) for row in rows if row.error is not None)
    busy = max(abs(row.gpu_time) for row in rows if row.gpu_time is not None)
    within = sum(row.error is not None and abs(row.error) <= max(row.noise or 0.0, 0.02) for row in rows)
    return (
        f"The median error of the step time is {100 * median(steps):.1f} %. The largest error of the GPU time is"
        f" {100 * busy:.2f} %. A step time counts as correct if its error is at most 2 %. If the recorded times vary by"
        " more than 2 %, the error may be as large as their spread."
        f" Correct step times: {within} of {len(rows)}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, metavar="FOLDER")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this recording")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--page", type=Path, metavar="PAGE", help="also replace the table of this page")
    told = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(told.recordings.rglob("*.msgpack")):
            if not told.only or file.stem in told.only:
                rows.append(row_of(file.absolute(), Path(folder)))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    if not rows:
        sys.exit("no recording has this name")
    found = f"{table(rows)}\n\n{summary(rows)}"
    print(found)
    if told.json:
        told.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if told.page:
        told.page.write_text(with_tables(told.page.read_text(), found, BEGIN, END))
    return 0


if __name__ == "__main__":
    sys.exit(main())
