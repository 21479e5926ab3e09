# mypy: allow-untyped-calls
"""Tests what NVML reports about the virtual GPU. Each test runs in a fork of an interpreter that has imported torch
(warm.py)."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import pytest
import torch

from tests.replayer.fake_gpu import use


def test_pynvml_reports_the_virtual_gpu_to_the_script() -> None:
    gpu = use(devices=2)
    assert importlib.util.find_spec("pynvml") is not None
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetName(handle) == gpu.devices[1].name
    before = pynvml.nvmlDeviceGetMemoryInfo(handle)
    x = torch.ones(1 << 22, device="cuda:1")
    after = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert after.used - before.used >= x.nbytes and after.total == before.total == after.used + after.free
    assert torch.cuda.device_memory_used(1) == after.used
    with pytest.raises(pynvml.NVMLError, match="Not Supported"):
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    with pytest.raises(pynvml.NVMLError, match="Invalid Argument"):
        pynvml.nvmlDeviceGetHandleByIndex(2)


def test_gpu_utilization_is_the_busy_share_since_the_last_query() -> None:
    gpu = use()
    assert torch.cuda.utilization() == 0
    gpu.now_ns = 1_000_000_000
    torch.cuda.utilization()
    gpu.now_ns, gpu.worked_ns = 2_000_000_000, 250_000_000
    assert torch.cuda.utilization() == 25
    pynvml: Any = importlib.import_module("pynvml")
    rates = pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0))
    assert (rates.gpu, rates.memory) == (25, 25)
    gpu.now_ns += 1_000
    assert torch.cuda.utilization() == 25  # the last sample is too recent for a new one


def test_a_process_is_listed_once_it_has_initialised_cuda() -> None:
    gpu = use()
    pynvml: Any = importlib.import_module("pynvml")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    x = torch.ones(1 << 22, device="cuda")
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    usage = gpu.devices[0].memory.usage
    assert process.pid == os.getpid()
    assert process.usedGpuMemory == usage.capacity_bytes - usage.free_bytes >= x.nbytes
