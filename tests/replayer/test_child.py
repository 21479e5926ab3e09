"""Tests how a replay starts and ends in the script's process: options, steps, and waits for other ranks."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replayer import backend, child, state
from replayer.surfaces import nvidia_smi, sys_excepthook, torch_utils_data

RANKS = 3


class _Ended(Exception):
    pass


def _left(monkeypatch: pytest.MonkeyPatch, ended_at_s: list[float], *, initialized: bool = True) -> int:
    """Return the number of sleeps of 10 s until the process exits, if the ranks end at the given times."""
    now_s, sleeps = 0.0, 0

    def sleep(_seconds: float) -> None:
        nonlocal now_s, sleeps
        now_s, sleeps = now_s + 10, sleeps + 1
        assert sleeps < 20

    def leave(code: int) -> None:
        raise _Ended(code)

    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: initialized, get_world_size=lambda: RANKS if initialized else None
    )
    files = SimpleNamespace(files=lambda folder: [at_s for at_s in ended_at_s if at_s <= now_s])
    monkeypatch.setattr(child, "torch", SimpleNamespace(distributed=distributed))
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: 1_000 + now_s, sleep=sleep))
    monkeypatch.setattr(child, "RankRequests", files)
    monkeypatch.setattr(child, "multiprocessing", SimpleNamespace(active_children=list))
    monkeypatch.setattr(os, "_exit", leave)
    session: Any = SimpleNamespace(out=None)
    with pytest.raises(_Ended, match=r"^0$"):
        child._leave(session)
    return sleeps


def test_a_rank_waits_for_the_others_before_it_exits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _left(monkeypatch, [0, 0, 0]) == 0
    assert _left(monkeypatch, [10, 10, 10]) == 1
    assert _left(monkeypatch, [0, 20, 45]) == 5  # Each rank that ends gives the other ranks 30 s more.
    assert _left(monkeypatch, [], initialized=False) == 0
    assert capsys.readouterr().err == ""
    assert _left(monkeypatch, [0]) == 4  # A rank gives up only after more than 30 s.
    assert capsys.readouterr().err == "trace: 2 of 3 ranks did not end within 30 s\n"


def test_reads_without_a_recorded_value_count_only_if_values_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(simulator=SimpleNamespace(stats=SimpleNamespace(reads_unrecorded=5)))
    for gpu, computing, count in ((None, False, 0), (made, True, 0), (made, False, 5)):
        monkeypatch.setattr(state, "started", lambda gpu=gpu: gpu)
        monkeypatch.setattr(state, "computing", lambda computing=computing: computing)
        assert child.values_not_computed() == count


@pytest.mark.parametrize(("values", "loader"), [("compute", "synthetic"), ("recorded", "recorded"), ("compute", "recorded")])
def test_options_select_the_source_of_values_and_of_batches(
    values: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(backend, "registered", lambda: False)
    monkeypatch.setattr(backend, "register", lambda *, compute: calls.append(compute))
    monkeypatch.setattr(child, "install_all", lambda torch: None)
    monkeypatch.setattr(nvidia_smi, "install", lambda folder: None)
    monkeypatch.setattr(sys_excepthook, "install", lambda folder: None)
    monkeypatch.setattr(torch_utils_data, "repeat_first_batch", lambda torch, *, at_most: calls.append(at_most))
    config = SimpleNamespace(values=values, loader=loader, steps=7)
    session: Any = SimpleNamespace(config=config, storage=None, out=None)
    child._install(session)
    assert calls == [values == "compute", *([7] if loader == "synthetic" else [])]


@pytest.mark.parametrize("optimizers", [[], ["an optimizer"]])
def test_a_replay_of_3_steps_ends_after_3_training_steps_or_without_an_optimizer_after_60_evaluation_steps(
    optimizers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    def gpu(_trace: object, **named: Any) -> None:
        made.update(named)
        raise _Ended

    for name in ("TraceStream", "TimelineWriter", "devices_for", "node_numbers", "_clock"):
        monkeypatch.setattr(child, name, lambda *args, **options: None)
    monkeypatch.setattr(child, "VirtualGpu", gpu)
    finished: list[str] = []
    monkeypatch.setattr(state.STATE, "finish", lambda: finished.append("finished"))
    monkeypatch.setattr(state.STATE, "optimizers", optimizers)
    monkeypatch.setattr(child, "_leave", lambda session: finished.append("left"))
    rank = SimpleNamespace(devices=lambda trace: [], recorded=lambda ranks: 0, number=0)
    monkeypatch.setattr(state, "rank", lambda: rank)
    fields = ("gpus", "strict", "loader", "gpu_memory_bytes", "link_gbps", "values")
    config = SimpleNamespace(steps=3, slow_ranks={}, **dict.fromkeys(fields))
    session: Any = SimpleNamespace(config=config, out=Path(), cells=None, live=False)
    recorded: Any = SimpleNamespace(ranks=[0])
    with pytest.raises(_Ended):
        child._make(session, recorded, None)
    for trained, ended, leaves in ((2, 59, False), (0, 59, False), (3, 3, True), (0, 60, not optimizers), (4, 61, True)):
        finished.clear()
        made["links"].step_ended(trained, ended)
        assert finished == (["finished", "left"] if leaves else [])


@pytest.mark.parametrize(("count", "text"), [(1, "1"), (4, "1;1;1;1"), (5, "1;1;1;1;+1 more"), (9, "1;1;1;1;+5 more")])
def test_at_most_four_shapes_of_a_missing_op_are_listed(count: int, text: str) -> None:
    assert child._short(((1,),) * count) == text
