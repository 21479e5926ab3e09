"""Tests that, in a call of a compiled region, recorded memory requests replace the requests of the tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from replayer.memory.allocation_handle import AllocationHandle
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.region_memory import BlockRequest, RegionMemory
from replayer.memory.tensor_allocator import TensorAllocator

MIB = 1 << 20


def allocator() -> TensorAllocator:
    return TensorAllocator(DeviceMemory(0, 64 * MIB))


def allocated(of: TensorAllocator) -> int:
    return of.flush().usage.allocated_bytes


def taken(of: RegionMemory | TensorAllocator, size_bytes: int) -> AllocationHandle:
    handle = of.malloc(size_bytes, 0)
    assert handle is not None
    return handle


def test_results_of_a_compiled_region_take_recorded_blocks() -> None:
    """GIVEN a recorded call with a temporary block and a lasting block WHEN the call is replayed THEN its result takes the
    lasting block. The peak is 1024 + 2048 bytes, as recorded."""
    device = allocator()
    memory = RegionMemory(device, 0)
    with memory.uncounted(workspaces=False):
        intermediate, result = taken(device, 4096), taken(device, 2000)
        assert allocated(device) == 0
        device.free(intermediate)
    memory.play([BlockRequest(1024, 0, False, 0), BlockRequest(2048, 1, True, 0), BlockRequest(-1024, 0, False, 0)])
    assert memory.end() == []
    assert (allocated(device), device.flush().usage.peak_allocated_bytes) == (2048, 3072)
    assert result.size_bytes == 2000
    result.allocator.free(result)
    assert allocated(device) == 0


def test_saved_tensors_are_freed_in_the_recorded_order() -> None:
    """GIVEN saved tensors of 1 MiB and 2 MiB WHEN the recorded call frees 2 MiB, allocates 2 MiB, and then frees 1 MiB THEN
    the peak is 3 MiB."""
    device = allocator()
    saved = [taken(device, MIB), taken(device, 2 * MIB)]
    memory = RegionMemory(device, 0)
    with memory.uncounted(workspaces=False):
        taken(device, 2 * MIB)
        for handle in saved:
            device.free(handle)
    assert allocated(device) == 3 * MIB
    memory.play([BlockRequest(-2 * MIB, None, False, 0), BlockRequest(2 * MIB, 0, True, 0), BlockRequest(-MIB, None, False, 0)])
    memory.end()
    assert (allocated(device), device.flush().usage.peak_allocated_bytes) == (2 * MIB, 3 * MIB)


def test_a_result_that_replaces_its_input_takes_the_block_of_the_input() -> None:
    """GIVEN a recorded call without requests WHEN the replayed call frees an input of 512 bytes and returns 512 bytes THEN 512
    bytes remain allocated."""
    device = allocator()
    source = taken(device, 512)
    memory = RegionMemory(device, 0)
    with memory.uncounted(workspaces=False):
        result = taken(device, 512)
        device.free(source)
    memory.end()
    assert (allocated(device), result.address) == (512, source.address)


def test_recorded_memory_blocks_without_a_tensor_are_kept_until_the_backward_pass() -> None:
    """GIVEN a forward pass that leaves 1024 bytes without a tensor WHEN the backward pass frees 1024 bytes THEN no memory
    remains allocated."""
    device = allocator()
    forward = RegionMemory(device, 0)
    forward.play([BlockRequest(1024, 0, True, 0)])
    kept = forward.end()
    assert allocated(device) == 1024
    backward = RegionMemory(device, 0, kept)
    backward.play([BlockRequest(-1024, None, False, 0)])
    assert allocated(device) == 0
    assert backward.end() == []


def test_a_block_may_be_up_to_1_mib_larger_than_the_request() -> None:
    """PyTorch leaves up to 1 MiB of a large block unsplit. So a block of 2.875 MiB may be for a request of 2 MiB, but not of
    1.5 MiB."""
    device = allocator()
    memory = RegionMemory(device, 0)
    with memory.uncounted(workspaces=False):
        small, large = taken(device, 3 * MIB // 2), taken(device, 2 * MIB)
    memory.play([BlockRequest(23 * MIB // 8, 0, True, 0)])
    assert allocated(device) == 2 * MIB
    assert large.address < small.address  # The tensor `small` has no block on the device.


def test_cublas_workspaces_count_as_memory_except_in_cuda_graphs() -> None:
    device = allocator()
    memory = RegionMemory(device, 0)
    with memory.uncounted(workspaces=False):
        device.malloc_kept(512, 0)
    assert allocated(device) == 512
    with memory.uncounted(workspaces=True):
        device.malloc_kept(512, 0)
    assert allocated(device) == 512


def test_a_recorded_cublas_workspace_is_not_allocated_a_second_time() -> None:
    """GIVEN a recorded call that kept a cuBLAS workspace of 8 MiB and two blocks of 512 bytes and 8 MiB. WHEN the replay
    allocates its own workspaces THEN it takes only the two blocks."""
    device = allocator()
    memory = RegionMemory(device, 0, workspaces=(8 * MIB,))
    memory.play([BlockRequest(8 * MIB, 0, True, 1), BlockRequest(512, 1, True, 1), BlockRequest(8 * MIB, 2, True, 1)])
    assert allocated(device) == 512 + 8 * MIB
    assert len(memory.end()) == 2


def test_other_threads_allocate_memory_while_a_thread_runs_a_compiled_function() -> None:
    """GIVEN a thread that runs a compiled function WHEN another thread allocates 512 bytes THEN the device counts them. A
    second compiled function waits until the first one has ended."""
    device = allocator()
    entered = Event()

    def train() -> int:
        other = taken(device, 512)
        counted = allocated(device)
        device.free(other)
        entered.set()
        with RegionMemory(device, 0).uncounted(workspaces=False):
            return counted

    with ThreadPoolExecutor(1) as threads:
        with RegionMemory(device, 0).uncounted(workspaces=False):
            done = threads.submit(train)
            assert entered.wait(10) and allocated(device) == 0
            assert not done.done()
        assert done.result(10) == 512
    assert taken(device, 512).allocator is device
