"""Runs the tests of patched torch in forks of one warm interpreter that has the surfaces installed (see warm.py).

These tests are all tests in the folders `WARM_FOLDERS`, and the tests marked `warm`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WARM_FOLDERS = (HERE / "surfaces", HERE / "tensor", HERE / "ops")


class Warm:
    """Controls the warm interpreter, which is started at the first test that needs it."""

    def __init__(self, python: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        self._process = subprocess.Popen(
            [python, str(HERE / "warm.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            text=True,
        )

    def run(self, file: Path, test: str, arguments: dict[str, object]) -> str:
        """Return the traceback of a failed test, or "" for a passed test."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"file": str(file), "test": test, "arguments": arguments}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        failure: str = json.loads(answer) if answer else "the interpreter with the surfaces ended; see its stderr above"
        return failure

    def stop(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    # SURFACES_PYTHON is another interpreter for checking the surfaces, for example one with a CUDA build of torch.
    warm = Warm(os.environ.get("SURFACES_PYTHON", sys.executable))
    yield warm
    warm.stop()


def _is_warm(item: pytest.Function) -> bool:
    return any(item.path.is_relative_to(folder) for folder in WARM_FOLDERS) or item.get_closest_marker("warm") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and _is_warm(item):
            item.fixturenames.append("warm")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not _is_warm(pyfuncitem):
        return None
    arguments = dict(pyfuncitem.callspec.params) if hasattr(pyfuncitem, "callspec") else {}
    interpreter = pyfuncitem.funcargs["warm"]
    assert isinstance(interpreter, Warm)
    failure = interpreter.run(pyfuncitem.path, pyfuncitem.originalname, arguments)
    if failure:
        raised, _, reason = failure.strip().rpartition("\n")[2].partition(": ")
        if raised == "Skipped":
            pytest.skip(reason)
        pytest.fail(failure, pytrace=False)
    return True
