"""Contains a fixture that reads a real recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from traces.kineto import read_kineto
from traces.model.trace import Trace


@pytest.fixture(scope="package")
def real(shared_traces: Path) -> Trace:
    return read_kineto(shared_traces / "v100_resnet50_workers0.json.gz")
