"""Loads traces in several stages, so that the timeline app can show the first rows early.

    for stage in stages(["v100.msgpack", "replay.msgpack"]):
        stage.scene, stage.share, stage.doing      # a scene, 0.4, "reading replay.msgpack"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from traces.library import load
from traces.model.trace import Trace
from tui.trace_names import viewable
from tui.view.differences import differences
from tui.view.scene.scene import Scene


class Stage(NamedTuple):
    scene: Scene | None
    share: float
    doing: str


def stages(names: Sequence[str], *, is_lazy: bool = False) -> Iterator[Stage]:
    """Start loading the traces in the background, and return an iterator over the progress. With `is_lazy`, columns are decoded
    when they are first read, and only one rank of each group of similar ranks is shown."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="trace-read")
    files = [viewable(name) for name in names]
    first = pool.submit(load, files[0], is_lazy=is_lazy)
    pool.shutdown(wait=False)
    return _stages(names, files, first, is_lazy)


def _stages(names: Sequence[str], files: Sequence[str], first: Future[Trace], is_lazy: bool) -> Iterator[Stage]:
    named: list[tuple[str, Trace]] = []
    for number, name in enumerate(names):
        yield Stage(None, 0.4 * number, f"reading {name}")
        named.append((name, load(files[number], is_lazy=is_lazy) if number else first.result()))
        scene = Scene.of(*named, omits_similar_ranks=is_lazy)
        if number + 1 < len(names):
            yield Stage(scene, 0.4 * (number + 1), f"reading {names[number + 1]}")
    yield Stage(scene, 0.8, "host threads")
    scene = scene.with_host()
    yield Stage(scene, 0.85, "figures")
    scene = scene.with_figures()
    if len(named) == 2:
        yield Stage(scene, 0.9, "counterparts")
        scene = scene.with_counterparts()
        scene = replace(scene, differences=differences(scene))
    yield Stage(scene, 1.0, "")
