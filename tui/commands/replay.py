"""`trace replay`: the parent's side. Runs the script in a child with the virtual GPU, then says how near the pace came.

    replay = Replay(script=["train.py", "--lr", "0.1"], trace="v100.msgpack")
    run(replay, option_names={"--trace": True, "--report": True})  # the script's exit code

The child's side is `replayer.child`. It writes a timeline per process that used the GPU into a folder of ours.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from replayer.recording.replicas import require_kernels_of_one
from traces.comparison import compare
from traces.configuration import ReplayConfig, ReplaySession
from traces.file import load, save
from traces.launch import ChildResult, run_child
from traces.measure import work_rows
from traces.model import HostKind, Origin, Trace, TraceError
from traces.order import in_order
from traces.replayed import one_replay
from tui.errors import line_for
from tui.figures import counted
from tui.narration import ending_text, explain_empty_run, hint_misplaced_option, say
from tui.outputs import require_place_for, write_json
from tui.print_diff import diff_text
from tui.print_memory import memory_sentences
from tui.sizes import sizes
from tui.terminal import look
from tui.trace_names import find_trace


@dataclass(frozen=True)
class Replay:
    """What to run (the words that would follow `python`), on which trace, how, and what to keep."""

    script: list[str]
    trace: str
    config: ReplayConfig = field(default_factory=ReplayConfig)
    gpu_memory: str = ""  # sizes as a person writes them
    nproc: int = 0  # ranks to run the script as; 0: as it is
    view: bool = False
    output: Path | None = None
    report: Path | None = None


def run(replay: Replay, option_names: Collection[str]) -> int:
    path = find_trace(replay.trace).resolve()
    recorded = load(path)
    _require_device_time(recorded, path)
    require_place_for(replay.output)
    require_place_for(replay.report)
    config, recorded_gpus = replay.config, _device_count(recorded)
    require_kernels_of_one(config.gpus, recorded_gpus, bool(len(work_rows(recorded))))
    config = replace(config, gpu_memory_bytes=_gpu_memory(replay.gpu_memory, config.gpus or recorded_gpus))
    if config.clock == "recorded":  # where this machine's time does not count, waits for data are the recorded ones
        config = replace(config, loader="recorded")
    with tempfile.TemporaryDirectory(prefix="trace-replay-") as out:
        session = ReplaySession(path, Path(out), os.getpid(), replay.view, config)
        result = _run(replay, {"replayer": session}, recorded, Path(out))
        try:
            _conclude(replay, recorded, result, Path(out))
        except (TraceError, OSError) as error:
            # The exit code is the script's; only a run that went well must not hide that its result was lost.
            say(line_for(error) or str(error))
            return result.returncode or 2
    if result.returncode == 2:
        hint_misplaced_option(replay.script, option_names, "replay")
    return result.returncode


def _run(replay: Replay, rooms: dict[str, object], recorded: Trace, out: Path) -> ChildResult:
    if replay.view:
        from tui.commands.replay_view import can_view, run_with_view  # textual: only who looks needs it

        if can_view():
            return run_with_view(rooms, _words(replay), replay.nproc, recorded, replay.trace, out)
        say("--view needs a terminal; replaying without it")
    return run_child(rooms, _words(replay), ranks=replay.nproc)


def _words(replay: Replay) -> list[str]:
    """What follows `python`: the script, or the module behind `torchrun`."""
    if replay.script[0] == "torchrun" and not Path("torchrun").exists():
        return ["-m", "torch.distributed.run", *replay.script[1:]]
    return replay.script


def _device_count(recorded: Trace) -> int:
    """How many GPUs a script was recorded on."""
    return sum(device.rank == min(recorded.ranks) for device in recorded.devices)


def _gpu_memory(text: str, devices: int) -> tuple[int, ...]:
    """The sizes that --gpu-memory gives: none, one for all devices, or one for each."""
    given = tuple(sizes(text)) if text else ()
    if len(given) > 1 and len(given) != devices:
        raise TraceError(f"--gpu-memory gives {len(given)} sizes for {devices} devices; give one size for all")
    return given


def _require_device_time(recorded: Trace, path: Path) -> None:
    if not _has_device_time(recorded):
        raise TraceError(f"{path}: holds no GPU work, so there is no pace to replay; record with CUDA activities on")


def _has_device_time(trace: Trace) -> bool:
    return bool(len(work_rows(trace)) or (trace.phases.device_end_ns >= 0).any())


def _did_gpu_work(replayed: Trace) -> bool:
    """Whether the script itself launched anything: what a phase was recorded to take is no work of a script that did none."""
    own = replayed.device.take(work_rows(replayed)).origin != Origin.PHASE
    return bool(own.any() or (replayed.host.kind == HostKind.OP).any())


def _conclude(replay: Replay, recorded: Trace, result: ChildResult, out: Path) -> None:
    timelines = sorted(out.glob("replay-*.msgpack"), key=lambda file: file.stat().st_size, reverse=True)
    if not timelines:
        explain_empty_run(result, "replayed", "did not use the GPU")
        return
    processes = {int(timeline.stem.removeprefix("replay-")): in_order(load(timeline, is_ours=True)) for timeline in timelines}
    replayed, notes = one_replay(processes, result.pid)
    for note in notes:
        say(note)
    if replay.output is not None:
        save(replayed, replay.output)
    comparison = compare(recorded, replayed)
    if result.returncode:
        comparison = comparison.without_an_end()
    if replay.report is not None:
        write_json(replay.report, comparison.to_json())
    if result.returncode:
        fitted = " ".join(memory_sentences(comparison.memory))
        say(f"{ending_text(result.returncode)}, after {counted(len(replayed.steps), 'step')}: not compared. {fitted}".rstrip())
        return
    if not _did_gpu_work(replayed):
        explain_empty_run(result, "replayed", "did no work on the GPU")
        return
    print(diff_text(comparison, replay.trace, "this replay", **look(sys.stderr)), file=sys.stderr)
