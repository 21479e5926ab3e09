"""Tests that complete programs in the style of public projects run in a replay. The recording is of another program.

    pytest --slow tests/scripts                     # uses torch of this interpreter
    PYTHONPATH=. OTHER/bin/python -m pytest ...     # uses torch of another interpreter

Each program must end with exit code 0, and all its saved values must be finite and load without a replay.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.zoo.recording import recording_of_something_else

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("programs")

# Each program has the files that it saves, and the packages that it needs in addition to torch.
SAVED: dict[str, tuple[list[str], list[str]]] = {
    "image_classification": (["out/last.pth", "out/best.pth"], []),
    "segmentation": (["out/best.pth"], []),
    "detection": (["detector.pth"], []),
    "gpt": (["out/ckpt.pt"], []),
    "gan": (["out/netG_epoch_1.pth", "out/critic.pth"], []),
    "vae": (["vae.pt"], []),
    "ppo": (["agent.pth"], []),
    "gcn": (["gcn.pkl"], []),
    "speech": (["speech.pt"], []),
    "diffusion": (["model.pt"], []),
    "lora": (["adapter.pt"], ["transformers"]),
    "dpo": (["policy.pt"], ["transformers"]),
    "lightning_module": (["checkpoints/last.ckpt"], ["lightning"]),
    "accelerate_loop": (["accelerated.pt"], ["accelerate"]),
    "hf_trainer": (["final/training_args.bin"], ["transformers", "accelerate"]),
}
AGAIN = {  # these programs are continued from the files that they have saved
    "image_classification": (["--resume", "out/last.pth", "--epochs", "3", "--compile"], {}),
    "gpt": ([], {"INIT_FROM": "resume", "ITERS": "12"}),
}

pytestmark = pytest.mark.slow


def _replay(folder: Path, trace: Path, name: str, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "trace_replay", "replay", "--clock", "virtual", "--trace", trace, PROGRAMS / f"{name}.py", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **settings}
    everything = [sys.executable, *map(str, command)]
    return subprocess.run(everything, cwd=folder, capture_output=True, text=True, timeout=400, env=environment)


def _not_finite(value: Any, path: str = "") -> list[str]:
    if isinstance(value, torch.Tensor):
        fine = value.device.type == "cpu" and bool(torch.isfinite(value.to(torch.float64)).all())
        return [] if fine else [path]
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in _not_finite(inner, f"{path}.{key}")]
    if isinstance(value, (list, tuple)):
        return [found for i, inner in enumerate(value) for found in _not_finite(inner, f"{path}[{i}]")]
    return []


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording_of_something_else(tmp_path_factory.mktemp("recording") / "a100.msgpack")


def test_every_program_in_the_folder_has_a_test() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(SAVED)


@pytest.mark.parametrize("name", SAVED)
def test_a_program_completes_and_its_saved_files_can_be_loaded_without_trace(name: str, tmp_path: Path, trace: Path) -> None:
    saved, needs = SAVED[name]
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = _replay(tmp_path, trace, name)
    assert done.returncode == 0, done.stderr[-3000:]
    for file in saved:
        loaded = torch.load(tmp_path / file, map_location="cpu", weights_only=False)
        assert _not_finite(loaded) == []
    if name in AGAIN:
        words, settings = AGAIN[name]
        done = _replay(tmp_path, trace, name, *words, **settings)
        assert done.returncode == 0, done.stderr[-3000:]
