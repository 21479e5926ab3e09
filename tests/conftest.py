"""What all tests share: where the real recordings are.

Without them a run skips what needs them; where TRACE_REQUIRE_SHARED is set (continuous integration), it fails.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
