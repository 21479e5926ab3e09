"""Converts a JSON file of torch.profiler into a trace file.

    $ trace import worker0.pt.trace.json.gz -o v100.msgpack
    trace: 8772 kernels, 324 copies, 32124 host ops, 12838 memory events, 6 steps on Tesla V100-DGXS-32GB
    trace: wrote v100.msgpack; next: trace info v100.msgpack, or trace replay SCRIPT --trace v100.msgpack
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from traces.figures.problems import problems_of
from traces.figures.summary import Summary, summarize
from traces.format.trace_file import save
from traces.kineto import read_kineto
from traces.model.json_facts import extended
from traces.model.trace import TraceError
from tui.formatting import counted
from tui.outputs import json_text, require_writable
from tui.running.narration import say
from tui.running.progress import working

# endings of archives and profiler files, such as worker0.pt.trace.json.gz
_ENDINGS = (".zip", ".tgz", ".gz", ".tar", ".json", ".trace", ".pt")


@dataclass(frozen=True, slots=True)
class ImportFacts(Summary):
    """Summarizes the imported trace, and contains the path of the trace file."""

    output: str


def run(recording: Path, output: Path | None, json: bool) -> int:
    target = output or Path(default_name(recording))
    if target.exists() and recording.exists() and target.samefile(recording):
        raise TraceError(f"{target}: would overwrite the recording itself; give another file with -o")
    if output is None and target.exists():
        raise TraceError(f"{target} already exists; give -o {target} to replace it, or -o with another file name")
    require_writable(target)
    with working(f"reading {recording}"):
        trace = read_kineto(recording)
    with working(f"writing {target}"):
        save(trace, target)
    summary = summarize(trace)
    if json:
        print(json_text(extended(ImportFacts, summary, output=str(target))))
        return 0
    say(_contents(summary))
    for problem in problems_of(trace.problems, summary.counts.kernels):
        say(problem.text)
    for name, reason in trace.provenance.get("skipped_files", {}).items():
        say(f"skipped {name}: {reason}")
    name = shlex.quote(str(target))
    hint = f"trace info {name}"
    if summary.counts.kernels:
        hint += f", or trace replay SCRIPT --trace {name}"
    say(f"wrote {target}; next: {hint}")
    return 0


def default_name(recording: Path) -> str:
    """Return the default output file, such as "train.msgpack" for "train.pt.trace.json.gz"."""
    name = recording.resolve().name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return (name or "trace") + ".msgpack"


def _contents(summary: Summary) -> str:
    figures = asdict(summary.counts)
    steps, ranks = figures.pop("steps"), len(summary.ranks)
    singular = {"kernels": "kernel", "copies": "copy", "host_ops": "host op", "memory_events": "memory event"}
    counts = ", ".join(f"{count} {singular[what] if count == 1 else what.replace('_', ' ')}" for what, count in figures.items())
    several = f" of {ranks} ranks" if ranks > 1 else ""
    return f"{counts}, {counted(steps, 'step')}{several} on {summary.gpu_names}"
