"""Formats the messages that `trace record` prints when the script has ended.

    for line in record_lines(trace, Path("train.msgpack"), ["train.py"]): print(line)
"""

from __future__ import annotations

import shlex
from pathlib import Path

from traces.figures.problems import Severity, problems_of
from traces.figures.spread import median
from traces.model.run import RecorderNotes, Run
from traces.model.trace import NONE, DeviceKind, StepKind, Trace, Untimed
from traces.script.configuration import RecordConfig
from tui.formatting import count_text, counted, size_text, time_text
from tui.running.kernel_access import why_no_kernels
from tui.running.ranks import started_script

_KINDS = (
    (StepKind.WARMUP, "warm-up"),
    (StepKind.STEADY, "clean"),
    (StepKind.PROFILED, "profiled"),
    (StepKind.AFTER_PROFILE, "after the profile"),
    (StepKind.EVALUATION, "evaluation"),
)

_UNTIMED = (
    (Untimed.CAPTURE, "a CUDA graph was being captured, which allows no timing events"),
    (Untimed.PROFILE, "the script ran its own profiler"),
    (Untimed.DEVICE_LOST, "the device had not finished them when the script ended"),
)


_LOST_KERNELS = "The profiler did not report them. Record again, and if this repeats, profile fewer steps (--profiled-steps)."


def record_lines(trace: Trace, output: Path, script: list[str]) -> list[str]:
    name = shlex.quote(str(output))
    what = shlex.join(of[:2]) if (of := started_script(script))[0].startswith("-m") else Path(of[0]).name
    ranks = f", {len(trace.ranks)} ranks" if len(trace.ranks) > 1 else ""
    lines = [f"wrote {output} ({size_text(output.stat().st_size)}): {_steps(trace)} of {what}{ranks}"]
    lines += _cost(trace, trace.run_of(trace.ranks[0]))
    lines += lack_lines(trace)
    problems = problems_of(trace.problems, int((trace.device.kind == DeviceKind.KERNEL).sum()))
    for problem in problems:
        if problem.severity >= Severity.WARNING:
            lines.append(f"{problem.text} {_LOST_KERNELS}" if problem.kind == "lost-kernel" else problem.text)
    replay = f", or trace replay {shlex.join(script)} --trace {name}" if trace.devices else ""
    return [*lines, f"next: trace info {name}{replay}"]


def lack_lines(trace: Trace, *, has_failed: bool = False) -> list[str]:
    has_times = bool((trace.phases.device != NONE).any()) or len(trace.device) > 0
    if not trace.devices or (len(trace.steps) and not (has_times or trace.steps.untimed.any())):
        return ["no device times: the script used no GPU on this machine"]
    run = trace.run_of(trace.ranks[0])
    lines = []
    if run.profiler.failed is not None:
        lines.append(f"no kernels were recorded: {run.profiler.failed}")
    elif run.profiler.steps and not (trace.device.kind == DeviceKind.KERNEL).any():
        obstacle = why_no_kernels(run.profiler.warnings)
        lines.append(f"no kernels were recorded: {obstacle.reason}; {obstacle.remedy}")
    elif not (has_failed or run.profiler.steps) and run.recorder is not None and run.recorder.config is not None:
        lines += _ended_too_early(trace, run.recorder.config)
    lost = run.recorder.device_lost if run.recorder is not None else ""
    for untimed, reason in _UNTIMED:
        steps = trace.steps.number[trace.steps.untimed == untimed]
        if len(steps):
            reason = lost if untimed == Untimed.DEVICE_LOST and lost else reason
            first = f", starting with step {int(steps[0])}" if untimed == Untimed.DEVICE_LOST else ""
            have = "has" if len(steps) == 1 else "have"
            lines.append(f"{counted(len(steps), 'step')} {have} no device times{first}: {reason}")
    return lines


def _ended_too_early(trace: Trace, config: RecordConfig) -> list[str]:
    """Return a line if the script ended before the first profiled step."""
    is_training = trace.steps.kind != StepKind.EVALUATION
    word, ran = ("training", int(is_training.sum())) if is_training.any() else ("evaluation", len(trace.steps))
    first = config.warmup + config.clean + 2  # `+ 2`, because torch.profiler starts in the step before the first profiled step
    if config.grain != "kernel" or not 0 < ran < first:
        return []
    return [
        f"no kernels were recorded: the script ran {counted(ran, f'{word} step')}, but the first profiled step is step {first};"
        f" run more steps, or reduce --clean-steps ({config.clean}) and --warmup ({config.warmup})"
    ]


def _steps(trace: Trace) -> str:
    counts = {word: int((trace.steps.kind == kind).sum()) for kind, word in _KINDS}
    listed = ", ".join(f"{count_text(count)} {word}" for word, count in counts.items() if count)
    return f"{counted(len(trace.steps), 'step')} ({listed})" if listed else "no complete step"


def _cost(trace: Trace, run: Run) -> list[str]:
    notes = run.recorder or RecorderNotes()
    once = f", and {time_text(notes.set_up_ns)} once" if notes.set_up_ns else ""
    own = f"recording overhead: {100 * notes.overhead_share:.2f} % of step time{once}"
    clean = run.clean
    if clean is None:
        return [own]
    profiled = time_text(clean.profiled_step_median_ns)
    slowdown = f"the host takes {time_text(clean.step_median_ns)} for a clean step, {profiled} for a profiled one"
    after = trace.steps.duration_ns[trace.steps.kind == StepKind.AFTER_PROFILE]
    if (after_ns := median(after)) is not None:
        slowdown += f", and {time_text(after_ns)} for one after the profile"
    if (cost := run.profiler_cost) is not None and cost.op_ns:
        slowdown += f"; torch.profiler added {time_text(cost.op_ns)} per op and {time_text(cost.launch_ns)} per launch"
    return [slowdown, own]
