"""Tests that unmodified programs of other projects can be replayed: Hugging Face's models and Trainer, and a Lightning module.

Each script in `scripts/` runs natively on the CPU and under `trace replay`, in separate processes, and writes its results. The
trace contains one kernel of an A100, so nearly all times are estimated, but all other results must agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.replayer.recordings import Op, make_recording
from traces.format.trace_file import load, save
from traces.model.machine import DeviceProperties
from traces.model.trace import Device, Origin, Trace

SCRIPTS = Path(__file__).parent / "scripts"
FP16_SCALER_BYTES = 2 * 512  # the allocator rounds up the bytes of the scale and of the growth tracker


@dataclass(frozen=True, repr=False)
class Runs:
    """The results of a script in a native run and in a replay, and the timeline of the replay."""

    native: dict[str, Any]
    replayed: dict[str, Any]
    timeline: Trace
    said: str

    def ops(self) -> Counter[str]:
        host = self.timeline.host
        return Counter(self.timeline.strings[name].removeprefix("aten::") for name in host.name.tolist())


def _run_both(script: str, folder: Path) -> Runs:
    trace = make_recording(
        [("forward", 0, 2_000), ("backward", 2_000, 3_000), ("optimizer", 3_000, 4_000)],
        [Op("aten::mul", 100, 50, kernel=(160, 500))],
        steps=2,
    )
    trace.devices = [Device(0, 0, "NVIDIA A100-SXM4-40GB", 40 << 30, DeviceProperties(major=8, minor=0))]
    save(trace, folder / "a100.msgpack")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    replay = [sys.executable, "-m", "tui.cli", "replay", "--clock", "virtual", "-o", "out.msgpack", "--trace", "a100.msgpack"]
    said = ""
    for command, facts in ((([sys.executable]), "native.json"), (replay, "replayed.json")):
        words = [*command, str(SCRIPTS / script), facts]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        said = done.stderr
    native, replayed = (json.loads((folder / name).read_text()) for name in ("native.json", "replayed.json"))
    return Runs(native, replayed, load(folder / "out.msgpack"), said)


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    yield _run_both("train_transformers.py", tmp_path_factory.mktemp("transformers"))


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    yield _run_both("train_lightning.py", tmp_path_factory.mktemp("lightning"))


MODELS = ("gpt2", "bert", "vit", "t5")
WAYS = ("plain", "bf16", "fp16", "checkpointing", "accumulation")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_model_trains_the_same_on_gpu_and_cpu(transformers: Runs, model: str, way: str) -> None:
    native, replayed = (runs[f"{model} {way}"] for runs in (transformers.native, transformers.replayed))
    for fact in ("outputs", "gradients", "norm", "bytes"):
        assert replayed[fact] == native[fact], fact
    assert (native["devices"], replayed["devices"]) == (["cpu"], ["cuda"])
    assert any(replayed["gradients"].values())
    scaler_bytes = FP16_SCALER_BYTES if way == "fp16" else 0
    assert replayed["allocated"] == replayed["held"] + scaler_bytes


def test_the_trainer_of_transformers_trains_evaluates_and_saves(transformers: Runs) -> None:
    native, replayed = transformers.native["trainer"], transformers.replayed["trainer"]
    assert replayed == {**native, "device": "cuda"}
    assert replayed["steps"] == 20 and {"model.safetensors", "optimizer.pt"} <= set(replayed["saved"])


def test_transformers_run_the_attention_and_optimizer_kernels_of_cuda(transformers: Runs) -> None:
    """Flash attention runs for half precision without an effective mask, and memory-efficient attention otherwise. Optimizers
    run as foreach or fused ops."""
    ops = transformers.ops()
    flash = ops["_scaled_dot_product_flash_attention_backward"]
    # GPT-2, BERT and ViT have two layers and run two steps in two half precisions. The Trainer runs 40 micro-batches.
    assert flash == 3 * 2 * 2 * 2 + 2 * 40
    # Models in single precision use this kernel, and so does T5 with its bias.
    assert ops["_scaled_dot_product_efficient_attention_backward"] >= 4 * 3 * 2 * 2
    assert "_scaled_dot_product_attention_math" not in ops and "bmm" not in ops
    assert ops["_foreach_addcdiv_"] and ops["_fused_adamw_"] and ops["_foreach_norm"]


def test_times_of_unrecorded_ops_are_marked_as_estimates(transformers: Runs) -> None:
    origins = transformers.timeline.device.origin
    estimated = (Origin.SCALED, Origin.PHASE, Origin.ROOFLINE, Origin.CURVE, Origin.PUBLISHED)
    assert set(origins.tolist()) <= {int(origin) for origin in estimated}
    assert np.isin(origins, (Origin.ROOFLINE, Origin.CURVE, Origin.PUBLISHED)).sum() > 0.5 * len(origins)
    assert "NOT the same program" in transformers.said


def test_a_lightning_module_trains_the_same_on_gpu_and_cpu(lightning: Runs) -> None:
    for precision, native in lightning.native.items():
        replayed = lightning.replayed[precision]
        assert replayed == {**native, "gradients": {**native["gradients"], "device": "cuda"}}
    half = lightning.replayed["16-mixed"]
    assert half["steps"] == 20 and half["gradients"] == lightning.replayed["32-true"]["gradients"]
    assert lightning.ops()["_amp_foreach_non_finite_check_and_unscale_"] == 20
