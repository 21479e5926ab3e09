"""Builds the command that records a script without using the `trace` command, whose packages may be missing on a rented
machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_RECORD = """
import json, sys
from pathlib import Path
root, asked = sys.argv[1], json.loads(sys.argv[2])
sys.path.insert(0, root)
from tui.commands.record import run
from tui.commands.record_sweep import run_sweep
from tui.options import RecordOptions
options = RecordOptions(asked.pop("script"), Path(asked.pop("output")), **asked)
sys.exit((run_sweep if options.sweep else run)(options))
"""


def record_command(asked: dict[str, Any]) -> list[str]:
    """Return the recording command for this checkout and this Python interpreter. `asked` has the fields of RecordOptions."""
    return [sys.executable, "-c", _RECORD, str(ROOT), json.dumps(asked)]
