"""torch.jit.script compiles what it compiles without us, though functions that it meets have been replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("scripts") / "torchscript.py"
WAYS = {
    "recorded": ["record", "-o", "t.msgpack"],
    "replayed": ["replay", "--trace", "p100-no-cudnn"],
    "computed": ["replay", "--trace", "p100-no-cudnn", "--values", "compute"],
    "both": ["record", "--on", "p100-no-cudnn", "-o", "t.msgpack"],
}
PYTHON = ["-W", "ignore::DeprecationWarning", str(SCRIPT)]


def printed(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> str:
    return printed(*PYTHON, cwd=tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("way", WAYS)
def test_a_script_is_compiled_and_gives_the_same_numbers(tmp_path: Path, native: str, way: str) -> None:
    assert "True torch.Size([])" in native
    assert printed("-m", "tui.cli", *WAYS[way], "--", *PYTHON, cwd=tmp_path) == native
