# mypy: allow-untyped-calls
"""Tests that the cuBLAS workspaces that PyTorch keeps count in memory_allocated, as on a GPU. The tests run in the warm
interpreter (see warm.py)."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from replayer.memory.cublas_workspaces import BlasWorkspaces
from tests.replayer.fake_gpu import SurfaceGpu, use
from traces.model.machine import Machine

pytestmark = pytest.mark.warm

MIB = 1 << 20
USUAL_BYTES = 8_519_680  # 8 519 680 bytes are 8.125 MiB.
CUDA = Machine(torch="2.13.0+cu126", cuda="12.6")


def keeping(devices: int = 1, major: int = 8, **changes: Any) -> SurfaceGpu:
    gpu = use(devices=devices)
    gpu.blas = BlasWorkspaces(replace(CUDA, **changes), [major] * devices)
    return gpu


def held(device: int = 0) -> int:
    """Return the bytes of live blocks that belong to no tensor."""
    return torch.cuda.memory_allocated(device)


def multiply(device: str = "cuda") -> None:
    torch.ones(4, 4, device=device) @ torch.ones(4, 4, device=device)


def test_the_first_matrix_product_allocates_the_workspace_and_later_ones_reuse_it() -> None:
    keeping()
    torch.ones(4, device="cuda") * 2
    assert held() == 0
    for _ in range(3):
        multiply()
        assert held() == USUAL_BYTES
    torch.bmm(torch.ones(2, 3, 3, device="cuda"), torch.ones(2, 3, 3, device="cuda"))
    assert held() == USUAL_BYTES
    assert torch.cuda.memory_reserved() == 22 * MIB


def test_pytorch_2_11_keeps_one_mib_more_at_the_first_product_with_a_bias() -> None:
    """The kept sizes were measured with PyTorch 2.11 and 2.12."""
    half = partial(torch.ones, device="cuda", dtype=torch.float16)
    for torch_release, more_bytes in (("2.11.0+cu130", MIB), ("2.12.1+cu130", 0)):
        keeping(torch=torch_release)
        left, right, bias = half(8, 16), half(16, 32), half(32)
        start = held()
        torch.addmm(bias, left, right, beta=0.5)
        torch.addmm(half(8, 32), left, right)
        torch.addmm(bias[:1], left, right)
        assert held() - start == USUAL_BYTES
        for _ in range(2):
            torch.addmm(bias, left, right)
            assert held() - start == USUAL_BYTES + more_bytes
        torch._C._cuda_clearCublasWorkspaces()
        assert held() == start


def test_training_needs_a_second_cublas_workspace_for_the_autograd_thread() -> None:
    """On GPUs before Hopper, training keeps two workspaces with a total of 16.25 MiB."""
    keeping()
    model = torch.nn.Linear(4, 4, device="cuda")
    for _ in range(2):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        model.zero_grad()
    del model
    assert held() == 2 * USUAL_BYTES == 17_039_360


def test_compiled_autograd_uses_the_cublas_workspace_of_the_calling_thread() -> None:
    keeping()
    with pytest.MonkeyPatch.context() as patch:
        running = SimpleNamespace(in_compiled_autograd_region=True)
        patch.setitem(sys.modules, "torch._dynamo.compiled_autograd", running)
        torch.nn.Linear(4, 4, device="cuda")(torch.ones(2, 4, device="cuda")).sum().backward()
    assert held() == USUAL_BYTES


def test_the_fast_path_of_a_transformer_encoder_allocates_a_cublas_workspace() -> None:
    keeping()
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, device="cuda").eval()
    with torch.inference_mode():
        layer(torch.ones(2, 4, 8, device="cuda"))
    del layer
    assert held() == USUAL_BYTES


def test_ops_that_call_matrix_products_in_cpp_allocate_a_cublas_workspace() -> None:
    keeping()
    left, right = torch.ones(30, 4, device="cuda"), torch.ones(2, 4, device="cuda")
    torch.cdist(right, right)  # with 25 or fewer rows, `cdist` computes no matrix product
    start = held()
    torch.cdist(left, right)
    assert held() - start == USUAL_BYTES


def test_ops_with_two_results_or_a_wait_also_allocate_a_cublas_workspace() -> None:
    """The fast path of multi-head attention returns two tensors. In PyTorch 2.13, `matrix_exp` waits for the GPU."""
    keeping()
    matrix, attention = torch.eye(4, device="cuda"), torch.nn.MultiheadAttention(8, 2, batch_first=True, device="cuda").eval()
    words = torch.ones(2, 3, 8, device="cuda")

    def attend() -> None:
        with torch.inference_mode():
            attention(words, words, words)

    for call in (lambda: torch.linalg.matrix_exp(matrix), attend):
        torch._C._cuda_clearCublasWorkspaces()
        start = held()
        call()
        assert held() - start == USUAL_BYTES


def test_an_op_with_a_recorded_matrix_product_allocates_a_cublas_workspace() -> None:
    """GIVEN a recording in which PyTorch computed convolutions as matrix products, because cuDNN did not support the
    convolutions."""
    gpu = keeping()
    inputs, weight = torch.ones(1, 3, 8, 8, device="cuda"), torch.ones(2, 3, 3, 3, device="cuda", requires_grad=True)
    start = held()
    torch.conv2d(inputs, weight[:1])
    assert held() == start
    gpu.ops_with_products = frozenset({"aten::convolution", "aten::convolution_backward"})
    torch.conv2d(inputs, weight).sum().backward()
    weight.grad = None
    assert held() - start == 2 * USUAL_BYTES


def test_each_live_thread_has_a_workspace_on_each_stream() -> None:
    keeping(devices=2)
    multiply()
    with torch.cuda.stream(torch.cuda.Stream()):
        multiply()
    assert held(0) == 2 * USUAL_BYTES
    for _ in range(3):  # Threads that run one after another use the same cuBLAS handle.
        thread = threading.Thread(target=multiply, args=("cuda:1",))
        thread.start()
        thread.join()
    assert held(1) == USUAL_BYTES
    multiply("cuda:1")  # The last thread has ended, so its cuBLAS handle is free.
    assert held(1) == USUAL_BYTES


def test_workspaces_can_be_freed() -> None:
    keeping()
    multiply()
    c: Any = torch._C
    c._cuda_clearCublasWorkspaces()
    assert held() == 0
    multiply()
    assert held() == USUAL_BYTES


@pytest.mark.parametrize(("text", "size_bytes"), [(":4096:8", 32 * MIB), (":16:8:4096:2", USUAL_BYTES), (":0:0", 0)])
def test_an_environment_variable_sets_the_size_of_cublas_workspaces(text: str, size_bytes: int) -> None:
    keeping(major=9)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = text  # This test runs in a separate process, so the variable changes no other test.
    multiply()
    assert held() == size_bytes


def test_an_invalid_environment_variable_is_reported() -> None:
    keeping()
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = "4096"
    with pytest.warns(UserWarning, match="CUBLAS_WORKSPACE_CONFIG=4096"):
        multiply()
    assert held() == USUAL_BYTES


def test_the_script_can_set_the_workspace_size() -> None:
    keeping()
    blas: Any = torch.backends.cuda
    assert blas.cublas_workspace_size() == USUAL_BYTES == blas.cublaslt_workspace_size()
    multiply()
    assert blas.cublas_workspace_size(16 * MIB) == 16 * MIB
    assert held() == USUAL_BYTES  # The new size applies only from the next matrix product.
    multiply()
    assert held() == 16 * MIB
    blas.cublas_workspace_size(MIB)
    multiply()
    assert held() == 16 * MIB  # The larger workspace is also used for the smaller size.


def test_a_matrix_product_runs_out_of_memory_if_its_workspace_does_not_fit() -> None:
    gpu = keeping()
    kept = torch.empty((16 << 30) - 6 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
        multiply()
    assert gpu.launched[-1] == "mm"
    del kept


@pytest.mark.parametrize(
    ("torch_version", "major", "size_bytes"),
    [
        ("2.10.0+cu128", 8, USUAL_BYTES),
        ("2.10.0+cu128", 9, 32 * MIB),
        ("2.11.0+cu128", 10, USUAL_BYTES),
        ("2.12.1+cu130", 12, 32 * MIB),
        ("2.9.1+cu128", 9, 32 * MIB),
        ("2.0.1+cu118", 8, USUAL_BYTES),
        ("1.12.1+cu116", 8, 0),
        ("2.14.1+cu130", 9, 32 << 20),
        ("2.15.0+cu130", 9, 0),
        ("1.13 to 2.3", 8, 0),
    ],
)
def test_the_torch_release_and_the_gpu_decide_whether_workspaces_are_kept(
    torch_version: str, major: int, size_bytes: int
) -> None:
    keeping(major=major, torch=torch_version)
    multiply()
    multiply()
    assert held() == size_bytes


@pytest.mark.parametrize(("cuda", "hip", "torch_version"), [(None, None, "2.13.0+cpu"), (None, "6.2", "2.5.1+rocm6.2")])
def test_cpu_builds_of_torch_keep_no_workspaces(cuda: str | None, hip: str | None, torch_version: str) -> None:
    keeping(cuda=cuda, hip=hip, torch=torch_version)
    multiply()
    assert held() == 0


def test_cublas_workspaces_are_kept_after_use_on_rocm() -> None:
    gpu = use()
    gpu.blas = BlasWorkspaces(Machine(torch="2.9.0+rocm6.4", hip="6.4"), [9], ["gfx942:sramecc+:xnack-"])
    multiply()
    assert held() == 128 * MIB


def test_amd_gpus_have_different_workspace_sizes() -> None:
    workspaces = BlasWorkspaces(Machine(hip="6.4"), [9, 9, 9], ["gfx942", "gfx90a", None])
    assert [workspaces.size_bytes(device) for device in range(3)] == [128 << 20, 32 << 20, 32 << 20]
    assert not workspaces.kept
