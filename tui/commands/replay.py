"""Runs a script on a virtual GPU, and compares the times with the recording.

    run(ReplayOptions(["train.py", "--lr", "0.1"], trace="v100.msgpack"))  # the script's exit code
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from replayer.memory.spare_memory import spare_host_bytes
from replayer.prediction.conditions import Conditions, short_gpu_name
from replayer.recording.replicas import require_recording_of_one_gpu
from traces.combining.replayed_ranks import one_replay, timelines_in
from traces.comparison.compare import compare
from traces.comparison.comparison_figures import Comparison
from traces.figures.measure import work_rows
from traces.format.trace_file import save
from traces.library.catalogue import device_named
from traces.model.trace import HostKind, Origin, Trace, TraceError
from traces.script.configuration import ReplayConfig, ReplaySession
from traces.script.launch import ChildResult, run_child
from tui.commands.replay_library import ReplaySource, estimated_text, library_messages, source_of, source_sentences
from tui.errors import line_for
from tui.formatting import counted, wrapped
from tui.memory_sizes import parse_sizes
from tui.options import ReplayOptions
from tui.outputs import require_writable, write_json
from tui.running.narration import ending_text, explain_empty_run, hint_misplaced_option, say
from tui.running.ranks import require_ranks, started_script
from tui.running.replay_progress import reporting_steps
from tui.terminal import is_quiet, is_verbose, terminal_style
from tui.text.diff import diff_text
from tui.text.memory import fit_sentences

if TYPE_CHECKING:  # this module imports torch, which the parent process needs only for estimates
    from replayer.prediction.predict import Prediction

_STOPPED_BY_USER = {128 + signal.SIGINT, 128 + signal.SIGTERM}
_SLOW = re.compile(r"rank=(\d+):(\d+(?:\.\d+)?)")


def run(replay: ReplayOptions) -> int:
    config = ReplayConfig(
        replay.loader, replay.strict, replay.values, replay.clock, replay.speed, replay.gpus or 0, replay.link_gbps,
        slow_ranks=_slow_ranks(replay.slow, replay.ranks),
    )  # fmt: skip
    gpu = replay.on_gpu and device_named(replay.on_gpu)
    conditions = Conditions(gpu, link_gbps=replay.link_gbps, host_speed=replay.host_speed)
    source = source_of(replay.trace, replay.gpu, estimate=replay.estimate, strict=replay.strict, gpus=replay.gpus or 0)
    recorded, replay = source.recorded, replace(replay, trace=source.name)
    prediction = None
    if replay.on_gpu or replay.host_speed != 1:
        if source.gpu is not None:
            raise TraceError("`--on-gpu` and `--host-speed` cannot be combined with `--gpu`; use `--trace` with a recording")
        from replayer.prediction.predict import predict

        prediction = predict(recorded, conditions, strict=replay.strict)
    require_ranks(replay.ranks, spare_host_bytes(), replay.script, replay.gpus or 0)
    require_writable(replay.output)
    require_writable(replay.report)
    config = config_for(recorded, config, replay.gpu_memory)
    with tempfile.TemporaryDirectory(prefix="trace-replay-") as out:
        played = source
        if prediction is not None:
            played = ReplaySource(Path(replay.trace).stem + "-predicted", prediction.trace)
        session = ReplaySession(played.file_in(Path(out)), Path(out), os.getpid(), replay.view, config, source.choice)
        result = _run(replay, {"replayer": session}, recorded, Path(out))
        try:
            _conclude(replay, source, result, Path(out), prediction)
        except (TraceError, OSError) as error:
            # `trace replay` exits with the script's exit code. If the script succeeds but the timeline cannot be saved, the
            # exit code is 2.
            say(line_for(error) or str(error), is_error=True)
            return result.returncode or 2
    hint_misplaced_option(replay.script, refused=result.returncode == 2)
    return result.returncode


def _run(replay: ReplayOptions, options_of_package: dict[str, object], recorded: Trace, out: Path) -> ChildResult:
    if replay.view:
        from tui.commands.replay_view import can_view, run_with_view  # imports textual

        if can_view():
            return run_with_view(options_of_package, replay.script, replay.ranks, recorded, replay.trace, out)
        say("--view needs a terminal; replaying without it")
    with reporting_steps(out, replay.script, recorded) as meanwhile:
        return run_child(options_of_package, replay.script, ranks=replay.ranks, meanwhile=meanwhile)


def _slow_ranks(text: str, nproc: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(",") if text else []:
        match = _SLOW.fullmatch(part.strip())
        if match is None or not float(match[2]):
            raise TraceError(f"--slow {part.strip()}: write rank=NUMBER:FACTOR, such as rank=3:1.2")
        if nproc and int(match[1]) >= nproc:
            raise TraceError(f"--slow names rank {int(match[1])}, but --nproc {nproc} has only ranks 0 to {nproc - 1}")
        found[str(int(match[1]))] = float(match[2])
    return found


def config_for(recorded: Trace, config: ReplayConfig, memory: str) -> ReplayConfig:
    """Return the configuration of a replay. Raise TraceError if `--gpus` or `--gpu-memory` does not fit the recording's number
    of GPUs."""
    gpus = sum(device.rank == min(recorded.ranks) for device in recorded.devices)  # number of GPUs in one process
    require_recording_of_one_gpu(config.gpus, gpus, bool(len(work_rows(recorded))))
    loader = "recorded" if config.clock == "recorded" else config.loader
    return replace(config, loader=loader, gpu_memory_bytes=_gpu_memory(memory, config.gpus or gpus))


def _gpu_memory(text: str, devices: int) -> tuple[int, ...]:
    given = tuple(parse_sizes(text)) if text else ()
    if len(given) > 1 and len(given) != devices:
        raise TraceError(f"--gpu-memory has {len(given)} sizes for {devices} GPUs; give one size, or one per GPU")
    return given


def _did_gpu_work(replayed: Trace) -> bool:
    own = replayed.device.take(work_rows(replayed)).origin != Origin.PHASE
    return bool(own.any() or (replayed.host.kind == HostKind.OP).any())


def _conclude(
    replay: ReplayOptions, source: ReplaySource, result: ChildResult, out: Path, prediction: Prediction | None
) -> None:
    processes = timelines_in(out)
    if not processes:
        explain_empty_run(result, "replayed", "did not use the GPU")
        return
    require_whole_timeline(processes, result)
    replayed, notes = one_replay(processes, result.pid)
    for note in (*notes, *library_messages(replayed)):
        say(note)
    source = source.compared_with(replayed)
    if source.gpu is not None:
        for sentence in source_sentences(replayed):
            say(sentence)
    if prediction is not None:
        from replayer.prediction.predict import as_estimated

        replayed = as_estimated(replayed, prediction)
        say(_estimate_sentence(prediction))
    comparison = compare(source.recorded, replayed)
    if result.returncode:
        comparison = comparison.without_an_end()
    try:
        _keep(replay, replayed, comparison)
    except (TraceError, OSError):  # print the result even if it could not be saved
        _print_result(replace(replay, output=None), source, result, replayed, comparison)
        raise
    _print_result(replay, source, result, replayed, comparison)


def require_whole_timeline(timelines: Mapping[int, Trace], result: ChildResult) -> None:
    """Raise TraceError if the script ended normally, but its timeline is incomplete, for example because the disk is full. The
    child process has printed the reason."""
    main = timelines.get(result.pid)
    if main is not None and not result.returncode and "truncated-file" in main.problems:
        raise TraceError("nothing was saved, because the replay's timeline is incomplete")


def _estimate_sentence(prediction: Prediction) -> str:
    from tui.text.predict import error_words, origins_text

    gpu = f" on {short_gpu_name(prediction.device)}" if prediction.conditions.gpu else ""
    host = f" with a host {prediction.conditions.host_speed:g} times as fast" if prediction.conditions.host_speed != 1 else ""
    return f"ESTIMATE{gpu}{host}, not recorded: {error_words(prediction)}; GPU time from {origins_text(prediction)}"


def _keep(replay: ReplayOptions, replayed: Trace, comparison: Comparison) -> None:
    try:
        if replay.output is not None:
            save(replayed, replay.output)
    finally:
        if replay.report is not None:
            write_json(replay.report, comparison.facts())


def _print_result(
    replay: ReplayOptions, source: ReplaySource, result: ChildResult, replayed: Trace, comparison: Comparison
) -> None:
    if result.returncode:
        is_error = result.ending == 1 and bool(result.failed)  # Python has printed the error
        if not is_error:
            say(f"{ending_text(result.ending)}, after {counted(len(replayed.steps), 'step')}.")
        for sentence in fit_sentences(comparison.memory):
            say(sentence, is_error=True)
        if is_error or (result.ending > 128 and result.ending not in _STOPPED_BY_USER):
            return
    if not _did_gpu_work(replayed):
        explain_empty_run(result, "replayed", "did no work on the GPU")
        return
    hint = _next_step(replay, source.path)
    if source.is_estimate and not is_quiet():
        lines = f"{estimated_text(replayed, comparison)}\nNext: {hint}".splitlines()
        width = terminal_style(sys.stderr)["width"]
        print("\n".join(part for line in lines for part in wrapped(line, width, hanging="  ")), file=sys.stderr)
    elif not is_quiet():
        text = diff_text(
            comparison,
            replay.trace,
            _script_name(replay),
            details=replay.details or is_verbose(),
            next_step=hint,
            **terminal_style(sys.stderr),
        )
        print(text, file=sys.stderr)


def _script_name(replay: ReplayOptions) -> str:
    first, *more = started_script(replay.script)
    return f"this replay of {shlex.join([first, *more[:1]]) if first == '-m' else Path(first).name}"


def _next_step(replay: ReplayOptions, recording: Path | None) -> str:
    if recording is None:  # there is no recording to compare the replay with
        if replay.output is None:
            return "-o REPLAY.msgpack saves the timeline for trace info, view and report"
        return f"trace info {shlex.quote(str(replay.output))}, or trace view {shlex.quote(str(replay.output))}"
    if replay.output is None:
        return "trace replay --details shows more; -o REPLAY.msgpack saves the timeline for trace diff, view and report"
    names = shlex.join([replay.trace, str(replay.output)])
    return f"trace diff {names} --details, or trace view {names}"
