"""sys.excepthook: an error that comes of a package asking for NVIDIA's driver is followed by a line that says what a replay is.

    AssertionError: libcuda.so cannot found!
    trace: triton asked for NVIDIA's driver, its libraries or device memory. A replay has none of them: ...

The error itself is the package's own and stays as it is; what the script catches it sees unchanged.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import TracebackType

from traces.patching import patch

# What drivers, CUDA's runtime and C++ extensions say where there is no GPU or a tensor is not on one.
_OF_DRIVER = re.compile(
    r"lib(?:cu\w+|torch_cuda|c10_cuda|nccl|nvrtc)\.so|libnvidia-ml|CUDA_HOME|NVIDIA driver|CUDA driver"
    r"|no CUDA-capable device|cuInit|CUDA_ERROR_|cudaError"
    r"|must be (?:a |on )?(?:CUDA|GPU)|\bCUDA tensor|is_cuda\b|Pointer argument .* cannot be accessed from Triton",
    re.IGNORECASE,
)
_NOT_TO_BLAME = {"torch", "replayer", "traces", "tracer", "trace_replay"}


def install() -> None:
    """Wrap the hook that is there; one that the script sets later replaces it."""
    before = sys.excepthook

    def after_driver_errors(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        before(kind, error, frames)
        if _OF_DRIVER.search(str(error)) and not str(error).startswith("CUDA error"):
            print(
                f"trace: {package_of(frames)} asked for NVIDIA's driver, its libraries or device memory. A replay has none of"
                " them: the GPU is a recording, and its tensors have no contents. Leave this part out, or run its CPU code.",
                file=sys.stderr,
            )

    patch(sys, excepthook=after_driver_errors)


def package_of(frames: TracebackType | None) -> str:
    """The innermost installed package of a traceback, torch and ours left out."""
    found = "a C++ or CUDA extension"
    while frames is not None:
        parts = Path(frames.tb_frame.f_code.co_filename).parts
        if "site-packages" in parts:
            name = parts[parts.index("site-packages") + 1].removesuffix(".py")
            found = found if name in _NOT_TO_BLAME else name
        frames = frames.tb_next
    return found
