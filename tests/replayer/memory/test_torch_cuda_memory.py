"""Tests that torch.cuda's memory queries get the figures of our allocator. The tests use torch's CPU build in a fork."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from replayer.surfaces.torch_cuda_memory import stats_of_release
from tests.forked import printed_in_fork

# Surfaces patch torch permanently, so one fork calls all functions and prints the results.
SCRIPT = r"""
import json, torch
from replayer import state
from replayer.surfaces import torch_cuda, torch_cuda_memory
from tests.replayer.fakes import FakeGpu

fake = FakeGpu(devices=2, capacity_bytes=1 << 30)
state.start(lambda: fake)
torch_cuda.install(torch)
torch_cuda_memory.install(torch)
MIB, answers = 1 << 20, {}

def ask(name, question):
    try:
        answers[name] = question()
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {error}"

cuda = torch.cuda
ask("before CUDA has started", lambda: [cuda.memory_allocated(), dict(cuda.memory_stats())])
cuda.init()
blocks = [fake.devices[0].memory.malloc(size, 0) for size in (3 * MIB, 100, 30 * MIB)]
fake.devices[1].memory.malloc(512, 0)
fake.devices[0].memory.free(blocks[2])
ask("now", lambda: [cuda.memory_allocated(), cuda.memory_reserved(), cuda.memory.memory_allocated("cuda:0")])
ask("peaks", lambda: [cuda.max_memory_allocated(), cuda.max_memory_reserved(0)])
ask("second", lambda: [cuda.memory_allocated(1), cuda.memory_reserved(torch.device("cuda", 1))])
fake.current.set_device(1)
ask("current is second", lambda: [cuda.memory_allocated(), cuda.memory_allocated(torch.device("cuda"))])
fake.current.set_device(0)
ask("stats", lambda: dict(cuda.memory_stats()))
ask("nested", lambda: cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"])
ask("summary", lambda: cuda.memory_summary())
ask("mem_get_info", lambda: cuda.mem_get_info())
ask("processes", cuda.list_gpu_processes)
ask("backend", cuda.get_allocator_backend)
ask("raw", lambda: cuda.caching_allocator_alloc(2 * MIB, stream=0))
ask("raw allocated", lambda: cuda.memory_allocated())
ask("raw deleted", lambda: [cuda.caching_allocator_delete(answers["raw"]), cuda.memory_allocated()])
ask("raw deleted again", lambda: cuda.caching_allocator_delete(answers["raw"]))
ask("raw too large", lambda: cuda.caching_allocator_alloc(2 << 30, stream=0))
ask("empty", lambda: [cuda.empty_cache(), cuda.memory_reserved()])
ask("reset", lambda: [cuda.reset_peak_memory_stats(), cuda.max_memory_allocated(), cuda.max_memory_reserved()])
ask("accumulated", lambda: [cuda.reset_accumulated_memory_stats(), cuda.memory_stats()["allocation.all.allocated"]])
ask("fraction", lambda: [cuda.set_per_process_memory_fraction(0.5), cuda.get_per_process_memory_fraction()])
ask("fraction of no device", lambda: cuda.set_per_process_memory_fraction(0.5, 5))
ask("fraction too large", lambda: cuda.set_per_process_memory_fraction(1.5))
ask("no number", lambda: cuda.set_per_process_memory_fraction(float("nan")))
ask("settings", lambda: [torch._C._accelerator_setAllocatorSettings("max_split_size_mb:64"),
                         cuda.memory_stats(1)["max_split_size"]])
ask("no such device", lambda: cuda.memory_allocated(5))
ask("no such device's stats", lambda: cuda.memory_stats(5))
ask("cpu", lambda: cuda.memory_allocated("cpu"))
ask("cache on", lambda: cuda.memory.caching_allocator_enable(True))
ask("cache off", lambda: cuda.memory.caching_allocator_enable(False))
ask("pluggable", lambda: cuda.memory.CUDAPluggableAllocator("a.so", "b", "c"))
ask("uvm", lambda: cuda.memory._use_uvm())
print(json.dumps(answers))
"""

MIB = 1 << 20


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if "ALLOC_CONF" in name]:
            patched.delenv(name)
        result: dict[str, Any] = json.loads(printed_in_fork(SCRIPT))
    return result


def test_memory_figures_are_empty_before_cuda_has_started(answers: dict[str, Any]) -> None:
    assert answers["before CUDA has started"] == [0, {}]


def test_memory_figures_belong_to_the_requested_device(answers: dict[str, Any]) -> None:
    assert answers["now"] == [3 * MIB + 512, 52 * MIB, 3 * MIB + 512]
    assert answers["peaks"] == [33 * MIB + 512, 52 * MIB]
    assert answers["second"] == [512, 2 * MIB]
    assert answers["current is second"] == [512, 512]
    assert answers["mem_get_info"] == [1024 * MIB - 52 * MIB, 1024 * MIB]


def test_memory_stats_has_every_documented_key(answers: dict[str, Any]) -> None:
    quantities = "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes"
    quantities += " inactive_split_bytes requested_bytes"
    kinds = ("current", "peak", "allocated", "freed")
    pools = ("all", "small_pool", "large_pool")
    keys = {f"{quantity}.{pool}.{kind}" for quantity in quantities.split() for pool in pools for kind in kinds}
    keys |= {f"oversize_{what}.{kind}" for what in ("allocations", "segments") for kind in kinds}
    calls = "alloc_retries ooms sync_all_streams device_alloc device_free oom_rejections"
    keys |= {f"num_{call}" for call in calls.split()}
    assert set(answers["stats"]) == keys | {"max_split_size"}
    assert answers["stats"]["requested_bytes.small_pool.current"] == 100
    assert answers["stats"]["max_split_size"] == -1
    assert answers["nested"] == 3 * MIB + 512


@pytest.mark.parametrize(
    ("torch_version", "added"),
    [
        ("2.11.0+cu130", set()),  # These are the statistics on an H200.
        ("2.12.1+cu130", {"num_oom_rejections"}),
        ("2.14.1", {"num_oom_rejections", "reserved_bytes_by_private_pools"}),
    ],
)
def test_statistics_that_a_release_does_not_have_are_left_out(torch_version: str, added: set[str]) -> None:
    stats = {"num_ooms": 0, "num_oom_rejections": 0, "reserved_bytes_by_private_pools": {}}
    assert set(stats_of_release(stats, torch_version)) == {"num_ooms"} | added


def test_memory_summary_of_torch_prints_the_virtual_statistics(answers: dict[str, Any]) -> None:
    assert "| Allocated memory      |   3072 KiB |  33792 KiB |  33792 KiB |  30720 KiB |" in answers["summary"]


def test_list_gpu_processes_lists_this_process(answers: dict[str, Any]) -> None:
    device, process = answers["processes"].split("\n")
    assert device == "GPU:0" and process.endswith("uses       52.000 MB GPU memory")
    assert answers["backend"] == "native"


def test_caching_allocator_alloc_and_delete_work_by_address(answers: dict[str, Any]) -> None:
    assert answers["raw"] >= 0x7F00_0000_0000 and answers["raw"] % 512 == 0
    assert answers["raw allocated"] == 5 * MIB + 512
    assert answers["raw deleted"] == [None, 3 * MIB + 512]
    assert answers["raw deleted again"].startswith("RuntimeError: invalid device pointer: 0x7f")
    assert answers["raw too large"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_caches_and_statistics_are_reset(answers: dict[str, Any]) -> None:
    assert answers["empty"] == [None, 22 * MIB]
    assert answers["reset"] == [None, 3 * MIB + 512, 22 * MIB]
    assert answers["accumulated"] == [None, 0]


def test_memory_fractions_and_allocator_settings_are_kept(answers: dict[str, Any]) -> None:
    assert answers["fraction"] == [None, 0.5]
    assert answers["fraction of no device"] == "RuntimeError: Allocator not initialized for device \x05: did you call init?"
    assert answers["fraction too large"] == "ValueError: Invalid fraction value: 1.5. Allowed range: 0~1"
    assert answers["no number"] == "RuntimeError: invalid fraction:nan. Please set within [0, 1]."
    assert answers["settings"] == [None, 64 * MIB]


def test_a_missing_device_is_rejected_with_the_message_of_torch(answers: dict[str, Any]) -> None:
    assert answers["no such device"] == "RuntimeError: Invalid device argument \x05: did you call init?"
    assert answers["no such device's stats"] == "RuntimeError: Invalid device argument \x05: did you call init?"
    assert answers["cpu"] == "ValueError: Expected a cuda device, but got: cpu"


@pytest.mark.parametrize(
    ("question", "call"),
    [
        ("cache off", "torch.cuda.caching_allocator_enable(False)"),
        ("pluggable", "torch.cuda.CUDAPluggableAllocator"),
        ("uvm", "torch.cuda.memory._use_uvm"),
    ],
)
def test_calls_that_are_not_emulated_raise_an_error_with_their_names(
    answers: dict[str, Any], question: str, call: str
) -> None:
    assert answers["cache on"] is None
    assert answers[question].startswith(f"NotEmulated: {call} is not emulated by the virtual GPU: ")
