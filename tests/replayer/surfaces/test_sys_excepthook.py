"""Tests the message that is printed if a package fails because it needs NVIDIA's driver."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader, IterableDataset

from replayer.surfaces import sys_excepthook
from traces.script.configuration import FAILURE


def _said_after(path: str, text: str, raising: str = "RuntimeError({!r})") -> str:
    """Return the message that is printed after an error in the given file."""
    before, sys.excepthook = sys.excepthook, lambda *error: None
    said = io.StringIO()
    try:
        sys_excepthook.install()
        exec(compile(f"raise {raising.format(text)}", path, "exec"), {})
    except (RuntimeError, ImportError) as error:
        with redirect_stderr(said):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.excepthook = before
    return said.getvalue()


def test_the_message_names_the_package_that_needs_the_driver() -> None:
    in_triton = _said_after("/x/site-packages/triton/backends/driver.py", "libcuda.so cannot found!")
    assert in_triton.startswith("trace: triton asked for NVIDIA's driver, its libraries or device memory.")
    built = "libcudart.so.12: cannot open shared object file: No such file or directory"
    assert _said_after("/x/site-packages/flash_attn/__init__.py", built).startswith("trace: flash_attn asked for NVIDIA's")
    assert "apex asked for" in _said_after("/x/site-packages/apex/amp.py", "libc10_cuda.so: cannot open shared object file")
    in_extension = _said_after("/home/me/train.py", "x must be a CUDA tensor")
    assert in_extension.startswith("trace: a C++ or CUDA extension asked for NVIDIA's driver")
    # The replay raises this error itself, as PyTorch would.
    own = str(Path(sys_excepthook.__file__).parents[1] / "distributed" / "reductions.py")
    assert _said_after(own, "Tensors must be CUDA and dense") == ""


_OF_A_RANK = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "replayer/tensor/device_args.py", line 60, in checked_index
    raise CudaError.INVALID_DEVICE.to_torch()
{}
more of it

"""


def test_the_code_lines_of_a_quoted_traceback_do_not_influence_the_message() -> None:
    # GIVEN errors of a spawned process, and a code line in their traceback that contains "CudaError"
    own = _OF_A_RANK.format("ValueError: my own error")
    cuda = _OF_A_RANK.format("torch.AcceleratorError: CUDA error: cudaErrorX")
    driver = _OF_A_RANK.format("RuntimeError: x must be a CUDA tensor")
    # WHEN the parent raises these errors THEN only an error about the driver is explained
    assert _said_after("/home/me/train.py", own) == _said_after("/home/me/train.py", cuda) == ""
    assert "asked for NVIDIA's driver" in _said_after("/home/me/train.py", driver)
    # THEN the one-line error is the error of the process
    assert sys_excepthook.in_a_line(RuntimeError(own)) == "ValueError: my own error"


def test_the_one_line_error_shows_the_error_of_the_worker_or_the_cause() -> None:
    sent = "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n x\nKeyError: 'a'\n"
    assert sys_excepthook.in_a_line(RuntimeError(sent)) == "KeyError: 'a'"
    assert sys_excepthook.in_a_line(ValueError("no image\nat all")) == "ValueError: no image"
    try:
        raise RuntimeError("worker exited") from OSError("is killed by signal: Killed")
    except RuntimeError as error:
        assert sys_excepthook.in_a_line(error) == "OSError: is killed by signal: Killed"


def test_the_error_about_missing_triton_says_how_to_install_triton() -> None:
    missing = "ModuleNotFoundError('no module', name={!r})"
    assert _said_after("/home/me/train.py", "triton", missing).startswith("trace: this build of PyTorch has no Triton.")
    assert _said_after("/home/me/train.py", "tqdm", missing) == ""


def test_the_error_about_a_missing_gpu_says_how_to_replay_on_more_gpus() -> None:
    missing = "CUDA error: invalid device ordinal\nGPU device may be out of range"
    said = (
        "trace: the script uses a GPU that the virtual machine does not have. The virtual machine has 1 GPU."
        " `trace replay --gpus N` runs a script on N GPUs.\n"
    )
    with mock.patch.object(torch.cuda, "device_count", return_value=1):
        assert _said_after("/home/me/train.py", missing) == said
        assert _said_after("/home/me/train.py", _OF_A_RANK.format(f"torch.AcceleratorError: {missing}")) == said
    assert _said_after("/home/me/train.py", "CUDA error: invalid argument") == ""


def test_errors_unrelated_to_the_driver_get_no_message() -> None:
    assert _said_after("/home/me/train.py", "my own error") == ""


def test_an_uncaught_exception_is_kept_in_a_file_and_an_interrupt_is_printed() -> None:
    printed: list[BaseException] = []
    before, sys.excepthook = sys.excepthook, lambda kind, error, frames: printed.append(error)
    try:
        with TemporaryDirectory() as folder:
            sys_excepthook.install(Path(folder))
            kept = Path(folder) / FAILURE
            sys.excepthook(KeyboardInterrupt, interrupt := KeyboardInterrupt(), None)
            assert printed == [interrupt] and not kept.exists()
            sys.excepthook(ValueError, ValueError("my own error"), None)
            assert printed == [interrupt] and kept.read_text().splitlines() == ["ValueError: my own error"] * 2
        failed = OSError("no folder")
        sys.excepthook(OSError, failed, None)
        assert printed == [interrupt, failed]
    finally:
        sys.excepthook = before


class _Other:
    def __init__(self, dataset: list[int]) -> None:
        raise ValueError("not a loader")


class _Endless(IterableDataset[int]):
    """A data set that has no length."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def _line_of(make: Callable[[], Any]) -> str:
    try:
        make()
    except ValueError as error:
        return sys_excepthook.in_a_line(error)
    raise AssertionError("no error")


def test_the_error_of_a_loader_says_that_its_data_set_is_empty() -> None:
    no_data: list[int] = []
    assert _line_of(lambda: DataLoader(no_data, shuffle=True)).endswith("num_samples=0 (its data set is empty)")  # type: ignore[arg-type]
    for make in (
        lambda: DataLoader([1], num_workers=-1),  # type: ignore[arg-type]
        lambda: DataLoader(_Endless(), shuffle=True),
        lambda: _Other(no_data),
    ):
        assert "is empty" not in _line_of(make)
