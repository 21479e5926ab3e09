"""Tests that a collective has one name, whether Python, C++ code, a profile or a process group names it."""

from __future__ import annotations

import re

import pytest
import torch.distributed as dist

from traces.names.collectives import function_of, is_communication, known_as

_CPP_NAMES = {
    "all_reduce": "allreduce allreduce_ allreduce_coalesced_ all_reduce",
    "barrier": "barrier all_reduce_barrier",
    "broadcast": "broadcast_ broadcast_oop _broadcast_oop",
    "reduce": "reduce_ reduce_oop _reduce_oop",
    "all_gather": "allgather allgather_coalesced all_gather",
    "all_gather_into_tensor": "_allgather_base _all_gather_base all_gather_single allGatherSingleImpl"
    " all_gather_single_coalesced allgather_into_tensor_coalesced all_gather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter reduce_scatter_",
    "reduce_scatter_tensor": "_reduce_scatter_base reduce_scatter_single reduceScatterSingleImpl"
    " reduce_scatter_tensor_coalesced",
    "all_to_all": "alltoall alltoall_ all_to_all",
    "all_to_all_single": "alltoall_base all_to_allv allToAllSingleImpl all_to_all_single",
    "gather": "gather_ gatherImpl gather_single",
    "send": "send isend",
    "recv": "recv irecv recv_",
    "scatter": "scatter_ scatterImpl",
}  # fmt: skip


@pytest.mark.parametrize(("function", "names"), _CPP_NAMES.items())
def test_each_name_of_a_collective_in_cpp_code_belongs_to_one_function_of_torch_distributed(function: str, names: str) -> None:
    assert {known_as(name) for name in names.split()} == {function} and callable(getattr(dist, function))


def test_every_collective_of_a_process_group_is_named_after_a_function_of_torch_distributed() -> None:
    """GIVEN the collectives among the methods of PyTorch's ProcessGroup THEN all have the name of a Python function."""
    pattern = re.compile("_?[a-z].*(all|reduce|gather|scatter)|_?(all|reduce)")
    methods = list(filter(pattern.match, dir(dist.ProcessGroup)))
    assert len(methods) > 12 and [name for name in methods if not hasattr(dist, known_as(name))] == []


def test_the_backend_stands_before_the_name_of_a_collective() -> None:
    """GIVEN names of profiler ranges THEN NCCL's second implementation counts as NCCL, and other names are no collectives."""
    assert function_of("nccl:_all_gather_base") == ("nccl", "all_gather_into_tensor")
    assert function_of("nccl2:allreduce") == ("nccl", "all_reduce") and function_of("gloo:send 0->1") == ("gloo", "send")
    assert function_of("aten::gather") == ("", "") and function_of("barrier") == ("", "")


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)", True),
        ("void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)", True),
        ("void (anonymous namespace)::all_gather_kernel<float>(float*)", True),
        ("void blockAllReduce<float>(float*)", False),
        ("void warp_all_reduce<float>(float*)", False),
        ("void at::native::reduce_kernel<512, 1, ReduceScatter>(int)", False),  # arguments of a template do not count
    ],
)
def test_a_kernel_communicates_if_its_name_before_the_template_names_a_collective(kernel: str, expected: bool) -> None:
    assert is_communication(kernel) is expected
