"""Runs scripts as `trace replay --clock recorded` does, in a fork of an interpreter that has imported torch
(tests/replayer/warm.py)."""

from __future__ import annotations

import os
import runpy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from replayer import child, state
from traces.combining.replayed_ranks import one_replay, timelines_in
from traces.model.trace import Trace
from traces.model.typed_json import to_json
from traces.script.configuration import ReplayConfig, ReplaySession
from tui.commands.replay_library import ReplaySource


@contextmanager
def replaying(source: ReplaySource) -> Iterator[Path]:
    """Start the replay's virtual GPU. The `with` block gets the folder for the recorded timelines."""
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("default")  # PyTorch's warnings do not become errors
        out = Path(name)
        config = ReplayConfig(clock="recorded", loader="recorded")
        session = ReplaySession(source.file_in(out), out, os.getppid(), config=config, cells=source.choice)
        child.start(to_json(session))
        yield out


def timeline_of(script: str, source: ReplaySource) -> Trace:
    """Run the text of a script, and return the timeline of the replay."""
    with replaying(source) as out:
        file = out / "train.py"
        file.write_text(script)
        runpy.run_path(str(file), run_name="__main__")
        state.STATE.finish()
        return one_replay(timelines_in(out), os.getpid())[0]
