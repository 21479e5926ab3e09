"""What all tests share: where the real recordings are, and that signals do what they usually do.

Without the recordings a run skips what needs them; where TRACE_REQUIRE_SHARED is set (continuous integration), it fails.
Tests started by nohup or in the background would ignore signals, and so would each process that they start and interrupt.
What is marked slow runs on demand only, with `--slow`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


# A property is no measurement: how long an example takes depends on what else the machine does.
settings.register_profile("trace", deadline=None)
settings.load_profile("trace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run what is marked slow, as `make test-slow` does")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


SHARED_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real recordings that lies beside the checkout; tests that need it skip without it."""
    if not (SHARED_TRACES / "INDEX.md").exists():
        missing = "the real recordings (../shared/traces) are not beside this checkout"
        if os.environ.get("TRACE_REQUIRE_SHARED"):
            pytest.fail(missing)
        pytest.skip(missing)
    return SHARED_TRACES
