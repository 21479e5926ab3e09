# mypy: allow-untyped-calls
"""Tests torch.cuda itself: devices, properties, initialization and forks. Each test runs in a fork of an interpreter that has
imported torch (warm.py)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from replayer.cuda_error import SINCE_2_14
from replayer.errors import NotEmulated
from tests.replayer.fake_gpu import GIB, use

INVALID = "CUDA error: invalid device ordinal\nGPU device may be out of range"


def test_the_recorded_devices_are_available() -> None:
    use(devices=2)
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_name() == "Tesla V100-SXM2-16GB"
    assert torch.cuda.get_device_capability("cuda:1") == (7, 0)
    assert torch.cuda.is_bf16_supported(including_emulation=False) is False
    assert torch.cuda.can_device_access_peer(0, 1)


def test_set_device_and_device_contexts_change_the_current_device() -> None:
    use(devices=3)
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == 1
    with torch.cuda.device(2):
        assert torch.cuda.current_device() == 2
        with torch.cuda.device_of(torch.ones(1)), torch.cuda.device(None):
            assert torch.cuda.current_device() == 2
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device(-1)
    assert torch.cuda.current_device() == 1


@pytest.mark.parametrize("use_it", ["set_device", "device", "Stream", "to", "zeros", "index"])
def test_an_unrecorded_device_raises_the_error_of_cuda(use_it: str) -> None:
    use(devices=1)
    calls = {
        "set_device": lambda: torch.cuda.set_device(1),
        "device": lambda: torch.cuda.device(1).__enter__(),
        "Stream": lambda: torch.cuda.Stream("cuda:1"),
        "to": lambda: torch.ones(1).to("cuda:1"),
        "zeros": lambda: torch.zeros(1, device="cuda:1"),
        "index": lambda: torch.accelerator.set_device_index(1),
    }
    with pytest.raises(torch.AcceleratorError, match=re.escape(INVALID)) as caught:
        calls[use_it]()
    assert ("asynchronously reported" in str(caught.value)) != SINCE_2_14
    assert isinstance(caught.value, RuntimeError)
    assert torch.cuda.current_device() == 0


def test_properties_of_an_unrecorded_device_raise_the_error_of_torch() -> None:
    use(devices=1)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(1)


def test_recorded_device_properties_override_those_of_the_chip_table() -> None:
    use(name="Tesla V100-SXM2-16GB", multi_processor_count=79, shared_memory_per_block_optin=98304)
    properties: Any = torch.cuda.get_device_properties(0)
    assert properties.multi_processor_count == 79
    assert properties.shared_memory_per_block_optin == 98304
    assert (properties.major, properties.minor, properties.warp_size) == (7, 0, 32)
    assert properties.total_memory == 16 * GIB
    assert properties.L2_cache_size == 6 << 20
    assert repr(properties).startswith(
        "_CudaDeviceProperties(name='Tesla V100-SXM2-16GB', major=7, minor=0, total_memory=16384MB,"
        " multi_processor_count=79, uuid="
    )
    assert isinstance(properties, torch.cuda._CudaDeviceProperties)


def test_get_arch_list_returns_the_architectures_of_the_recorded_devices() -> None:
    use(devices=2, name="Tesla P100-PCIE-16GB")
    assert torch.cuda.get_arch_list() == ["sm_60"]
    assert torch.cuda.get_gencode_flags() == "-gencode compute=compute_60,code=sm_60"
    torch.cuda.init()  # a warning that this build has no kernels for a P100 would be an error in this test


@pytest.mark.parametrize(
    ("visible", "devices"),
    [("0", 1), ("2,3", 2), ("0,1,2,3,4", 3), ("", 0), ("-1", 0), ("1,-1,2", 1), ("GPU-8932f937", 1)],
)
def test_cuda_visible_devices_limits_the_device_count(visible: str, devices: int) -> None:
    use(devices=3)
    os.environ["CUDA_VISIBLE_DEVICES"] = visible
    assert torch.cuda.device_count() == devices
    assert torch.cuda.is_available() is (devices > 0)
    if devices:
        torch.cuda.init()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # CUDA has already been started, so the variable has no effect
        assert torch.cuda.device_count() == devices
    else:
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            torch.cuda.init()


def test_cuda_is_initialised_only_at_its_first_use() -> None:
    use()
    torch.manual_seed(7)
    assert not torch.cuda.is_initialized()
    torch.ones(1).cuda()
    assert torch.cuda.is_initialized()
    assert torch.cuda.initial_seed() == 7


def _in_child(ask: object) -> str:
    """Return the result or the error of `ask` in a forked child process."""
    assert callable(ask)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            answer = repr(ask())
        except RuntimeError as error:
            answer = str(error)
        os.write(writer, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reader, 4096).decode()


@pytest.mark.parametrize("use_it", ["cuda", "zeros", "set_device", "synchronize"])
def test_a_forked_child_cannot_use_cuda_that_its_parent_initialised(use_it: str) -> None:
    use()
    torch.cuda.init()
    calls = {
        "cuda": lambda: torch.ones(1).cuda(),
        "zeros": lambda: torch.zeros(1, device="cuda"),
        "set_device": lambda: torch.cuda.set_device(0),
        "synchronize": lambda: torch.cuda.synchronize(),
    }
    assert _in_child(calls[use_it]) == (
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn'"
        " start method"
    )


def test_a_forked_child_cannot_use_tensors_of_its_parent() -> None:
    # PyTorch's Python code checks for a fork only before it initializes CUDA. Then CUDA's runtime reports the fork.
    use()
    ones = torch.ones(1, device="cuda")
    assert _in_child(lambda: ones + 1).startswith("CUDA error: initialization error")


def test_a_forked_child_of_a_cuda_process_can_still_set_the_seed() -> None:
    # c10::cuda::device_count counts the GPUs only once.
    use()
    torch.cuda.init()

    def ask() -> object:
        torch.manual_seed(1)
        return torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()

    assert _in_child(ask) == "(True, False, True)"


def test_a_forked_child_can_use_cuda_if_its_parent_did_not() -> None:
    use()
    assert _in_child(lambda: torch.ones(2, device="cuda").shape[0]) == "2"


def test_a_forked_child_can_use_cuda_if_its_parent_only_counted_gpus() -> None:
    use()
    assert torch.cuda.device_count() == 1 and torch.backends.cudnn.version() and torch.cuda.nccl.version()
    assert _in_child(lambda: torch.ones(2, device="cuda").shape[0]) == "2"


def test_a_forked_child_cannot_use_cuda_if_its_parent_initialised_the_runtime() -> None:
    use()
    assert torch.cuda.is_available()
    assert _in_child(lambda: torch.ones(1).cuda()).startswith("Cannot re-initialize CUDA in forked subprocess")


def test_device_properties_have_exactly_the_attributes_of_torch() -> None:
    use()
    public = {name for name in dir(torch.cuda.get_device_properties(0)) if not name.startswith("_")}
    # These attributes were read on an H200 with PyTorch 2.11.
    assert public == set(
        "L2_cache_size clock_rate gcnArchName is_integrated is_multi_gpu_board major max_threads_per_block"
        " max_threads_per_multi_processor memory_bus_width memory_clock_rate minor multi_processor_count name pci_bus_id"
        " pci_device_id pci_domain_id regs_per_multiprocessor shared_memory_per_block shared_memory_per_block_optin"
        " shared_memory_per_multiprocessor total_memory uuid warp_size".split()
    )


def test_the_sync_debug_mode_returns_the_value_that_was_set() -> None:
    use()
    with pytest.warns(UserWarning, match="Synchronization debug mode is a prototype feature"):
        torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1


def test_cudart_accepts_only_profiler_calls() -> None:
    gpu = use()
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
    with torch.cuda.profiler.profile():
        pass
    held = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    free_bytes, total_bytes = torch.cuda.cudart().cudaMemGetInfo(0)
    assert total_bytes == 16 * GIB
    assert total_bytes - free_bytes == gpu.devices[0].memory.usage.reserved_bytes > held.numel()
    with pytest.raises(NotEmulated, match=r"torch\.cuda\.cudart\(\)\.cudaMalloc is not emulated"):
        torch.cuda.cudart().cudaMalloc(512)


def test_cudart_accepts_every_error_code_as_pytorch_does() -> None:
    use()
    cudart: Any = torch.cuda.cudart()
    assert (int(cudart.cudaError(2)), str(cudart.cudaError(2)), str(cudart.cudaError.success)) == (
        2, "cudaError.???", "cudaError.success"
    )  # fmt: skip
    with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)
    texts = {0: "no error", 710: "device-side assert triggered", 9999: "unrecognized error code"}
    assert {code: cudart.cudaGetErrorString(cudart.cudaError(code)) for code in texts} == texts


# An NVIDIA H100 with PyTorch 2.11 gave these answers.
_WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "eigvals": lambda x: torch.linalg.eigvals(x),
    "eigh": lambda x: torch.linalg.eigh(x),
    "svdvals": lambda x: torch.linalg.svdvals(x),
    "inv": lambda x: torch.linalg.inv(x),
    "solve": lambda x: torch.linalg.solve(x, x),
    "pinv": lambda x: torch.linalg.pinv(x),
    "matrix_exp": lambda x: torch.matrix_exp(x),
    "normal": lambda x: torch.normal(0.0, x),
    "isin": lambda x: torch.isin(x[0], x.repeat(3, 3)),
    "segment_reduce": lambda x: torch.segment_reduce(x[0], "sum", lengths=torch.full((1,), 3, device="cuda")),
}
_RETURNS_AT_ONCE: dict[str, Callable[[torch.Tensor], object]] = {
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(x),
    "inv_ex": lambda x: torch.linalg.inv_ex(x),
    "empty eigh": lambda x: torch.linalg.eigh(x[:0, :0]),
    "qr": lambda x: torch.linalg.qr(x),
    "normal": lambda x: torch.normal(x, 1.0),
    "few values": lambda x: torch.isin(x.repeat(3, 3), x[0]),
    "unique values": lambda x: torch.isin(x[0], x.repeat(3, 3), assume_unique=True),
}


@pytest.mark.parametrize("name", [*_WAITS, *(f"{name} at once" for name in _RETURNS_AT_ONCE)])
def test_the_host_waits_in_the_same_ops_as_with_a_real_gpu(name: str) -> None:
    use()
    x = torch.eye(3, device="cuda")
    with pytest.warns(UserWarning, match="prototype feature"):
        torch.cuda.set_sync_debug_mode("error")
    if name in _WAITS:
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            _WAITS[name](x)
    else:
        _RETURNS_AT_ONCE[name.removesuffix(" at once")](x)


def test_an_out_argument_must_be_on_the_device_of_the_call() -> None:
    use()
    out = torch.empty(3, device="cuda")
    assert torch.zeros(3, device="cuda", out=out) is out
    for device, given in (("cpu", out), ("cuda", torch.empty(3))):
        text = f"device type {device} does not match device type of out parameter ({given.device.type})"
        with pytest.raises(RuntimeError, match=re.escape(text)):
            torch.zeros(3, device=device, out=given)
