"""Tests that cuBLAS workspaces have the sizes that PyTorch's CUDABlas.cpp and CublasHandlePool.cpp set."""

from __future__ import annotations

import pytest

from traces.names.cublas_workspace import Release, keeps_workspaces, lt_workspace_bytes, workspace_bytes

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("release", "nvidia", "amd"),
    [
        ((1, 13), False, False), ((2, 0), True, False), ((2, 5), True, False), ((2, 6), True, True), ((2, 14), True, True),
        ((2, 15), False, False), (None, False, False),
    ],
)  # fmt: skip
def test_the_torch_release_decides_whether_cublas_workspaces_are_kept(release: Release | None, nvidia: bool, amd: bool) -> None:
    assert (keeps_workspaces(release, is_amd=False), keeps_workspaces(release, is_amd=True)) == (nvidia, amd)


@pytest.mark.parametrize(
    ("major", "release", "size"),
    [
        (8, (2, 14), 8320 * KIB), (9, (2, 0), 32 * MIB), (10, (2, 11), 8320 * KIB), (10, (2, 12), 32 * MIB),
        (12, None, 32 * MIB), (13, (2, 14), 8320 * KIB),
    ],
)  # fmt: skip
def test_the_default_workspace_size_depends_on_the_compute_capability(major: int, release: Release | None, size: int) -> None:
    assert workspace_bytes(major, None, release) == workspace_bytes(major, "NVIDIA A100", release) == size


def test_the_workspace_size_depends_on_amd_gpus_and_on_cublas_workspace_config() -> None:
    assert [workspace_bytes(9, name, (2, 10)) for name in ("gfx90a", "gfx942", "gfx950")] == [32 * MIB, 128 * MIB, 128 * MIB]
    assert workspace_bytes(9, None, None, ":4096:2:16:8") == (2 * 4096 + 8 * 16) * KIB
    assert workspace_bytes(9, "gfx942", None, ":16:3") == 48 * KIB
    assert workspace_bytes(8, None, None, "anything") == workspace_bytes(8, None, None, "") == 8320 * KIB


def test_only_torch_2_11_keeps_a_workspace_for_cublaslt_on_nvidia_gpus() -> None:
    kept = [lt_workspace_bytes(release, is_amd=False) for release in ((2, 10), (2, 11), (2, 12), None)]
    assert kept == [0, MIB, 0, 0] and lt_workspace_bytes((2, 11), is_amd=True) == 0
