"""Provenance describes a recording without naming a person or a machine."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import pytest
import torch

from tracer.provenance import ProcessFacts, without_paths
from traces.model.run import ProfilerUse, Run
from traces.model.typed_json import from_json, to_json
from traces.script.configuration import RecordConfig


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("--lr=0.1", "--lr=0.1"),
        ("/mnt/ann/project/data/train", "data/train"),
        ("--data=/mnt/ann/sets/cifar", "--data=.../cifar"),
        ("~/sets/cifar", ".../cifar"),
        ("a/relative/path", "a/relative/path"),
        ("/usr/lib:/mnt/ann/project/lib", ".../lib:lib"),
    ],
)
def test_paths_are_removed_from_texts(text: str, kept: str) -> None:
    assert without_paths(text, Path("/mnt/ann/project")) == kept


def test_provenance_names_no_person_and_no_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setattr("sys.argv", [str(script), "--out", str(tmp_path / "runs"), "--data", "/mnt/secret-share/set"])
    import __main__

    monkeypatch.setattr(__main__, "__file__", str(script), raising=False)
    monkeypatch.setenv("CUDA_HOME", f"/home/{getpass.getuser()}x/cuda")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    monkeypatch.setenv("TORCH_API_TOKEN", "hunter2")
    facts = ProcessFacts(torch, 0, RecordConfig())
    text = json.dumps([facts.provenance(), to_json(facts.run(1, 10, 1, ProfilerUse()))])
    assert '"name": "train.py"' in text and '"runs"' in text and ".../set" in text and ".../cuda" in text
    for secret in (socket.gethostname(), str(tmp_path), "secret-share", "eth7", "hunter2", f"{getpass.getuser()}x"):
        assert secret not in text


def test_the_script_is_identified_by_its_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    import __main__

    monkeypatch.setattr(__main__, "__file__", str(script), raising=False)
    config = RecordConfig("phase", warmup=7)
    run = ProcessFacts(torch, 0, config).run(1, 10, 1, ProfilerUse())
    assert run.recorder is not None and from_json(Run, to_json(run)).recorder == run.recorder and run.recorder.config == config
    script.write_text("print(2)\n")
    other = ProcessFacts(torch, 0, RecordConfig()).run(1, 10, 1, ProfilerUse())
    assert run.script is not None and other.script is not None and run.script.sha256 != other.script.sha256
    cost = run.recorder
    assert cost is not None and (cost.overhead_ns_per_step, cost.overhead_share) == (1, 0.1)
