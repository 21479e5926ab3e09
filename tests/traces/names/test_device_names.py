"""Tests that copies and runtime calls are recognized by the names that profilers of several vendors give them."""

from __future__ import annotations

import pytest

from traces.names.device_names import GRAPH_LAUNCHES, LAUNCH_CALL, STARTS_WORK, copy_direction


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "h2d"),
        ("Memcpy DtoH (Device -> Host)", "d2h"),
        ("CopyHostToDevice", "h2d"),
        ("Memcpy M2D (MEMORY(Unknown) -> DEVICE)", "h2d"),
        ("Memcpy H2D (HOST -> DEVICE)", "h2d"),
        ("Memcpy D2M (DEVICE -> MEMORY(Unknown))", "d2h"),
        ("Memcpy D2D (DEVICE -> DEVICE)", "d2d"),
        ("Memcpy PtoP (Device -> Device)", "p2p"),
        ("void pooling_D2Max<float>()", ""),
        ("Memset (Device)", ""),
    ],
)
def test_the_direction_of_a_copy_is_read_from_its_name(name: str, direction: str) -> None:
    assert copy_direction(name) == direction


@pytest.mark.parametrize(
    ("kernel", "graph", "copy"),
    [
        ("cudaLaunchKernelExC", "cudaGraphLaunch", "cudaMemcpyAsync"),
        ("cuLaunchKernel", "cuGraphLaunch", "cuMemcpyAsync"),
        ("hipExtModuleLaunchKernel", "hipGraphLaunch", "hipMemsetAsync"),
        ("musaLaunchKernel", "musaGraphLaunch", "musaMemcpyAsync"),
        ("mcModuleLaunchKernel", "mcGraphLaunch", "mcMemcpyAsync"),
        ("urEnqueueKernelLaunch", "urEnqueueCommandBufferExp", ""),
    ],
)
def test_runtime_calls_are_recognized_by_the_names_of_each_vendor(kernel: str, graph: str, copy: str) -> None:
    assert LAUNCH_CALL.match(kernel) and kernel not in GRAPH_LAUNCHES and graph in GRAPH_LAUNCHES
    assert not copy or (STARTS_WORK.match(copy) and not LAUNCH_CALL.match(copy))
