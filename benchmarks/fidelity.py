"""Measures how close replays are to recordings of real GPUs, using programs in benchmarks/programs and their recordings.

The benchmark imports each recording, and replays its program with `trace replay --clock recorded`, which excludes this
machine's own time. Each replayed step is compared with the recorded step that it repeats. The output has one row per recording.

    python benchmarks/fidelity.py --traces ../shared/traces [--only v100] [--runs 3] [--json f.json] [--markdown page.md]

With `--only`, the results of all other recordings are kept in the JSON file and on the page. The option `--runs` sets how often
each program is replayed.

The columns show medians over the steps of a run, and then medians over runs. The first two training steps are left out, because
most recordings begin in the middle of a training run, when gradients, momentum and DDP buckets are already allocated. Kernels
of collectives are left out, because they wait for other ranks, which were not recorded. If the recorded host waits for work
that was launched before the recording, the wait is subtracted from the step time and shown in the table.

    step, busy, idle   the step on the host; GPU busy time; GPU idle time between the step's first and last kernel
    phase              the phase with the largest error, as a share of the step; no phase if the error rounds to 0.0 %
    order              kernels, copies and memsets in the recorded order, by name, on each stream
    first              how much later than recorded the first common kernel starts, relative to the start of the step on the
                       host; a GPU that is behind its host when the recording begins has work that is not in the recording
    start, p99         error of kernel starts relative to that first kernel, median and 99th percentile
    memory             peak allocated memory; if the recording lacks totals, its rise within a step
    coverage           GPU time by origin: exact, equivalent, scaled, phase, roofline
    host               how late this machine is in a step, median and worst, with `--clock virtual`; excluded elsewhere
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import traces  # noqa: E402
from benchmarks.replays import run_replay  # noqa: E402
from traces.analyses.communication import communication_kernels  # noqa: E402
from traces.figures.measure import work_rows  # noqa: E402
from traces.model.intervals import Intervals  # noqa: E402
from traces.model.trace import NONE, Column, HostKind, StepKind, Trace  # noqa: E402

PROGRAMS = Path(__file__).resolve().parent / "programs"


# Recordings begin after the program's first training steps. Gradients, momentum and buckets are allocated in these first steps.
SETTLES = 2


@dataclass(frozen=True)
class Case:
    """Contains a recording, its program, and the reason why a result may miss its goal."""

    recording: str
    program: str
    args: tuple[str, ...] = ()
    steps: int = 0  # number of replayed steps; 0 means as many as recorded
    options: tuple[str, ...] = ()  # options of `trace replay`
    settles: int = SETTLES  # number of first steps that are not compared
    why: str = ""


_SCRIPTED = "a scripted function, fused into two kernels when recorded, is seven ops here"
CASES = [
    Case("rtx2080ti_linear", "linear_stack.py"),
    Case("v100_resnet50_workers0", "resnet50_sgd.py"),
    Case("v100_resnet50_workers0_rerun", "resnet50_sgd.py"),
    Case("v100_resnet50_workers4", "resnet50_sgd.py", ("--workers", "2")),
    Case("gpu2020_resnet50_workers4_array", "resnet50_sgd.py", ("--workers", "2")),
    Case(
        "v100_absolute_ns",
        "resnet_ddp.py",
        steps=5,
        settles=3,
        why="the first three recorded steps fill the launch queue: the last two are compared",
    ),
    Case(
        "mi300x_resnet18_no_pool",
        "resnet_ddp.py",
        ("--model", "resnet18", "--plain", "--read-loss", "--momentum=0", "--dtype=bfloat16", "--loss=mse", "--batch-size=512"),
    ),
    Case("h100_transformer_toy", "transformer_block.py"),
    Case("h100_qwen05b_inference", "qwen_forward.py", settles=0),
    Case("mi300x_qwen05b_inference", "qwen_forward.py", settles=0),
    Case("a100_particle_fwd_bs2", "particle_transformer.py", ("--batch-size=2", "--longest=53"), settles=0, why=_SCRIPTED),
    Case("a100_particle_fwd_bs32", "particle_transformer.py", settles=0, why=_SCRIPTED),
    Case("a100_particle_fwd_bs512", "particle_transformer.py", ("--batch-size=512", "--longest=128"), settles=0),
    Case("a100_switch_transformer", "switch_transformer.py", settles=0),
    Case("mi250_minitoy", "linear_toy.py"),
    Case("gp100_gpu_user_annotation", "xor_toy.py"),
    Case(
        "a100_nccl_args_rank0of2",
        "resnet_ddp.py",
        options=("--nproc", "2"),
        why="in a replay, copies out of DDP's buckets wait for the last all-reduce; on a GPU, only for their own bucket",
    ),
    Case(
        "mi300x_resnet_act_checkpoint_rank0of8",
        "resnet_ddp.py",
        ("--model", "resnet18", "--checkpoint", "--momentum=0", "--dtype=bfloat16", "--loss=mse", "--batch-size=10"),
        options=("--nproc", "8"),
    ),
]


@dataclass
class Figures:
    """Contains the results of one run, or medians of several runs. Errors are fractions of the recorded values, and times are
    in ns."""

    step_ns: float | None = None  # recorded step time
    step: float | None = None
    phase: float | None = None  # largest error of a phase, as a share of the recorded step
    busy: float | None = None
    idle_ns: float | None = None  # replayed less recorded
    idle: float | None = None
    order: float | None = None
    first_ns: float | None = None  # replayed less recorded
    start_median_ns: float | None = None
    start_p99_ns: float | None = None
    memory: float | None = None
    host_ns: float | None = None
    host_worst_ns: float | None = None
    runs: int = 1
    waited_ns: int = 0  # waits for work from before the recording; subtracted from the recorded step time
    phase_name: str = ""
    coverage: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """Contains the host time and the GPU work of one step in a trace. Times are in ns since the start of the step."""

    duration_ns: int
    waited_ns: int  # waits for work from before the recording, not included in the other times
    phases: dict[str, int]
    streams: list[tuple[Column, Column, Column]]  # for each stream: string indices of names, starts and ends, in time order
    all_starts: Column  # start times of all work in the trace, including other steps
    all_ends: Column

    def busy_idle_ns(self) -> tuple[int, int]:
        """Return the GPU busy time of a step, and the GPU idle time between the step's first and last kernel, in ns."""
        starts = [starts for _, starts, _ in self.streams]
        ends = [ends for _, _, ends in self.streams]
        if not starts:
            return 0, 0
        own_ns, _ = _covered(np.concatenate(starts), np.concatenate(ends))
        first_ns, last_ns = min(int(those[0]) for those in starts), max(int(those.max()) for those in ends)
        inside = (self.all_ends > first_ns) & (self.all_starts < last_ns)
        worked_ns, _ = _covered(np.maximum(self.all_starts[inside], first_ns), np.minimum(self.all_ends[inside], last_ns))
        return own_ns, last_ns - first_ns - worked_ns


def _covered(starts: Column, ends: Column) -> tuple[int, int]:
    """Return the total time that the intervals cover, and the gaps between the intervals, in ns."""
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    uncovered_ns = int(np.maximum(starts[1:] - reach[:-1], 0).sum())
    return int(reach[-1] - starts[0]) - uncovered_ns, uncovered_ns


def windows(trace: Trace) -> dict[int, Window]:
    """Return the steps of the first rank by row number. A trace without steps counts as one step with row NONE, which begins
    with the first kernel."""
    device, host, rank = trace.device, trace.host, min(trace.ranks)
    own = [row for row, of in enumerate(trace.devices) if of.rank == rank]
    rows = np.flatnonzero(~communication_kernels(trace) & np.isin(device.device, own))
    rows = np.intersect1d(rows, work_rows(trace))
    if not trace.is_replay:  # remove work that was launched before the first step
        launched = device.launch[rows] != NONE
        rows = rows[launched] if 2 * launched.sum() > len(rows) else rows
    waits = waits_for_earlier_work(trace, rank)

    def shown(times_ns: Column) -> Column:
        return np.asarray(times_ns - waits.before(times_ns))

    starts, ends = shown(device.start_ns[rows]), shown(device.end_ns[rows])
    launch = device.launch[rows]
    launched_ns = np.where(launch != NONE, host.start_ns[launch], starts)
    if not len(trace.steps):
        begin = int(starts.min())
        streams = _streams(trace, rows, starts - begin)
        return {NONE: Window(int(ends.max()) - begin, 0, {}, streams, starts - begin, ends - begin)}
    found = {}
    for step, begin, end in zip(range(len(trace.steps)), trace.steps.start_ns, trace.steps.end_ns, strict=True):
        if trace.steps.kind[step] == StepKind.INCOMPLETE or trace.steps.rank[step] != rank:
            continue
        mine = trace.phases.step == step
        phases: dict[str, int] = {}
        phases_ns = shown(trace.phases.end_ns[mine]) - shown(trace.phases.start_ns[mine])
        for name, phase_ns in zip(trace.phases.name[mine], phases_ns, strict=True):
            text = trace.strings.texts[name]
            phases[text] = phases.get(text, 0) + int(phase_ns)
        inside = (launched_ns >= begin) & (launched_ns < end)
        begin_ns, end_ns = shown(np.array([begin, end])).tolist()
        waited_ns, from_begin = int(end - begin) - (end_ns - begin_ns), starts - begin_ns
        streams = _streams(trace, rows[inside], from_begin[inside])
        found[step] = Window(end_ns - begin_ns, waited_ns, phases, streams, from_begin, ends - begin_ns)
    return found


def waits_for_earlier_work(trace: Trace, rank: int) -> Intervals:
    """Return the times at which the host waited for work that was launched before the recording."""
    device, host = trace.device, trace.host
    rows = work_rows(trace)
    earlier = rows[device.launch[rows] == NONE]
    if trace.is_replay or not len(earlier) or 2 * len(earlier) > len(rows):
        return Intervals([], [])
    ended_ns = int(device.end_ns[earlier].max())
    of_rank = [row for row, thread in enumerate(trace.threads) if thread.rank == rank]
    texts = trace.strings.texts
    waits = [i for i, text in enumerate(texts) if "Synchronize" in text or ("emcpy" in text and "Async" not in text)]
    pageable = rows[np.isin(device.name[rows], [i for i, text in enumerate(texts) if "Pageable" in text])]
    calls = np.isin(host.name, waits) | np.isin(np.arange(len(host)), device.launch[pageable])
    calls &= (host.kind == HostKind.RUNTIME) & np.isin(host.thread, of_rank) & (host.start_ns < ended_ns)
    return Intervals(host.start_ns[calls], np.minimum(host.end_ns[calls], ended_ns))


def _streams(trace: Trace, rows: Column, starts_ns: Column) -> list[tuple[Column, Column, Column]]:
    """Return the names, start times and end times of the GPU work in `rows`, separately for each CUDA stream."""
    device = trace.device
    lanes = sorted({(int(d), int(s)) for d, s in zip(device.device[rows], device.stream[rows], strict=True)})
    found = []
    for lane in lanes:
        on = np.flatnonzero((device.device[rows] == lane[0]) & (device.stream[rows] == lane[1]))
        on = on[np.argsort(starts_ns[on], kind="stable")]
        found.append((device.name[rows[on]], starts_ns[on], starts_ns[on] + device.duration_ns[rows[on]]))
    return sorted(found, key=lambda stream: -len(stream[0]))


def same_order(recorded: list[str], replayed: list[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions at which both lists contain the same names in the same order."""
    same = 0
    while same < min(len(recorded), len(replayed)) and recorded[same] == replayed[same]:
        yield same, same
        same += 1
    for block in SequenceMatcher(None, recorded[same:], replayed[same:], autojunk=False).get_matching_blocks():
        yield from ((same + block.a + i, same + block.b + i) for i in range(block.size))


def figures(recorded: Trace, replayed: Trace, report: dict[str, Any], settles: int) -> Figures:
    """Return the results of one run, without the first `settles` steps."""
    truth, played = windows(recorded), windows(replayed)
    if len(played) > settles:
        played = dict(list(played.items())[settles:])
    pairs = [
        (truth[int(replayed.steps.recorded_step[step])] if len(recorded.steps) else truth[NONE], window)
        for step, window in played.items()
        if not len(recorded.steps) or int(replayed.steps.recorded_step[step]) in truth
    ]
    result = Figures(coverage=report["coverage"])
    result.memory = memory_error(report)
    if not pairs:
        return result
    result.step_ns = median(true.duration_ns for true, _ in pairs)
    result.step = median(mine.duration_ns / true.duration_ns - 1 for true, mine in pairs)
    busy_idle = [(true.busy_idle_ns(), mine.busy_idle_ns()) for true, mine in pairs]
    result.busy = median(mine[0] / true[0] - 1 for true, mine in busy_idle if true[0])
    result.idle_ns = median(mine[1] - true[1] for true, mine in busy_idle)
    result.idle = median(mine[1] / true[1] - 1 for true, mine in busy_idle if true[1])
    names = {name for true, mine in pairs for name in (*true.phases, *mine.phases)}
    off = {
        name: median((mine.phases.get(name, 0) - true.phases.get(name, 0)) / true.duration_ns for true, mine in pairs)
        for name in names
    }
    if off:
        result.phase_name = max(off, key=lambda name: abs(off[name]))
        result.phase = off[result.phase_name]
    result.waited_ns = max(true.waited_ns for true, _ in pairs)
    shares, starts_ns, firsts_ns = [], [], []
    for true, mine in pairs:
        matched = total = 0
        both_ns: list[tuple[Column, Column]] = []  # per stream: recorded and replayed start times of work in the same order
        for left, right in zip(true.streams, mine.streams, strict=False):
            texts = [recorded.strings.texts[i] for i in left[0]], [replayed.strings.texts[i] for i in right[0]]
            both = list(same_order(*texts))
            matched += len(both)
            total += max(len(texts[0]), len(texts[1]))
            if both:
                at = np.array(both)
                both_ns.append((left[1][at[:, 0]], right[1][at[:, 1]]))
        if both_ns:
            first = min(both_ns, key=lambda pair: int(pair[0][0]))
            firsts_ns.append(int(first[1][0] - first[0][0]))
            starts_ns += [np.abs(replayed_ns - recorded_ns - firsts_ns[-1]) for recorded_ns, replayed_ns in both_ns]
        unpaired = true.streams[len(mine.streams) :] + mine.streams[len(true.streams) :]
        total += sum(len(stream[0]) for stream in unpaired)
        shares.append(matched / total if total else 1.0)
    result.order = median(shares)
    if starts_ns:
        result.first_ns = median(firsts_ns)
        result.start_median_ns, result.start_p99_ns = np.percentile(np.concatenate(starts_ns), [50, 99]).tolist()
    return result


def memory_error(report: dict[str, Any]) -> float | None:
    """Return the error of the peak of allocated memory on the device with the largest error, or None if no peak was recorded.

    If the recording contains no totals (PyTorch 1.9), compare the rise within a step, because the memory before the recording
    is unknown.
    """
    errors = []
    for device in report["memory"].values():
        of = "peak" if device["recorded_source"] == "recorded" else "step_rise"
        recorded, replayed = device[f"recorded_{of}_bytes"], device[f"replayed_{of}_bytes"]
        if recorded and replayed:
            errors.append(replayed / recorded - 1)
    return max(errors, key=abs, default=None)


def replay(case: Case, trace: Path, steps: int, folder: Path, clock: str = "recorded") -> tuple[Trace, dict[str, Any]]:
    """Replay the program with `trace replay`, and return the timeline and the report."""
    output, report = folder / "replay.msgpack", folder / "report.json"
    options = ["--clock", clock, "-o", str(output), "--report", str(report), *case.options]
    run_replay(*options, str(PROGRAMS / case.program), "--trace", str(trace), "--steps", str(steps), *case.args)
    facts: dict[str, Any] = json.loads(report.read_text())
    return traces.load(output), facts


def medians(runs: list[Figures]) -> Figures:
    result = Figures(phase_name=runs[-1].phase_name, coverage=runs[-1].coverage)
    for column in fields(Figures):
        values = [getattr(run, column.name) for run in runs]
        if column.name not in ("phase_name", "coverage") and None not in values:
            setattr(result, column.name, median(values))
    result.runs = len(runs)
    return result


def percent(value: float | None) -> str:
    return "-" if value is None else f"{round(100 * value, 1) + 0.0:+.1f} %"  # adding 0.0 turns -0.0 into 0.0


def time(value_ns: float | None) -> str:
    if value_ns is None:
        return "-"
    return f"{value_ns / 1e6:.1f} ms" if abs(value_ns) >= 1e6 else f"{round(value_ns / 1e3)} µs"


HEADER = tuple("recording step error phase busy idle order first start p99 memory coverage host runs why".split())


def row(case: Case, found: Figures) -> list[str]:
    coverage = ", ".join(f"{name} {100 * share:.1f}" for name, share in found.coverage.items() if share >= 0.0005)
    idle = "-" if found.idle is None else f"{percent(found.idle)} ({time(found.idle_ns)})"
    waited = f"a wait of {time(found.waited_ns)} for earlier work is taken out of the recorded step" if found.waited_ns else ""
    return [
        case.recording,
        time(found.step_ns),
        percent(found.step),
        f"{found.phase_name} {percent(found.phase)}".strip() if abs(found.phase or 0) >= 0.0005 else percent(found.phase),
        percent(found.busy),
        idle,
        "-" if found.order is None else f"{100 * found.order:.1f} %",
        time(found.first_ns),
        time(found.start_median_ns),
        time(found.start_p99_ns),
        percent(found.memory),
        coverage,
        f"{time(found.host_ns)} ({time(found.host_worst_ns)})",
        str(found.runs),
        "; ".join(filter(None, (waited, case.why))),
    ]


def markdown(rows: list[list[str]]) -> str:
    """Return the page docs/fidelity.md."""
    missing = [case.recording for case in CASES if case.recording not in {cells[0] for cells in rows}]
    lines = [
        "# Accuracy of replays",
        "",
        "Each row of the table compares a recording made on real hardware with a replay of the same program",
        "(`benchmarks/programs`). Because the replays use `--clock recorded`, times do not depend on the speed of the",
        "replaying machine. `python benchmarks/fidelity.py --markdown docs/fidelity.md` writes this page, and the docstring of",
        "the script explains the columns.",
        "",
        "The comparison does not include the following:",
        "",
        "* the first two replayed training steps,",
        "* kernels of collectives,",
        "* all ranks except the first,",
        "* GPU work that was launched before the recording began, and the host's waits for such work",
        "",
        "The column `why` gives the likely reason if a replay differs from its recording. If a reason is not proven,",
        "the column says so.",
        "",
        "A kernel's start time is measured from the start of the step's first kernel. We chose the rules for which steps and",
        "kernels are compared after we knew the results.",
        "",
        "With `--clock virtual`, steps take longer if the machine that runs the replay has a slow CPU. The column `host` shows",
        "the median delay, with the maximum in parentheses. Only the column `host` depends on the speed of the replaying",
        "machine.",
        *([f"Not measured when this page was written: {', '.join(missing)}."] if missing else []),
        "",
        "| " + " | ".join(HEADER) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--only", default="", metavar="TEXT", help="only recordings with this text in their name")
    parser.add_argument("--runs", type=int, default=3, help="runs of each program on each clock; the table shows medians")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    parser.add_argument("--keep", type=Path, help="keep imported recordings, replays and reports in this folder")
    args = parser.parse_args()
    facts: dict[str, dict[str, Any]] = {}
    if args.only and args.json and args.json.exists():
        facts = json.loads(args.json.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        for case in CASES:
            if args.only not in case.recording:
                continue
            folder = (args.keep or Path(temporary)) / case.recording
            folder.mkdir(parents=True, exist_ok=True)
            try:
                found = measured(case, args.traces / f"{case.recording}.json.gz", folder, args.runs)
            except RuntimeError as failure:
                print(f"{case.recording}: {failure}", file=sys.stderr)
                continue
            facts[case.recording] = asdict(found)
            cells = zip(HEADER, row(case, found), strict=True)
            print("  ".join(f"{name} {cell}" for name, cell in cells if cell), flush=True)
            if args.json:
                args.json.write_text(json.dumps(facts, indent=1))
            if args.markdown:
                told = [row(of, Figures(**facts[of.recording])) for of in CASES if of.recording in facts]
                args.markdown.write_text(markdown(told))


def measured(case: Case, recording: Path, folder: Path, runs: int) -> Figures:
    """Import a recording, replay its program, and compare the replay with the recording. Raises RuntimeError where a replay
    fails."""
    trace = folder / f"{case.recording}.msgpack"
    traces.save(traces.read_kineto(recording), trace)
    recorded = traces.load(trace)
    complete = int((recorded.steps.kind != StepKind.INCOMPLETE).sum())
    steps = case.steps or max(complete, 1) + case.settles
    hosts = [replay(case, trace, steps, folder, "virtual")[1]["host"] for _ in range(runs)]
    found = medians([figures(recorded, *replay(case, trace, steps, folder), case.settles) for _ in range(runs)])
    if None not in (lags_ns := [host["lag_ns_per_step"] for host in hosts]):
        found.host_ns = median(lags_ns)
        found.host_worst_ns = max(host["lag_ns_of_worst_step"] for host in hosts)
    return found


if __name__ == "__main__":
    main()
