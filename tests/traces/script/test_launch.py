"""Tests how a script is started, and how the end of its process is reported."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from traces.model.trace import TraceError
from traces.script import launch
from traces.script.launch import ChildResult, _group, _Relay, check_torch, ranks_per_machine, run_child, write_session


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0+cu128", "2.14.1", "2.12.0a0+git1234567", "3.0.0", "unknown"])
def test_a_replay_starts_with_pytorch_2_10_and_later(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    check_torch()


def test_a_replay_with_an_older_pytorch_is_rejected_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GIVEN PyTorch 2.9 WHEN a replay starts THEN an error says which version to install. A recording starts with any
    version."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.1+cu126")
    with pytest.raises(TraceError) as refused:
        write_session(tmp_path, {"replayer": {}})
    assert str(refused.value) == "replays need PyTorch 2.10 or later, not 2.9.1+cu126; run `pip install 'torch>=2.10'`"
    write_session(tmp_path, {"tracer": {}})


def test_without_pytorch_the_script_fails_at_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    check_torch()


@pytest.mark.parametrize(("ranks", "local", "machines"), [(2, 2, 1), (128, 128, 1), (136, 8, 17), (256, 8, 32)])
def test_many_ranks_are_split_into_machines_with_eight_ranks_each(ranks: int, local: int, machines: int) -> None:
    found = _group({"OMP_NUM_THREADS": "4", "WORLD_SIZE": "9"}, ranks)
    sizes = [found[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")]
    assert sizes == [str(ranks), str(local), str(machines)]
    # A number of threads that the user has set does not change.
    assert found["OMP_NUM_THREADS"] == "4" and found["TRACE_RANKS"] == f"{ranks}"
    assert _group({}, ranks)["OMP_NUM_THREADS"] == "1"


def test_more_ranks_than_one_machine_supports_must_be_a_multiple_of_eight() -> None:
    with pytest.raises(TraceError, match="129 ranks: PyTorch numbers at most 128 GPUs"):
        ranks_per_machine(129)


class Child:
    """Fakes a process with the id 5, which ends with `code`, and stores the signals that it receives."""

    pid = 5

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.signals: list[int] = []

    def __call__(self, command: list[str], *, env: dict[str, str], **streams: object) -> Child:
        for pid, events in (("5", "boot trigger started"), ("6", "boot trigger traceback"), ("7", "boot")):
            (Path(env["TRACE_SESSION"]) / "handshake" / pid).write_text(events)
        return self

    def wait(self) -> int:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.mark.parametrize(("code", "returncode"), [(0, 0), (3, 3), (-1, 129), (-15, 143)])
def test_a_child_process_reports_its_events_and_how_it_ended(
    code: int, returncode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", Child(code))
    found = run_child({}, [__file__])
    assert found == ChildResult(returncode, 5, frozenset((5, 6, 7)), frozenset((5, 6)), frozenset((5,)), failed=frozenset((6,)))


def test_a_launcher_stopped_by_a_signal_keeps_its_own_exit_code() -> None:
    """After SIGTERM, torchrun ends with exit code 1. A script that handles the signal ends with exit code 0."""
    none: frozenset[int] = frozenset()
    endings = [
        ChildResult(code, 5, none, none, none, stopped_by).ending for code, stopped_by in ((1, 15), (143, 15), (0, 15), (1, 0))
    ]
    assert endings == [143, 143, 0, 1]


def test_a_script_that_does_not_exist_is_not_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GIVEN the name of a script that does not exist THEN no process starts.

    Options of Python and the word `torchrun` are not script names.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Child())
    with pytest.raises(FileNotFoundError) as refused:
        run_child({}, ["nosuch.py", "--lr", "1"])
    assert refused.value.filename == "nosuch.py"
    for words in (["-m", "nosuch"], ["-u", "nosuch.py"], ["torchrun", "nosuch.py"], ["."]):
        assert run_child({}, words).returncode == 0


def test_torchrun_is_a_module_unless_a_file_has_this_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert launch._words(["torchrun", "train.py"]) == ["-m", "torch.distributed.run", "train.py"]
    (tmp_path / "torchrun").touch()
    assert launch._words(["torchrun", "train.py"]) == ["torchrun", "train.py"]


@pytest.mark.parametrize(
    ("number", "is_foreground", "passed_on"),
    [
        (signal.SIGTERM, True, [signal.SIGTERM]),
        (signal.SIGTERM, False, [signal.SIGTERM]),
        (signal.SIGINT, True, []),  # the terminal sends Ctrl-C to both processes
        (signal.SIGINT, False, [signal.SIGINT]),
    ],
)
def test_signals_are_passed_on_except_ctrl_c_in_a_terminal(
    number: int, is_foreground: bool, passed_on: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "tcgetpgrp", lambda file: 70)
    monkeypatch.setattr(os, "getpgrp", lambda: 70 if is_foreground else 80)
    child: Any = Child()
    with open(os.devnull, "rb") as terminal, _Relay() as relay:
        monkeypatch.setattr(launch, "open", lambda *arguments: terminal, raising=False)
        relay.to(child)
        signal.raise_signal(number)
    assert child.signals == passed_on and relay.got == number


def test_a_signal_before_the_start_of_the_child_process_is_passed_on_afterwards() -> None:
    child: Any = Child()
    with _Relay() as relay:
        signal.raise_signal(signal.SIGTERM)
        relay.to(child)
    assert child.signals == [signal.SIGTERM]


def test_only_installed_libraries_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a package, a module and a folder without `__init__.py` THEN the folder is not listed as a library."""
    for name in ("package/__init__.py", "module.py", "folder/part.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    names = "package", "module", "folder", "missing"
    monkeypatch.setattr(launch, "LIBRARIES", names)
    write_session(tmp_path, {})
    libraries = json.loads((tmp_path / "session.json").read_text())["libraries"]
    assert libraries == {"package": str(tmp_path), "module": str(tmp_path)}
