"""What `trace record` says at its end: what was recorded, at what cost, what it lacks, and what to type next.

for line in record_lines(trace, Path("train.msgpack"), ["train.py"]): print(line)
"""

from __future__ import annotations

import shlex
from pathlib import Path

from traces.model import DeviceKind, StepKind, Trace
from traces.problems import Severity, problems_of
from traces.run import Run
from tui.figures import count_text, counted, size_text, time_text

_KINDS = (
    (StepKind.WARMUP, "warm-up"),
    (StepKind.STEADY, "clean"),
    (StepKind.PROFILED, "profiled"),
    (StepKind.EVALUATION, "evaluation"),
)


def record_lines(trace: Trace, output: Path, script: list[str]) -> list[str]:
    """The lines, without the name of the command before them."""
    name = shlex.quote(str(output))
    what = Path(script[0]).name if not script[0].startswith("-m") else shlex.join(script[:2])
    ranks = f", {len(trace.ranks)} ranks" if len(trace.ranks) > 1 else ""
    lines = [f"wrote {output} ({size_text(output.stat().st_size)}): {_steps(trace)} of {what}{ranks}"]
    run = trace.run_of(trace.ranks[0])
    lines += _cost(run)
    if not trace.devices:
        lines.append("there is no device time in it: the script used no GPU here")
    elif run.profiler.failed is not None:
        lines.append(f"there are no kernels in it: {run.profiler.failed}")
    problems = problems_of(trace.problems, int((trace.device.kind == DeviceKind.KERNEL).sum()))
    lines += [problem.text for problem in problems if problem.severity >= Severity.WARNING]
    replay = f", or trace replay {shlex.join(script)} --trace {name}" if trace.devices else ""
    return [*lines, f"next: trace info {name}{replay}"]


def _steps(trace: Trace) -> str:
    counts = {word: int((trace.steps.kind == kind).sum()) for kind, word in _KINDS}
    told = ", ".join(f"{count_text(count)} {word}" for word, count in counts.items() if count)
    return f"{counted(len(trace.steps), 'step')} ({told})" if told else "no whole step"


def _cost(run: Run) -> list[str]:
    share = run.recorder.overhead_share if run.recorder is not None else 0.0
    own = f"the recorder itself takes {100 * share:.2f} % of a step"
    clean = run.clean
    if clean is None:
        return [own]
    profiled = time_text(clean.profiled_step_median_ns)
    slowdown = f"a clean step takes {time_text(clean.step_median_ns)}, a profiled one {profiled}"
    if run.host_scale:
        factors = ", ".join(f"{scale:.2f} ({name})" for name, scale in run.host_scale.items())
        slowdown += f"; profiled host times are scaled by {factors}"
    return [slowdown, own]
