"""Tests that the recorder's profiles cause no warning in the script, and hide none that the script causes later."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import Any

import pytest
import torch

from tracer.device.torch_messages import quiet_profiler

TEXT = "a warning that this test gives"


@pytest.fixture
def torchs_warning() -> Any:
    """Return a function that gives a warning as torch.profiler does, once in a process."""
    profiler: Any = torch.profiler.profiler
    yield lambda: profiler._warn_once(TEXT)
    profiler._WARNINGS_SHOWN.discard(TEXT)


def test_a_warning_shown_by_the_recorder_can_still_be_shown_by_the_script(torchs_warning: Any) -> None:
    """GIVEN a filter that turns warnings into errors WHEN the recorder's profiler warns THEN nothing is raised. Later, the
    script gets the same warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with quiet_profiler(torch, []):
            torchs_warning()
        assert list(warnings.filters) == before
        with pytest.raises(UserWarning, match=TEXT):
            torchs_warning()


def test_a_warning_that_the_script_has_shown_is_not_shown_again(torchs_warning: Any) -> None:
    with pytest.warns(UserWarning, match=TEXT):
        torchs_warning()
    with quiet_profiler(torch, []):
        torchs_warning()
    torchs_warning()  # a shown warning would raise an error, because warnings are errors in this test suite


def test_warnings_that_pytorch_shows_once_still_reach_the_script_while_recording() -> None:
    """PyTorch's C++ code gives this warning once in a process (TORCH_WARN_ONCE in aten/src/ATen/native/TensorShape.cpp)."""
    cube = torch.ones(2, 2, 2)
    with quiet_profiler(torch, []):
        assert cube.T.shape == (2, 2, 2)
    assert not torch.is_warn_always_enabled()
    with pytest.warns(UserWarning, match="other than 2"):
        assert cube.T.shape == (2, 2, 2)


def test_python_remembers_which_warnings_the_script_has_shown() -> None:
    """Under Python's default filter, a line shows a warning only once. If the filters changed, Python would show the warning
    again."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn(TEXT, stacklevel=1)
            with quiet_profiler(torch, []):
                pass
    assert len(shown) == 1


def test_another_thread_can_give_warnings_at_the_same_time() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with quiet_profiler(torch, []):
            thread = threading.Thread(target=lambda: warnings.warn(TEXT, stacklevel=1))
            thread.start()
            thread.join()
            warnings.warn("of this thread", stacklevel=1)
    assert [str(one.message) for one in shown] == [TEXT]


class _WithoutFlush:
    def write(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize("stream", [None, _WithoutFlush()])
def test_a_script_may_replace_stderr_by_an_object_that_cannot_be_flushed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], stream: object
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(sys, "stderr", stream)
    with quiet_profiler(torch, messages):
        os.write(2, b"WARNING:2026-11-25 01:02:03 4711:4711 CuptiActivityApi.cpp:90] no permission\nother line\n")
    assert messages == ["no permission"]
    assert capfd.readouterr().err == "other line\n"


def test_a_script_may_close_the_file_descriptor_of_stderr() -> None:
    saved = os.dup(2)
    os.close(2)
    try:
        with quiet_profiler(torch, []):
            pass
    finally:
        os.dup2(saved, 2)
        os.close(saved)
