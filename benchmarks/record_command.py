"""The command that records a script without the command line of `trace`, whose packages a rented machine may lack."""

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
    """The command for this checkout and this Python. `asked` has the fields of RecordOptions."""
    return [sys.executable, "-c", _RECORD, str(ROOT), json.dumps(asked)]
