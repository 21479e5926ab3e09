"""Provides the fixtures and options of all tests, and marks the tests that only `make test-all` runs.

Tests that need real recordings are skipped if the recordings are missing. If TRACE_REQUIRE_SHARED is set (continuous
integration), these tests fail. Tests in WHOLE_PROGRAMS and LONG are marked `program`: `make test` leaves them out, `make
test-all` runs them. `make test` does not import tests/cuda, whose tests need the simulated device. Tests marked slow run only
with `--slow`. `make test` tries 25 examples of each property, and `make test-all` tries 100.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

WHOLE_PROGRAMS = ("tests/e2e/", "tests/zoo/", "tests/scripts/", "tests/faults/test_reliability.py")
LONG = (  # each of these files needs seconds of processor time; short tests check the same functions
    "tests/replayer/ops/test_layer_groups.py",
    "tests/replayer/tensor/test_operation_groups.py",
    "tests/test_studies.py",
    "tests/traces/chrome/test_hta.py",
    "tests/tui/view/test_sessions.py",
)
ON_DEVICE = ("tests/cuda/",)

# If nohup or a background shell starts the tests, they and their child processes ignore signals.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


MOST_COMPUTING_S = 40  # a test that needs more processor time has an endless loop

# The duration of an example depends on the load of the machine, so there is no deadline.
settings.register_profile("trace", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("trace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that are marked slow, like `make test-slow`")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files in which all tests are deselected."""
    no_programs, no_device = (f"not {marker}" in config.option.markexpr for marker in ("program", "cuda"))
    left_out = (WHOLE_PROGRAMS + LONG) * no_programs + ON_DEVICE * no_device
    return collection_path.as_posix().endswith(tuple(of.rstrip("/") for of in left_out)) or None


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collections, so that tests run faster."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(WHOLE_PROGRAMS + LONG):
            item.add_marker("program")
    # An error is found early if small tests come first. The order is stable, so the tests of a file stay together.
    items.sort(key=lambda item: any(item.get_closest_marker(long) for long in ("program", "slow")))
    if config.getoption("--slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


class EndlessLoop(BaseException):
    """Means that a short test used MOST_COMPUTING_S of processor time. Hypothesis repeats a test after an Exception, but not
    after this BaseException."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    def stop(_number: int, _frame: object) -> None:
        raise EndlessLoop(f"the test computed for {MOST_COMPUTING_S} s")

    if any(item.get_closest_marker(long) for long in ("program", "slow", "real_time", "cuda")):
        return (yield)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_COMPUTING_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


SHARED_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
_LARGE_BYTES = 400_000


def recordings(names: Iterable[str]) -> list[Any]:
    """Return the parameters of a test on real recordings. Only `make test-all` runs the test on large recordings."""
    large = {path.name.removesuffix(".json.gz") for path in SHARED_TRACES.glob("*.gz") if path.stat().st_size > _LARGE_BYTES}
    return [pytest.param(name, marks=[pytest.mark.program] if name in large else []) for name in names]


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Return the folder of real recordings next to the checkout. Skip the test if the folder is missing."""
    if not (SHARED_TRACES / "INDEX.md").exists():
        missing = "the real recordings (../shared/traces) are not beside this checkout"
        if os.environ.get("TRACE_REQUIRE_SHARED"):
            pytest.fail(missing)
        pytest.skip(missing)
    return SHARED_TRACES
