"""Measures recording overhead: a training step without a recorder, recorded with phases, recorded with kernels, and under
torch.profiler alone.

    python benchmarks/record_overhead.py --device cpu --model resnet18 --batch-size 2 --image-size 64 [--json overhead.json]
    python benchmarks/record_overhead.py --on p100-no-cudnn --model resnet18 --batch-size 128

The four variants run one after the other, each in its own process (timed_training.py). The benchmark prints medians of ratios
within a round, in wall time and in processor time. The benchmark also prints the overhead that the recorder itself measured,
and the size of a file with the kernels of 10 steps. On a noisy machine, alternating_steps.py is more exact, because it
alternates recorded and unrecorded steps in one process.

The limits are 1 % of a step for phases, 5 % over torch.profiler alone for kernels, and 400 KB for 10 steps of ResNet-50.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from traces.format.trace_file import load, save  # noqa: E402
from traces.kineto import read_kineto  # noqa: E402
from traces.model.row_order import in_order  # noqa: E402
from traces.model.trace import StepKind, Trace  # noqa: E402
from traces.script.launch import run_child  # noqa: E402
from tui.commands.record import run  # noqa: E402
from tui.options import RecordOptions  # noqa: E402

SCRIPT = ROOT / "benchmarks" / "timed_training.py"
WARMUP, CLEAN, PROFILED, AFTER = 3, 10, 5, 2
FIRST_PROFILED = WARMUP + CLEAN + 1  # `+ 1`, because the profiler starts in the step before the first profiled step
CLEAN_STEPS = slice(WARMUP, WARMUP + CLEAN)
# The first and the last step of the window include the start and the end of the profile.
PROFILED_STEPS = slice(FIRST_PROFILED + 1, FIRST_PROFILED + PROFILED - 1)

Times = dict[str, list[int]]


@dataclass(frozen=True)
class Row:
    """Describes a line of the table, which compares the step times of two runs."""

    what: str
    mode: str
    steps: slice
    base: str
    base_steps: slice
    bound: float | None


ROWS = (
    Row("phase grain", "phase", CLEAN_STEPS, "bare", CLEAN_STEPS, 1.01),
    Row("kernel grain, clean steps", "kernel", CLEAN_STEPS, "bare", CLEAN_STEPS, 1.01),
    Row("bare torch.profiler", "profiler", PROFILED_STEPS, "bare", CLEAN_STEPS, None),
    Row("kernel grain, profiled steps", "kernel", PROFILED_STEPS, "profiler", PROFILED_STEPS, 1.05),
)


class Bench:
    """Run the workload in all four variants, and keep the last recordings in `folder`."""

    def __init__(self, folder: Path, words: list[str], on: str | None) -> None:
        self.folder = folder
        self.on = on
        self.words = [*words, "--steps", str(FIRST_PROFILED + PROFILED + AFTER)]

    def recording(self, grain: str) -> Path:
        return self.folder / f"{grain}.msgpack"

    def times(self, mode: str) -> Times:
        """Return the step times of one run. Raise RuntimeError if the run failed."""
        out = self.folder / "times.json"
        words = [str(SCRIPT), str(out), *self.words]
        if mode in ("phase", "kernel"):
            grain: Literal["phase", "kernel"] = "phase" if mode == "phase" else "kernel"
            code = run(RecordOptions(words, self.recording(mode), grain, WARMUP, CLEAN, PROFILED, on=self.on))
        else:
            if mode == "profiler":
                words += ["--profile-from", str(FIRST_PROFILED), "--profile-steps", str(PROFILED)]
            code = self._bare(words)
        if code:
            raise RuntimeError(f"{mode}: the training script ended with exit code {code}")
        times: Times = json.loads(out.read_text())
        return times

    def _bare(self, words: list[str]) -> int:
        if self.on is None:
            return subprocess.run([sys.executable, *words]).returncode
        from traces.library import find
        from traces.script.configuration import ReplaySession

        session = ReplaySession(find(self.on).resolve(), Path(self.folder), os.getpid())
        return run_child({"replayer": session}, words).returncode


def ratios(rounds: list[dict[str, Times]], row: Row, clock: str) -> list[float]:
    """Return one ratio of median step times for each round."""
    return [median(times[row.mode][clock][row.steps]) / median(times[row.base][clock][row.base_steps]) for times in rounds]


def counted_share(trace: Trace) -> float:
    """Return the recorder's own measurement of its overhead, as a fraction of the step time."""
    cost = trace.run_of(trace.ranks[0]).recorder
    return cost.overhead_share if cost is not None else 0.0


def measure(bench: Bench, count: int) -> dict[str, Any]:
    """Return all results of `count` rounds."""
    modes = ["bare", "phase", "kernel", "profiler"]
    rounds = [{mode: bench.times(mode) for mode in modes} for _ in range(count)]
    kernel = load(bench.recording("kernel"))
    profiled = int((kernel.steps.kind == StepKind.PROFILED).sum())
    size_bytes = bench.recording("kernel").stat().st_size
    return {
        "rounds": count,
        "bare_step_ns": median(median(times["bare"]["step_ns"][CLEAN_STEPS]) for times in rounds),
        "rows": [
            {
                "what": row.what,
                "over": row.base,
                "step_ns": median(median(times[row.mode]["step_ns"][row.steps]) for times in rounds),
                "ratio": median(ratios(rounds, row, "step_ns")),
                "ratios": ratios(rounds, row, "step_ns"),
                "processor_ratio": median(ratios(rounds, row, "processor_ns")),
                "bound": row.bound,
            }
            for row in ROWS
        ],
        "counted_share": {g: counted_share(load(bench.recording(g))) for g in ("phase", "kernel")},
        "kernel_file": {"bytes": size_bytes, "profiled_steps": profiled, "bytes_of_10": 10 * size_bytes // max(profiled, 1)},
    }


def alternating(words: list[str], seconds: float, folder: Path) -> list[dict[str, Any]]:
    """Return the ratio of recorded to unrecorded step times in one process, with and without torch.profiler."""
    out = folder / "alternating.json"
    found = []
    for more in ([], ["--profile"]):
        command = [sys.executable, str(SCRIPT.with_name("alternating_steps.py")), *words, *more]
        command += ["--seconds", str(seconds), "--json", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found.append(json.loads(out.read_text()))
    return found


def imported_size(traces: Path) -> dict[str, int] | None:
    """Return the file size of 10 steps of ResNet-50 from a real V100, or None if the recordings are missing."""
    source = traces / "v100_resnet50_workers0.json.gz"
    if not source.exists():
        return None
    trace = in_order(read_kineto(source))
    with tempfile.TemporaryDirectory() as folder:
        save(trace, Path(folder) / "v100.msgpack")
        size_bytes = os.path.getsize(Path(folder) / "v100.msgpack")
    return {"bytes": size_bytes, "profiled_steps": len(trace.steps), "bytes_of_10": 10 * size_bytes // len(trace.steps)}


def lines_of(facts: dict[str, Any]) -> list[str]:
    lines = [f"{'bare':30} {facts['bare_step_ns'] / 1e6:9.2f} ms"]
    lines.append(f"{'':30} {'step':>12} {'over':>9} {'by the clock':>13} {'processors':>11} {'bound':>7}  rounds")
    for row in facts["rows"]:
        step = f"{row['step_ns'] / 1e6:9.2f} ms {row['over']:>9}"
        rounds = f"{min(row['ratios']):.3f} to {max(row['ratios']):.3f}"
        bound = f"{row['bound']:7.2f}" if row["bound"] else " " * 7
        lines.append(f"{row['what']:30} {step} {row['ratio']:13.3f} {row['processor_ratio']:11.3f} {bound}  {rounds}")
    for pairs in facts["alternating"]:
        name, limit = ("under torch.profiler", 1.05) if pairs["profile"] else ("phase grain", 1.01)
        ratio, (low, high) = pairs["by the clock"]["ratio"], pairs["by the clock"]["bounds"]
        verdict = "met" if high <= limit else "NOT MET" if low > limit else "not decided: give more --seconds"
        lines.append(f"alternating steps, {name}: {ratio:.4f} of bare ({low:.4f} to {high:.4f}), limit {limit}: {verdict}")
    shares = ", ".join(f"{100 * share:.2f} % ({grain} grain)" for grain, share in facts["counted_share"].items())
    lines.append(f"overhead that the recorder reports: {shares}")
    for name, size in (("recorded here", facts["kernel_file"]), ("imported V100", facts.get("imported_file"))):
        if size:
            lines.append(
                f"kernel-grained file, {name}: {size['bytes'] / 1e3:.0f} KB with {size['profiled_steps']} profiled steps,"
                f" {size['bytes_of_10'] / 1e3:.0f} KB for 10 of them; limit for ResNet-50: 400 KB"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--on", metavar="TRACE", help="measure on the virtual GPU of this recording")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", default="32")
    parser.add_argument("--image-size", default="224")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="duration of each measurement with alternating steps")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces", help="real recordings")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    words = ["--model", args.model, "--batch-size", args.batch_size, "--image-size", args.image_size]
    if args.device:
        words += ["--device", args.device]
    with tempfile.TemporaryDirectory() as folder:
        facts = measure(Bench(Path(folder), words, args.on), args.rounds)
        facts["alternating"] = [] if args.on else alternating(words, args.seconds, Path(folder))
    facts["imported_file"] = imported_size(args.traces)
    print("\n".join(lines_of(facts)))
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
