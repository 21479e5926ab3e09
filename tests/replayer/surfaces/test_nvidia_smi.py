"""Tests the nvidia-smi command that subprocesses of a replayed script find."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from replayer import state
from replayer.surfaces import nvidia_smi
from replayer.surfaces.nvidia_smi_command import SmiFacts, answer
from replayer.surfaces.nvml import ASSUMED_DRIVER
from tests.replayer.fake_gpu import use
from traces.model.machine import Machine

TOLD: SmiFacts = {
    "driver": "550.54.15",
    "cuda": "12.4",
    "devices": [
        {"name": "Tesla V100-SXM2-16GB", "total_mib": 16160, "used_mib": 7, "capability": "7.0"},
        {"name": "Tesla V100-SXM2-16GB", "total_mib": 16160, "used_mib": 0, "capability": "7.0"},
    ],
}


def test_queries_give_the_same_output_as_nvidia_smi() -> None:
    asked = ["--query-gpu=index,name,memory.used,temperature.gpu,pci.bus_id", "--format=csv,noheader,nounits"]
    assert answer(TOLD, asked) == [
        f"{index}, Tesla V100-SXM2-16GB, {used}, [N/A], 00000000:0{index + 1}:00.0" for index, used in ((0, 7), (1, 0))
    ]
    assert answer(TOLD, ["--query-gpu=memory.free", "--format=csv", "-i", "1"]) == ["memory.free [MiB]", "16160 MiB"]
    assert answer(TOLD, ["-L"])[1] == "GPU 1: Tesla V100-SXM2-16GB (UUID: GPU-00000000-0000-0000-0000-000000000001)"
    free = [line.split()[2] for line in answer(TOLD, ["-q", "-d", "Memory"]) if line.split()[:1] == ["Free"]]
    assert free == ["16153", "16160"]
    assert answer(TOLD, ["--query-compute-apps=pid,used_memory", "--format=csv,noheader"]) == []
    assert any("16160MiB" in line for line in answer(TOLD, []))


def test_nvidia_smi_shows_the_versions_of_the_recorded_machine() -> None:
    gpu = use(major=7, minor=0)
    with tempfile.TemporaryDirectory() as folder:
        for machine, versions in (
            (Machine(driver="535.1", cuda="12.4"), ("535.1", "12.4")),
            (Machine(), (ASSUMED_DRIVER, "")),
        ):
            gpu.machine = machine
            nvidia_smi._write_facts(Path(folder) / "facts.json")
            facts = json.loads((Path(folder) / "facts.json").read_text(encoding="utf-8"))
            assert (facts["driver"], facts["cuda"]) == versions


def test_nvidia_smi_rejects_unknown_options_by_name() -> None:
    with pytest.raises(ValueError, match="--gpu-reset"):
        answer(TOLD, ["--gpu-reset"])


QUERY = "nvidia-smi --query-gpu=name,memory.total,memory.used,compute_cap --format=csv,noheader,nounits"


def test_a_subprocess_finds_the_virtual_gpu_and_its_memory() -> None:
    use(major=7, minor=0)
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        nvidia_smi.install(Path(folder))
        done = subprocess.run(QUERY.split(), capture_output=True, text=True, check=True)
        assert done.stdout == "Tesla V100-SXM2-16GB, 16384, 64, 7.0\n"
        del held
        torch.cuda.empty_cache()
        assert os.system(f"{QUERY} > {folder}/out") == 0  # a second query shows the current memory
        assert Path(folder, "out").read_text() == "Tesla V100-SXM2-16GB, 16384, 0, 7.0\n"


@pytest.mark.parametrize("has_used_cuda", [True, False])
def test_a_shell_script_can_call_nvidia_smi_after_the_first_gpu_use(has_used_cuda: bool) -> None:
    """The name of the shell script does not show that it calls nvidia-smi."""
    use()
    if has_used_cuda:
        torch.empty(1, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        nvidia_smi.install(Path(folder))
        script = Path(folder, "ask.sh")
        script.write_text(QUERY)
        done = subprocess.run(["sh", str(script)], capture_output=True, text=True)
        assert done.stdout.startswith("Tesla V100") is has_used_cuda


@pytest.mark.parametrize("asks", ["nvidia-smi", "pynvml"])
def test_a_parent_that_only_asks_about_gpus_does_not_initialize_cuda(asks: str) -> None:
    """Forked children, such as those of accelerate's notebook_launcher, can then use the GPU."""
    use()
    with tempfile.TemporaryDirectory() as folder:
        if asks == "pynvml":
            pynvml = importlib.import_module("pynvml")
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            assert pynvml.nvmlDeviceGetCount() == 1 and pynvml.nvmlDeviceGetName(handle).startswith("Tesla V100")
            assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
        else:
            nvidia_smi.install(Path(folder))
            assert subprocess.check_output(["nvidia-smi", "-L"], text=True).startswith("GPU 0: Tesla V100")
    assert state.started() is None
