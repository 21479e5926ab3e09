"""What is said after an error of a package that asks for NVIDIA's driver."""

from __future__ import annotations

import sys

import pytest

from replayer.surfaces import sys_excepthook


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *error: None)
    sys_excepthook.install()


def _raised_in(path: str, text: str) -> BaseException:
    try:
        exec(compile(f"raise RuntimeError({text!r})", path, "exec"), {})
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.usefixtures("hook")
def test_the_package_is_named_that_asks_for_the_driver(capsys: pytest.CaptureFixture[str]) -> None:
    for path, text, name in (
        ("/x/site-packages/triton/backends/driver.py", "libcuda.so cannot found!", "triton"),
        ("/home/me/train.py", "x must be a CUDA tensor", "a C++ or CUDA extension"),
    ):
        error = _raised_in(path, text)
        sys.excepthook(type(error), error, error.__traceback__)
        assert capsys.readouterr().err.startswith(f"trace: {name} asked for NVIDIA's driver or for device memory.")


@pytest.mark.usefixtures("hook")
def test_other_errors_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    error = _raised_in("/home/me/train.py", "my own error")
    sys.excepthook(type(error), error, error.__traceback__)
    assert capsys.readouterr().err == ""
