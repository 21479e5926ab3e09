"""Explains errors of packages that need NVIDIA's driver, and errors of scripts that need more GPUs.

    AssertionError: libcuda.so cannot found!
    trace: triton asked for NVIDIA's driver, its libraries or device memory. A replay has none of them: ...

The original error is printed unchanged.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from types import TracebackType

from traces.script.configuration import FAILURE
from traces.script.patching import patch
from traces.script.script_hooks import length_of

_OF_DRIVER = re.compile(
    r"lib(?:cu\w+|torch_cuda|c10_cuda|nccl|nvrtc)\.so|libnvidia-ml|CUDA_HOME|NVIDIA driver|CUDA driver"
    r"|no CUDA-capable device|cuInit|CUDA_ERROR_|cudaError"
    r"|must be (?:a |on )?(?:CUDA|GPU)|\bCUDA tensor|is_cuda\b|Pointer argument .* cannot be accessed from Triton",
    re.IGNORECASE,
)
# printed by a failed DataLoader worker
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
_OF_CUDA = re.compile(r"(?:[\w.]+: )?CUDA error")
_NO_SUCH_GPU = re.compile(_OF_CUDA.pattern + ": invalid device ordinal")
_REPLAYER = Path(__file__).resolve().parents[1]
_NOT_TO_BLAME = {"torch", "replayer", "traces", "tracer", "trace_replay"}


def install(keep_in: Path | None = None) -> None:
    """Errors go to a file in the folder `keep_in`, or to stderr."""
    before = sys.excepthook

    def after_driver_errors(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        before(kind, error, frames)
        message = _TRACEBACK.split(str(error))[-1]
        if _OF_DRIVER.search(message) and not _OF_CUDA.match(message) and not _raised_by_the_replay(frames):
            print(
                f"trace: {package_of(frames)} asked for NVIDIA's driver, its libraries or device memory. A replay has none of"
                " them: the GPU is a recording, and its tensors have no contents. Leave this part out, or run its CPU code.",
                file=sys.stderr,
            )
        if _NO_SUCH_GPU.match(message):
            gpus = sys.modules["torch"].cuda.device_count()
            print(
                f"trace: the script uses a GPU that the virtual machine does not have. The virtual machine has {gpus}"
                f" GPU{'s' * (gpus != 1)}. `trace replay --gpus N` runs a script on N GPUs.",
                file=sys.stderr,
            )
        if isinstance(error, ModuleNotFoundError) and error.name == "triton":
            print("trace: this build of PyTorch has no Triton. `pip install triton` adds it, without a GPU.", file=sys.stderr)

    def kept(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        if keep_in is None or not isinstance(error, Exception):
            after_driver_errors(kind, error, frames)
            return
        trace_text = "".join(traceback.format_exception(kind, error, frames))
        try:
            (keep_in / FAILURE).write_text(f"{in_a_line(error)}\n{trace_text}", encoding="utf-8")
        except OSError:
            after_driver_errors(kind, error, frames)

    patch(sys, excepthook=after_driver_errors if keep_in is None else kept)


def _raised_by_the_replay(frames: TracebackType | None) -> bool:
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(frames)]
    return bool(files) and _REPLAYER in Path(files[-1]).parents


def in_a_line(error: BaseException) -> str:
    """Return the first line of an error message. If the error comes from another process, use that process's message."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = "".join(traceback.format_exception_only(cause))
    line = (_TRACEBACK.split(text)[-1].strip() or text).splitlines()[0].strip()
    return f"{line} (its data set is empty)" if _is_of_no_data(error) else line


def _is_of_no_data(error: BaseException) -> bool:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        of = frame.f_locals
        if frame.f_code.co_name == "__init__" and type(of.get("self")).__name__ == "DataLoader":
            return length_of(of.get("dataset")) == 0
    return False


def package_of(frames: TracebackType | None) -> str:
    found = "a C++ or CUDA extension"
    while frames is not None:
        parts = Path(frames.tb_frame.f_code.co_filename).parts
        if "site-packages" in parts:
            name = parts[parts.index("site-packages") + 1].removesuffix(".py")
            found = found if name in _NOT_TO_BLAME else name
        frames = frames.tb_next
    return found
