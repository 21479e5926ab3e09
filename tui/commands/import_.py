"""Converts a JSON file of torch.profiler into a trace file.

    $ trace import worker0.pt.trace.json.gz -o v100.msgpack
    trace: 8772 kernels, 324 copies, 32124 host ops, 12838 memory events, 6 steps on Tesla V100-DGXS-32GB
    trace: wrote v100.msgpack; next: trace info v100.msgpack, or trace replay SCRIPT --trace v100.msgpack
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from traces.figures.measure import Counts, counts_of, gpu_names
from traces.figures.problems import problems_of
from traces.format.trace_file import save
from traces.kineto import read_kineto
from traces.model.trace import Trace, TraceError
from tui.formatting import counted
from tui.outputs import require_writable
from tui.running.narration import say
from tui.running.progress import working

# endings of archives and profiler files, such as worker0.pt.trace.json.gz
_ENDINGS = (".zip", ".tgz", ".gz", ".tar", ".json", ".trace", ".pt")


def run(recordings: list[Path], output: Path | None, json: bool) -> int:
    target = output or Path(default_name(recordings[0]))
    if target.exists() and any(recording.exists() and target.samefile(recording) for recording in recordings):
        raise TraceError(f"{target} is the recording itself; give another output file with `-o`")
    if output is None and target.exists():
        raise TraceError(f"{target} already exists; replace it with `-o {target}`, or give another file name with `-o`")
    require_writable(target)
    read = str(recordings[0]) if len(recordings) == 1 else counted(len(recordings), "file")
    with working(f"reading {read}"):
        trace = read_kineto(*recordings)
    if not any(map(len, (trace.phases, trace.host, trace.device, trace.memory))):
        raise TraceError(
            f"no ops, kernels or memory events in {read}. torch.profiler writes such a file if it stops before the first"
            " active step of its schedule"
        )
    with working(f"writing {target}"):
        save(trace, target)
    if json:
        from tui.text.info import import_json  # imported here because it imports the analyses, which are not needed otherwise

        print(import_json(trace, target))
        return 0
    counts = counts_of(trace)
    say(_contents(trace, counts))
    for problem in problems_of(trace.problems, counts.kernels):
        say(problem.text)
    for name, reason in trace.provenance.get("skipped_files", {}).items():
        say(f"skipped {name}: {reason}")
    name = shlex.quote(str(target))
    hint = f"trace info {name}"
    if counts.kernels:
        hint += f", or trace replay SCRIPT --trace {name}"
    say(f"wrote {target}; next: {hint}")
    return 0


def default_name(recording: Path) -> str:
    name = recording.resolve().name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return (name or "trace") + ".msgpack"


def _contents(trace: Trace, totals: Counts) -> str:
    figures = asdict(totals)
    steps, ranks = figures.pop("steps"), len(trace.ranks)
    singular = {"kernels": "kernel", "copies": "copy", "host_ops": "host op", "memory_events": "memory event"}
    counts = ", ".join(f"{count} {singular[what] if count == 1 else what.replace('_', ' ')}" for what, count in figures.items())
    several = f" of {ranks} ranks" if ranks > 1 else ""
    return f"{counts}, {counted(steps, 'step')}{several} on {gpu_names(device.name for device in trace.devices)}"
