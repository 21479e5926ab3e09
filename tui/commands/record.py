"""Records a training script in a child process.

    $ trace record train.py --epochs 1
    trace: wrote train.msgpack (212.4 KiB): 40 steps (3 warm-up, 32 clean, 5 profiled) of train.py
    trace: the host takes 135.2 ms for a clean step, 139.8 ms for a profiled one
    trace: recording overhead: 0.03 % of step time
    trace: next: trace info train.msgpack, or trace replay train.py --trace train.msgpack

Each process writes a file, and `trace record` merges them at the end. If `trace record` is killed, partial files such as
train.msgpack.<pid>.part remain.
"""

from __future__ import annotations

import glob
import os
import signal
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from traces.analyses.python_functions import without_folders
from traces.combining.merge import merge_ranks, with_profile
from traces.combining.profiler_cycles import joined_cycles
from traces.combining.replayed_ranks import process_of_each_rank, with_work
from traces.format.trace_file import load, save
from traces.kineto import read_kineto
from traces.kineto.spans.python_calls import without_short_calls
from traces.model.row_order import in_order
from traces.model.run import RecorderNotes, Run
from traces.model.trace import NONE, Trace, TraceError
from traces.script.configuration import RecordConfig, RecordSession, ReplayConfig, ReplaySession
from traces.script.deferred_signals import deferred_signals
from traces.script.launch import ChildResult, run_child
from tui.errors import line_for
from tui.formatting import counted
from tui.options import RecordOptions
from tui.outputs import require_writable
from tui.running.narration import ending_text, explain_empty_run, hint_misplaced_option, say
from tui.running.progress import working
from tui.running.ranks import started_script
from tui.text.record import lack_lines, record_lines
from tui.trace_names import load_replayable


@dataclass(frozen=True)
class _ProcessFiles:
    path: Path
    pid: int
    profiles: tuple[Path, ...]  # profiles in chronological order


def run(record: RecordOptions, *, stderr: int | None = None, is_brief: bool = False) -> int:
    output = record.output or Path(default_name(record.script))
    require_writable(output)
    before = {part.path for part in _parts(output)}  # keep the files of an earlier run that was killed
    config = RecordConfig(record.grain, record.warmup, record.clean_steps, record.profiled_steps, record.stacks)
    session = RecordSession(output.absolute(), config)
    with tempfile.TemporaryDirectory(prefix="trace-record-") as folder:
        result = run_child({**_virtual_gpu(record, Path(folder)), "tracer": session}, record.script, stderr=stderr)
    parts = [part for part in _parts(output) if part.path not in before]
    # `trace record` exits with the script's exit code. If the script succeeds but the recording cannot be saved, the exit code
    # is 2.
    try:
        _conclude(record, output, parts, result, is_brief)
    except (TraceError, OSError) as error:
        say(line_for(error) or str(error), is_error=True)
        _say_kept(output, parts)
        return result.returncode or 2
    except KeyboardInterrupt:  # this is the second Ctrl-C, because the first one has ended the script
        is_written = bool(parts) and not any(part.path.exists() for part in parts)
        say(f"wrote {output}" if is_written else f"interrupted before {output} was written")
        _say_kept(output, parts)
        return result.returncode or 128 + signal.SIGINT
    hint_misplaced_option(record.script, refused=result.returncode == 2)
    return result.returncode


def _say_kept(output: Path, parts: list[_ProcessFiles]) -> None:
    kept = [str(output.with_name(part.path.name)) for part in parts if part.path.exists()]
    if kept:
        say(f"the recording is kept in {', '.join(kept)}", is_error=True)


def default_name(script: list[str]) -> str:
    script = started_script(script)
    if script[0].startswith("-m"):
        return (script[0][2:] or script[1]).rpartition(".")[2] + ".msgpack"
    return (Path(script[0]).stem.removeprefix("-c") or "trace") + ".msgpack"


def _virtual_gpu(record: RecordOptions, folder: Path) -> dict[str, object]:
    if record.on is None:
        return {}
    config = ReplayConfig(clock="recorded", loader="recorded")  # use the recorded host times instead of this machine's times
    path, _ = load_replayable(record.on)  # raises an error before the script runs if the trace is unusable
    return {"replayer": ReplaySession(path, folder, os.getpid(), config=config)}


def _parts(output: Path) -> list[_ProcessFiles]:
    parts = []
    for path in sorted(output.absolute().parent.glob(f"{glob.escape(output.name)}.*.part")):
        pid = path.name.removeprefix(output.name + ".").partition(".")[0]
        if pid.isdigit():
            profiles = path.parent.glob(f"{glob.escape(path.stem)}.profile*.json")
            in_order_of_time = sorted(profiles, key=lambda file: (len(file.name), file.name))
            parts.append(_ProcessFiles(path, int(pid), tuple(in_order_of_time)))
    return parts


def _conclude(record: RecordOptions, output: Path, parts: list[_ProcessFiles], result: ChildResult, is_brief: bool) -> None:
    if not parts:
        explain_empty_run(result, "recorded", "did not train, load a batch or call a module")
        return
    with working(f"writing {output}"):
        recordings = dict(enumerate(map(_whole, parts)))  # use the file's index as key, because os.execv keeps the process id
        of_script = [number for number, part in enumerate(parts) if part.pid == result.pid]
        main = max(of_script, key=lambda number: len(recordings[number].steps), default=NONE)
        by_rank = process_of_each_rank(recordings, main)
        if len(by_rank) < (worked := len(with_work(recordings))):
            ranks = f"{len(by_rank)} ranks" if len(by_rank) > 1 else "1 rank"
            say(f"{worked} processes were recorded as {ranks}; the longest recording of each rank is kept")
        trace = merge_ranks([recordings[number] for number in by_rank.values()])
        if record.on is not None:  # the result must contain the name of the recording that provided the times
            trace.runs = {rank: _on_virtual_gpu(run, Path(record.on).stem) for rank, run in trace.runs.items()}
        with deferred_signals():  # otherwise, after a signal, both the partial files and the merged file could remain
            save(trace, output)
            for part in parts:
                part.path.unlink()
                # On a full disk, the profiler leaves a file `.json.tmp`.
                for profile in part.path.parent.glob(f"{glob.escape(part.path.stem)}.profile*.json*"):
                    profile.unlink(missing_ok=True)
    if is_brief:
        return
    lines = record_lines(trace, output, record.script)
    if result.returncode:  # after a failed run, print only what was written and what is missing
        lines = [lines[0], *(lack_lines(trace, has_failed=True) if trace.devices else ())]
        if result.ending > 128:  # a killed script prints no error
            lines.insert(0, f"{ending_text(result.ending)}, after {counted(len(trace.steps), 'step')}.")
    for line in lines:
        say(line)


def _on_virtual_gpu(run: Run, recording: str) -> Run:
    return replace(run, recorder=replace(run.recorder or RecorderNotes(), virtual_gpu=recording))


def _of_killed_script(recording: Trace) -> Trace:
    """If a recording has no end, report that the script was killed."""
    problems = dict(recording.problems)
    if not problems.pop("truncated-file", 0):
        return recording
    return replace(recording, problems=problems | {"killed-script": 1}, lacks=[*recording.lacks[:-1], "the end of the script"])


def _whole(part: _ProcessFiles) -> Trace:
    recording = merge_ranks([in_order(_of_killed_script(load(part.path, is_ours=True)))])
    profiles = list[Trace]()
    for path in part.profiles:
        try:
            profiles.append(without_folders(without_short_calls(read_kineto(path, marks_are_steps=True))))
        except TraceError:  # the file is incomplete, because the process ended or the disk was full
            recording.problems["unreadable-profile"] = recording.problems.get("unreadable-profile", 0) + 1
    if not profiles:
        return recording
    numbers = recording.run_of(recording.ranks[0]).profiler.steps
    return with_profile(recording, joined_cycles(profiles) if len(profiles) > 1 else profiles[0], numbers)
