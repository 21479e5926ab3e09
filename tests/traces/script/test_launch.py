"""Which PyTorch releases a replay starts with."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from traces.model.trace import TraceError
from traces.script.launch import _group, check_torch, ranks_per_machine, write_session


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0+cu128", "2.14.1", "2.12.0a0+git1234567", "3.0.0", "unknown"])
def test_a_replay_starts_with_pytorch_2_10_and_later(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    check_torch()


def test_a_replay_with_an_older_pytorch_is_rejected_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GIVEN PyTorch 2.9 WHEN a replay starts THEN an error says what to do. A recording starts with any release."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.1+cu126")
    with pytest.raises(TraceError) as refused:
        write_session(tmp_path, {"replayer": {}})
    assert str(refused.value) == "replays need PyTorch 2.10 or later, not 2.9.1+cu126: pip install 'torch>=2.10'"
    write_session(tmp_path, {"tracer": {}})


def test_without_pytorch_the_script_fails_at_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    check_torch()


@pytest.mark.parametrize(("ranks", "local", "machines"), [(2, 2, 1), (128, 128, 1), (136, 8, 17), (256, 8, 32)])
def test_ranks_run_on_one_machine_or_on_machines_of_eight(ranks: int, local: int, machines: int) -> None:
    found = _group({"OMP_NUM_THREADS": "4", "WORLD_SIZE": "9"}, ranks)
    sizes = [found[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")]
    assert sizes == [str(ranks), str(local), str(machines)]
    assert found["OMP_NUM_THREADS"] == "4" and found["TRACE_RANKS"] == f"{ranks}"  # the user's own number of threads remains
    assert _group({}, ranks)["OMP_NUM_THREADS"] == "1"


def test_more_ranks_than_one_machine_supports_must_be_a_multiple_of_eight() -> None:
    with pytest.raises(TraceError, match="129 ranks: PyTorch numbers at most 128 GPUs"):
        ranks_per_machine(129)
