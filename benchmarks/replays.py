"""Runs `trace replay` for other benchmarks.

    run_replay("--trace", "v100.msgpack", "train.py")       # what the script printed
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_replay(*words: str, python: str = sys.executable) -> str:
    """Run `trace replay` with these arguments in the root of the repository, and return what the script printed. Raises
    RuntimeError if the exit code is not 0."""
    command = [python, "-m", "trace_replay", "replay", *words]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the replay failed with exit code {done.returncode}:\n{done.stderr.strip()[-3000:]}")
    return done.stdout
