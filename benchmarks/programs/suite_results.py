"""A pytest plugin of benchmarks/suites.py. The plugin writes the start and the result of each test to a file, and can run a
sample of the tests.

    SUITE_RESULTS=results.jsonl SUITE_SAMPLE=300 python -m pytest -p suite_results tests/

Each line is flushed immediately, so that the file names the running test if the process dies. Tests with a result in the file
are not run again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

_RESULTS = Path(os.environ["SUITE_RESULTS"])
_SAMPLE = int(os.environ.get("SUITE_SAMPLE", "0"))
_MESSAGE_LENGTH = 600


def write(line: dict[str, Any]) -> None:
    with _RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Run the code that makes a test suite use the GPU, after the plugin has started the virtual GPU."""
    exec(os.environ.get("SUITE_SETUP", ""), {})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the same sample of tests in every run, without tests that have a result."""
    known = {json.loads(line)["test"] for line in _RESULTS.read_text().splitlines()} if _RESULTS.exists() else set()
    kept = sorted(items, key=_hash)[:_SAMPLE] if _SAMPLE else items
    wanted = {item.nodeid for item in kept} - known
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
    items[:] = [item for item in items if item.nodeid in wanted]


def _hash(item: pytest.Item) -> bytes:
    return hashlib.sha1(item.nodeid.replace("cuda", "cpu").replace("CUDA::", "CPU::").encode()).digest()


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write({"test": report.nodeid, "collection": "error", "message": str(report.longrepr)[-_MESSAGE_LENGTH:]})


def pytest_runtest_logstart(nodeid: str) -> None:
    write({"test": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    line = {"test": report.nodeid, "outcome": report.outcome, "when": report.when, "seconds": round(report.duration, 2)}
    if hasattr(report, "wasxfail"):
        line["xfail"] = report.wasxfail
    refused = [value for name, value in report.user_properties if name == "virtual GPU"]
    write({**line, "message": text[-_MESSAGE_LENGTH:], "refused": refused})
