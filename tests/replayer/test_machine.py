# mypy: allow-untyped-calls
"""Tests that facts about the recorded machine pass from torch through the recorder and the file to torch in a replay. Each of
these facts was once lost because the writer and the reader of a dictionary used different keys. The tests run in the warm
interpreter."""

from __future__ import annotations

import os
import runpy
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from replayer import state
from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.memory.device.oom import oom_text_of
from replayer.recording.workspaces import keeps_workspaces
from tests.fake_torch import A6000, OOM_TEXT, OUTSIDE_BYTES, USUAL_WORKSPACE_BYTES, FakeTorch
from tests.replayer.recordings import FakeClock, Log, Op, make_recording
from tracer.device.device_access import DeviceAccess
from tracer.provenance import ProcessFacts
from tracer.state import Profiles
from traces.format.trace_file import load, save
from traces.model.run import ProfilerUse
from traces.script.configuration import RecordConfig

pytestmark = pytest.mark.warm

CUDA_OF_BUILD = runpy.run_path(str(torch.version.__file__))["cuda"]
NOT_RECORDED = ("uuid", "pci_bus_id", "pci_device_id", "pci_domain_id")  # These properties identify a single card.


def replayed(recorded_with: FakeTorch, devices: int = 1, error: BaseException | None = None) -> VirtualGpu:
    """Start the virtual GPU of a recording of phases that was saved to a file. The header of the recording comes from the
    recorder."""
    facts = ProcessFacts(recorded_with, rank=0, config=RecordConfig())  # type: ignore[arg-type]
    for index in range(devices):
        facts.device_row(index)
    facts.failed(error)
    facts.at_end(DeviceAccess(recorded_with.cuda, (), Profiles()))
    trace = make_recording([("forward", 0, 50)], [])
    trace.grain, trace.devices, trace.machines = "phase", facts.devices, {0: facts.machine()}
    trace.runs, trace.provenance = {0: facts.run(0, 0, 0, ProfilerUse())}, facts.provenance()
    with tempfile.TemporaryDirectory() as folder:
        save(trace, Path(folder) / "t.msgpack")
        trace = load(Path(folder) / "t.msgpack")
    gpu = VirtualGpu(trace, 0, FakeClock(), Log())  # type: ignore[arg-type]
    state.start(lambda: gpu)
    return gpu


@pytest.mark.parametrize("name", [name for name in A6000 if name not in NOT_RECORDED])
def test_a_recorded_device_property_is_replayed(name: str) -> None:
    """GIVEN a recorded number that differs from the number of the known GPU model THEN the recorded number is replayed. The
    number of the known model would only replace a missing number."""
    recorded = A6000[name] + 1 if type(A6000[name]) is int else A6000[name]
    replayed(FakeTorch([A6000 | {name: recorded}]))
    assert getattr(torch.cuda.get_device_properties(0), name) == recorded


def test_scripts_and_torch_see_the_same_compute_capability() -> None:
    replayed(FakeTorch())
    assert torch.cuda.get_device_capability() == (8, 6) and torch.cuda.get_arch_list() == ["sm_86"]
    assert torch.cuda.is_bf16_supported()


def test_the_recorded_cuda_version_is_replayed() -> None:
    replayed(FakeTorch())
    assert torch.version.cuda == (CUDA_OF_BUILD or "12.6")


def test_the_recorded_cudnn_version_is_replayed() -> None:
    replayed(FakeTorch())
    assert torch.backends.cudnn.version() == 91002


def test_the_recorded_nccl_version_is_replayed() -> None:
    replayed(FakeTorch())
    assert torch.cuda.nccl.version() == (2, 27, 5)


def test_the_recorded_cublas_workspace_is_kept_after_a_matrix_product() -> None:
    replayed(FakeTorch())
    left = torch.ones(4, 4, device="cuda")
    held = torch.cuda.memory_allocated()
    product = left @ left
    assert torch.cuda.memory_allocated() - held == USUAL_WORKSPACE_BYTES + 512
    del product


def test_the_cublas_workspace_of_a_hopper_gpu_is_larger() -> None:
    replayed(FakeTorch([A6000 | {"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0}]))
    torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
    assert torch.cuda.memory_allocated() == 32 << 20


def test_torch_releases_since_2_15_keep_no_cublas_workspace() -> None:
    newer = FakeTorch()
    newer.__version__ = "2.15.0+cu130"
    replayed(newer)
    torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
    assert torch.cuda.memory_allocated() == 0


def test_the_memory_of_other_programs_on_each_device_is_recorded() -> None:
    replayed(FakeTorch([A6000, A6000 | {"name": "Tesla T4", "total_memory": 15 << 30}]), devices=2)
    for index, total_bytes in enumerate((A6000["total_memory"], 15 << 30)):
        assert torch.cuda.mem_get_info(index) == (total_bytes - OUTSIDE_BYTES, total_bytes)


@pytest.mark.parametrize("cublas_bytes", [0, USUAL_WORKSPACE_BYTES])
def test_recorded_workspace_bytes_override_the_rule_of_the_release(cublas_bytes: int) -> None:
    gpu = replayed(FakeTorch(cublas_bytes=cublas_bytes))
    assert gpu.machine.cublas_bytes == cublas_bytes
    recorded = make_recording([("forward", 0, 100)], [Op("aten::mm", 10, 20, kernel=(20, 5))])
    recorded.machines[0] = gpu.machine
    assert keeps_workspaces(recorded, 0, frozenset({USUAL_WORKSPACE_BYTES})) is bool(cublas_bytes)


def test_the_recorded_out_of_memory_message_is_replayed() -> None:
    same = FakeTorch()
    same.__version__ = torch.__version__
    gpu = replayed(same, error=FakeTorch.OutOfMemoryError(OOM_TEXT))
    assert gpu.machine.oom_text == OOM_TEXT
    with pytest.raises(torch.OutOfMemoryError, match=r"capacity of 47\.40 GiB of which 46\.96 GiB is free\.$"):
        torch.empty(1 << 40, device="cuda")


def test_an_unrecorded_out_of_memory_message_is_that_of_the_installed_torch() -> None:
    gpu = replayed(FakeTorch(), error=RuntimeError("something else"))
    assert gpu.machine.oom_text is None
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(1 << 40, device="cuda")
    assert str(raised.value).endswith(oom_text_of(torch.__version__)[-60:])


def test_torch_settings_and_software_versions_are_recorded() -> None:
    with patch.dict(os.environ, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"):
        machine = replayed(FakeTorch()).machine
    assert (machine.torch, machine.release, machine.driver is not None) == ("2.13.0+cu126", (2, 13), True)
    assert machine.python is not None and machine.system is not None and machine.processors is not None
    settings: Any = machine.settings
    assert settings.allocator == "max_split_size_mb:64"
    assert settings.tf32_matmul and settings.tf32_cudnn and settings.cudnn_benchmark and settings.deterministic is False


def test_the_versions_and_workspace_of_an_amd_build_are_replayed() -> None:
    rocm = FakeTorch([A6000 | {"name": "AMD Instinct MI300X", "major": 9, "minor": 4, "gcnArchName": "gfx942:sramecc+:xnack-"}])
    rocm.version.cuda, rocm.version.hip = None, "6.4.43483"
    gpu = replayed(rocm)
    assert gpu.machine.hip == "6.4.43483" and torch.version.cuda == CUDA_OF_BUILD
    assert torch.cuda.get_device_properties(0).gcnArchName == "gfx942:sramecc+:xnack-"
    torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
    assert torch.cuda.memory_allocated() == 128 << 20  # Since PyTorch 2.6, hipBLASLt keeps a workspace.
