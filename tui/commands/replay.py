"""`trace replay`: the parent's side. Runs the script in a child with the virtual GPU, then says how near the pace came.

    replay = Replay(script=["train.py", "--lr", "0.1"], trace="v100.msgpack")
    run(replay, option_names={"--trace": True, "--report": True})  # the script's exit code

The child's side is `replayer.child`. It writes a timeline per process that used the GPU into a folder of ours.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from traces.compare import compare
from traces.file import load, save
from traces.launch import ChildResult, run_child
from traces.library import find
from traces.measure import work_rows
from traces.model import Trace, TraceError
from traces.order import in_order
from tui.errors import line_for
from tui.outputs import require_place_for, write_json
from tui.print_diff import diff_text
from tui.terminal import look


@dataclass(frozen=True)
class Replay:
    """What to run (the words that would follow `python`), on which trace, how, and what to keep."""

    script: list[str]
    trace: str
    loader: str = "real"
    strict: bool = False
    output: Path | None = None
    report: Path | None = None


def run(replay: Replay, option_names: Collection[str]) -> int:
    path = find(replay.trace).resolve()
    recorded = load(path)
    _require_device_time(recorded, path)
    require_place_for(replay.output)
    require_place_for(replay.report)
    with tempfile.TemporaryDirectory(prefix="trace-replay-") as out:
        config = {"trace": str(path), "out": out, "loader": replay.loader, "strict": replay.strict}
        result = run_child("replayer", config, replay.script)
        try:
            _conclude(replay, recorded, result, Path(out))
        except (TraceError, OSError) as error:
            # The exit code is the script's; only a run that went well must not hide that its result was lost.
            _say(line_for(error) or str(error))
            return result.returncode or 2
    if result.returncode == 2:
        _say_where_options_go(replay.script, option_names)
    return result.returncode


def _require_device_time(recorded: Trace, path: Path) -> None:
    if not len(work_rows(recorded)) and not (recorded.phases.device_end_ns >= 0).any():
        raise TraceError(f"{path}: holds no GPU work, so there is no pace to replay; record with CUDA activities on")


def _conclude(replay: Replay, recorded: Trace, result: ChildResult, out: Path) -> None:
    timelines = sorted(out.glob("replay-*.msgpack"), key=lambda file: file.stat().st_size, reverse=True)
    if not timelines:
        _say_why_nothing_was_replayed(result)
        return
    own = out / f"replay-{result.pid}.msgpack"
    timeline = own if own in timelines else timelines[0]
    if len(timelines) > 1:
        _say(f"{len(timelines)} processes used the GPU; the figures are those of process {timeline.stem[7:]}")
    replayed = in_order(load(timeline))
    if replay.output is not None:
        save(replayed, replay.output)
    facts = compare(recorded, replayed).to_json()
    if replay.report is not None:
        write_json(replay.report, facts)
    print(diff_text(facts, replay.trace, "this replay", **look(sys.stderr)), file=sys.stderr)


def _say_why_nothing_was_replayed(result: ChildResult) -> None:
    if result.pid not in result.booted:
        _say("nothing was replayed: the script's interpreter ignores PYTHONPATH (python -I, -E or -S?)")
    elif not result.triggered:
        _say("nothing was replayed: the script did not import torch")
    elif result.started:
        _say("nothing was replayed: the script did not use the GPU")


def _say_where_options_go(script: list[str], option_names: Collection[str]) -> None:
    """The script has refused its command line, perhaps because of an option that was meant for us."""
    ours = next((word.partition("=")[0] for word in script[1:] if word.partition("=")[0] in option_names), None)
    if ours is not None:
        _say(f"{ours} stands after the script, so the script got it; options of trace replay go before the script")


def _say(text: str) -> None:
    print(f"trace: {text}", file=sys.stderr)
