"""Computes the size of the workspace that PyTorch allocates for a cuBLAS handle.

    keeps_workspaces((2, 13), is_amd=False)     # True
    workspace_bytes(8, None, (2, 13))           # 8_519_680 on devices of compute capability 8.x
    workspace_bytes(8, None, (2, 13), ":4096:2")    # 8_388_608, set by CUBLAS_WORKSPACE_CONFIG

Source: aten/src/ATen/cuda/CublasHandlePool.cpp in PyTorch. From PyTorch 2.0 to 2.14, PyTorch keeps one workspace per cuBLAS
handle and stream. Since PyTorch 2.15, each matrix product allocates and frees its own workspace. Since PyTorch 2.6, PyTorch
also keeps workspaces for hipBLAS (AMD GPUs). Measurements show that cuBLASLt has its own workspace of 1 MiB in PyTorch 2.11,
and shares the workspace of cuBLAS since PyTorch 2.12.
"""

from __future__ import annotations

import re

_KEPT_SINCE, _KEPT_SINCE_WITH_HIP, _KEPT_BEFORE = (2, 0), (2, 6), (2, 15)
_DEFAULT_BYTES = (2 * 4096 + 8 * 16) << 10
_LARGE_BYTES = 32 << 20  # used on Hopper, and on Blackwell since PyTorch 2.12
_LT_BYTES, _LT_RELEASES = 1 << 20, ((2, 11),)
_ROCM_BYTES, _ROCM_LARGE_BYTES = 32 << 20, 128 << 20

Release = tuple[int, int]


def keeps_workspaces(release: Release | None, is_amd: bool) -> bool:
    return release is not None and (_KEPT_SINCE_WITH_HIP if is_amd else _KEPT_SINCE) <= release < _KEPT_BEFORE


def lt_workspace_bytes(release: Release | None, is_amd: bool) -> int:
    """Return the bytes of temporary memory that PyTorch keeps per CUDA stream for the library cuBLASLt."""
    return _LT_BYTES if release in _LT_RELEASES and not is_amd else 0


def configured_bytes(text: str) -> int | None:
    """Return the size that a value of the environment variable CUBLAS_WORKSPACE_CONFIG gives, or None if the value is invalid.
    ":4096:2:16:8" means two buffers of 4096 KiB and eight buffers of 16 KiB."""
    pieces = re.findall(r":([0-9]+):([0-9]+)", text)
    return sum((int(size) << 10) * int(count) for size, count in pieces) if pieces else None


def workspace_bytes(major: int, amd: str | None, release: Release | None, configured: str | None = None) -> int:
    """Return the size of one cuBLAS workspace in bytes. On AMD GPUs, `amd` is the architecture, such as "gfx942". `configured`
    is the environment variable CUBLAS_WORKSPACE_CONFIG."""
    own_bytes = configured_bytes(configured or "")
    if own_bytes is not None:
        return own_bytes
    if amd and amd.startswith("gfx"):  # on NVIDIA GPUs, `amd` contains the device name instead
        return _ROCM_LARGE_BYTES if amd.startswith(("gfx94", "gfx95")) else _ROCM_BYTES
    is_large = major == 9 or (major in (10, 11, 12) and (release is None or release >= (2, 12)))
    return _LARGE_BYTES if is_large else _DEFAULT_BYTES
