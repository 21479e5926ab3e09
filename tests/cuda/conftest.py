"""Provides the simulated device as a fixture. Without the device, tests are skipped, or fail in continuous integration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MISSING = "the simulated CUDA device is not built: run `make test-cuda`"


@pytest.fixture(scope="session")
def device() -> Path:
    """Return the script that runs a command on the device. `make test-cuda` sets SIMULATED_DEVICE to its path."""
    named = os.environ.get("SIMULATED_DEVICE")
    if named and Path(named).exists():
        return Path(named)
    if os.environ.get("REQUIRE_SIMULATED_DEVICE"):
        pytest.fail(MISSING)
    pytest.skip(MISSING)


OnDevice = Callable[..., Any]


@pytest.fixture
def on_device(device: Path, tmp_path: Path) -> OnDevice:
    """Return a function that runs Python code on the device and returns what the code passes to `answer`. Settings are
    environment variables."""

    def run(code: str, **settings: str) -> Any:
        (tmp_path / "log").mkdir(exist_ok=True)
        file = tmp_path / "answer.json"
        prelude = f"import json, torch\ndef answer(value): open({str(file)!r}, 'w').write(json.dumps(value))\n"
        environment = dict(os.environ, SIMGPU_LOG=str(tmp_path / "log")) | settings
        done = subprocess.run(
            [str(device), sys.executable, "-c", prelude + code], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(file.read_text())

    return run
