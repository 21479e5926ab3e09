"""Tests that the commands of docs/ci.md and of action.yml run in a shell."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import sys

import torch
from torch import nn

print(sys.argv[1:])
layers = [nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(4)]
model = nn.Sequential(*layers, nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    images, labels = torch.randn(256, 2048).cuda(), torch.randint(0, 10, (256,)).cuda()
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def shell(command: str, folder: Path, more: Mapping[str, str] | None = None) -> str:
    """Run a command in bash with `trace` on PATH, and return its output. The command must succeed."""
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **(more or {})}
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a repository with a script and a recording, as docs/ci.md describes. The recording is a replay on an estimated
    GPU."""
    program = tmp_path / "bin" / "trace"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m trace_replay "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "perf").mkdir()
    shell("trace replay --gpu v100 --estimate --clock recorded -o perf/v100.msgpack train.py", tmp_path)
    return tmp_path


def test_the_commands_on_the_ci_page_work_in_a_shell(repository: Path) -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) == 5
    said = [shell(command, repository) for command in commands]
    assert "gate passed" in said[2]
    assert ElementTree.parse(repository / "junit.xml").getroot().attrib["failures"] == "0"
    assert (repository / "summary.md").read_text(encoding="utf-8").startswith("### PASS")
    assert "<svg" in (repository / "report.html").read_text(encoding="utf-8")


def test_the_commands_of_the_github_action_run_without_errors(repository: Path) -> None:
    shell("trace gate init perf/v100.msgpack -o perf/budgets.toml", repository)
    summary = repository / "summary.md"
    given = {
        "RECORDING": "perf/v100.msgpack",
        "SCRIPT": "train.py --name 'two words'\n  --note \"it's\"\n",
        "BUDGETS": "perf/budgets.toml",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    steps = re.split(r"^    - ", (ROOT / "action.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    scripts = [
        re.sub(r"^ {8}", "", step.partition("      run: |\n")[2], flags=re.MULTILINE) for step in steps if "run: |" in step
    ]
    assert len(scripts) == 3
    assert "['--name', 'two words', '--note', \"it's\"]" in shell(scripts[0], repository, given)
    shell(scripts[1], repository, given)
    assert "```mermaid" in summary.read_text(encoding="utf-8")
    assert {path.name for path in (repository / "trace-report").iterdir()} == {"junit.xml", "replay.msgpack", "report.html"}
    (repository / "test_gpu.py").write_text(
        "import torch\n\ndef test_sum():\n    assert torch.ones(2, device='cuda').sum() == 2\n", encoding="utf-8"
    )
    words = "-p trace_replay.pytest_plugin -p no:cacheprovider test_gpu.py --gpu a100 -k 'sum and not mean'"
    said = shell(scripts[2], repository, {"WORDS": words, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    assert "1 passed" in said


@pytest.mark.parametrize(("version", "installed"), [("", "/actions/trace"), ("trace-replay==0.1.0", "trace-replay==0.1.0")])
def test_by_default_the_action_installs_its_own_version(version: str, installed: str, tmp_path: Path) -> None:
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    pip.chmod(0o755)
    [command] = re.findall(r"^      run: (pip .*)$", (ROOT / "action.yml").read_text(encoding="utf-8"), re.MULTILINE)
    given = {"TORCH": "torch", "VERSION": version, "GITHUB_ACTION_PATH": "/actions/trace"}
    assert shell(command, tmp_path, given) == f"install torch {installed} pytest\n"
