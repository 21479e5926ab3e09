"""Tests that the provenance describes a recording without naming a person or a machine."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fake_torch import A6000, USUAL_WORKSPACE_BYTES, FakeTorch
from tracer import provenance
from tracer.device.device_access import DeviceAccess
from tracer.provenance import ProcessFacts, without_paths
from tracer.state import Profiles
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
def test_file_paths_are_removed_from_recorded_texts(text: str, kept: str) -> None:
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
    text = json.dumps([facts.provenance(), to_json(facts.run(10, 1, 0, ProfilerUse()))])
    assert '"name": "train.py"' in text and '"runs"' in text and ".../set" in text and ".../cuda" in text
    for secret in (socket.gethostname(), str(tmp_path), "secret-share", "eth7", "hunter2", f"{getpass.getuser()}x"):
        assert secret not in text


def test_the_script_is_identified_by_its_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    import __main__

    monkeypatch.setattr(__main__, "__file__", str(script), raising=False)
    config = RecordConfig("phase", warmup=7)
    run = ProcessFacts(torch, 0, config).run(10, 1, 0, ProfilerUse())
    assert run.recorder is not None and from_json(Run, to_json(run)).recorder == run.recorder and run.recorder.config == config
    script.write_text("print(2)\n")
    other = ProcessFacts(torch, 0, RecordConfig()).run(10, 1, 0, ProfilerUse())
    assert run.script is not None and other.script is not None and run.script.sha256 != other.script.sha256
    cost = run.recorder
    assert cost is not None and (cost.overhead_ns_per_step, cost.overhead_share) == (1, 0.1)


def test_memory_outside_of_torch_is_neither_free_nor_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a GPU with 16 GiB, of which 3 GiB are free WHEN torch has reserved 5 GiB THEN 8 GiB are used outside of torch.

    The two values are not read at the same moment. If torch seems to have reserved more than is used, 0 bytes are used outside
    of torch.
    """
    gib, reserved = 1 << 30, {"gib": 0}
    properties = SimpleNamespace(name="Test GPU", total_memory=16 * gib, major=7, multi_processor_count=56, _private=1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (3 * gib, 16 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved["gib"] * gib)
    facts = ProcessFacts(torch, 0, RecordConfig())
    assert facts.device_row(0) == facts.device_row(0) == 0
    access: Any = SimpleNamespace(attempt=lambda ask, *words: ask(*words) if words else None)
    for reserved["gib"], outside_gib in ((5, 8), (14, 0)):
        facts.at_end(access)
        (device,) = facts.devices
        assert (device.name, device.total_memory_bytes, device.outside_bytes) == ("Test GPU", 16 * gib, outside_gib * gib)
    assert device.properties is not None
    assert (device.properties.major, device.properties.multi_processor_count, device.properties.warp_size) == (7, 56, None)


@pytest.mark.parametrize(("used", "words"), [(True, "ended before its first step"), (False, "used no GPU here")])
def test_a_recording_without_device_times_says_why(used: bool, words: str) -> None:
    fake: Any = FakeTorch([A6000])
    fake.cuda.is_initialized = lambda: used
    assert ProcessFacts(fake, 0, RecordConfig()).lacks(has_profile=True) == [f"device time: the script {words}"]


def test_the_memory_peak_of_a_run_includes_peaks_before_the_script_resets_them() -> None:
    """GIVEN a peak of 700 bytes before the script resets it, and 300 bytes after it THEN the recorded peak is 700 bytes."""
    peaks = iter((700, 300))
    fake = FakeTorch([A6000])
    fake.cuda.max_memory_allocated = lambda index: next(peaks)
    facts = ProcessFacts(fake, 0, RecordConfig())  # type: ignore[arg-type]
    facts.device_row(0)
    access = DeviceAccess(fake.cuda, (), Profiles())
    facts.read_peaks(access)
    facts.at_end(access)
    assert [device.peak_bytes for device in facts.devices] == [700]


@pytest.mark.parametrize(
    ("block_bytes", "held_bytes"), [(0, 0), (USUAL_WORKSPACE_BYTES, USUAL_WORKSPACE_BYTES), (USUAL_WORKSPACE_BYTES + 512, 0)]
)
def test_a_block_as_large_as_a_workspace_counts_as_a_cublas_workspace(block_bytes: int, held_bytes: int) -> None:
    """In all cases, there are also an allocated tensor of 1,000 bytes and a freed block as large as a workspace."""
    recorded: Any = FakeTorch(cublas_bytes=block_bytes)
    facts = ProcessFacts(recorded, 0, RecordConfig())
    facts.device_row(0)
    facts.at_end(DeviceAccess(recorded.cuda, (), Profiles()))
    assert facts.machine().cublas_bytes == held_bytes


@pytest.mark.parametrize(("of_torch", "of_cudnn"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_run_is_deterministic_if_torch_or_cudnn_is_deterministic(
    monkeypatch: pytest.MonkeyPatch, of_torch: bool, of_cudnn: bool
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: of_torch)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", of_cudnn)
    assert ProcessFacts(torch, 0, RecordConfig()).machine().settings.deterministic is (of_torch or of_cudnn)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, None),
        ({"PYTORCH_ALLOC_CONF": "a:1"}, "a:1"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "b:2"}, "b:2"),
        ({"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:2"}, "a:1"),
    ],
)
def test_the_new_environment_variable_for_allocator_settings_is_preferred(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], kept: str | None
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert ProcessFacts(torch, 0, RecordConfig()).machine().settings.allocator == kept


@pytest.mark.parametrize(("major", "workspace_bytes"), [(8, USUAL_WORKSPACE_BYTES), (9, 32 << 20)])
def test_the_size_of_a_workspace_depends_on_the_architecture(
    monkeypatch: pytest.MonkeyPatch, major: int, workspace_bytes: int
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    recorded: Any = FakeTorch(cards=[{**A6000, "major": major}], cublas_bytes=workspace_bytes)
    facts = ProcessFacts(recorded, 0, RecordConfig())
    facts.device_row(0)
    facts.at_end(DeviceAccess(recorded.cuda, (), Profiles()))
    assert facts.machine().cublas_bytes == workspace_bytes


@pytest.mark.parametrize(("again_bytes", "held_bytes"), [(0, None), (USUAL_WORKSPACE_BYTES, USUAL_WORKSPACE_BYTES)])
def test_workspaces_that_the_script_frees_have_an_unknown_size(again_bytes: int, held_bytes: int | None) -> None:
    """PyTorch Lightning frees all workspaces at the end. A script may then compute another matrix product, which allocates a
    new workspace."""
    recorded: Any = FakeTorch(cublas_bytes=again_bytes)
    facts = ProcessFacts(recorded, 0, RecordConfig())
    facts.device_row(0)
    facts.workspaces_cleared()
    facts.at_end(DeviceAccess(recorded.cuda, (), Profiles()))
    assert facts.machine().cublas_bytes == held_bytes


def test_workspaces_are_unknown_while_the_script_records_the_memory_history() -> None:
    recorded: Any = FakeTorch(cublas_bytes=USUAL_WORKSPACE_BYTES)
    recorded._C._cuda_isHistoryEnabled = lambda: True
    facts = ProcessFacts(recorded, 0, RecordConfig())
    facts.device_row(0)
    facts.at_end(DeviceAccess(recorded.cuda, (), Profiles()))
    assert facts.machine().cublas_bytes is None


@pytest.mark.parametrize(("number", "version"), [(0, None), (12040, "CUDA 12.4"), (13020, "CUDA 13.2"), (11080, "CUDA 11.8")])
def test_without_a_driver_version_the_cuda_version_of_the_driver_is_recorded(
    number: int, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cudaDriverGetVersion returns 12040 for CUDA 12.4."""
    file = tmp_path / "version"
    monkeypatch.setattr(provenance, "Path", lambda _: file)
    of_cuda: Any = SimpleNamespace(_C=SimpleNamespace(_cuda_getDriverVersion=lambda: number))
    assert provenance._driver_version(of_cuda) == version
    file.write_text("550.54.15\n")
    assert provenance._driver_version(of_cuda) == "550.54.15"


@pytest.mark.parametrize("version", [None, 92400])
def test_the_version_of_cudnn_is_read_without_the_check_that_raises_an_error(version: int | None) -> None:
    def check() -> None:
        raise RuntimeError("cuDNN version incompatibility")

    own = SimpleNamespace() if version is None else SimpleNamespace(_cudnn=SimpleNamespace(getVersionInt=lambda: version))
    of_cuda: Any = SimpleNamespace(_C=own, backends=SimpleNamespace(cudnn=SimpleNamespace(version=check)))
    assert provenance._cudnn_version(of_cuda) == version
