"""Tests nn.DataParallel as a user runs it: replayed from two GPUs, predicted from one GPU, recorded again, and with limited
memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tables import unsigned
from tests.replayer.recordings import Op, make_recording
from traces.comparison.compare import compare
from traces.format.trace_file import load, save
from traces.library import find
from traces.model.trace import Origin, StepKind, Trace

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
model = nn.DataParallel(net)
print("replicas", len(model.device_ids))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(40, 8), torch.randint(0, 4, (40,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    y = y.cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# A model of twelve layers that are distributed over the GPUs. With gradients and momentum, each layer of 256 MiB takes 768 MiB.
DEEP_AND_WIDE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpus = torch.cuda.device_count()
        self.layers = nn.ModuleList(nn.Linear(8192, 8192, device=f"cuda:{i * self.gpus // 12}") for i in range(12))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(x.to(layer.weight.device)))
        return x

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    model(torch.randn(16, 8192, device="cuda:0")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained on", model.gpus, [torch.cuda.max_memory_allocated(i) >> 20 for i in range(model.gpus)])
"""


def trace_command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def replayed(folder: Path, name: str, batch: int) -> Trace:
    """Replay the example with small images on a recording of the library. Return the timeline."""
    script = (ROOT / "examples" / "train_dataparallel.py", "--trace", unsigned(name, folder), "--batch-size", str(batch))
    small = ("--image-size", "32", "--workers", "0", "--steps", "8", "--print-every", "4")
    done = trace_command("replay", "--clock", "virtual", "-o", f"{name}.msgpack", *script, *small, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"replicas: {1 if name == 'p100-no-cudnn' else 2}\n" in done.stdout
    return load(folder / f"{name}.msgpack")


def test_diff_of_one_and_two_gpus_shows_the_published_cost_per_phase(tmp_path: Path) -> None:
    """GIVEN one script that is replayed on the study's one-GPU and two-GPU recordings THEN trace diff shows the cost of the
    second GPU for each phase."""
    one, two = replayed(tmp_path, "p100-no-cudnn", 128), replayed(tmp_path, "p100x2-no-cudnn", 256)
    files = "p100-no-cudnn.msgpack", "p100x2-no-cudnn.msgpack"
    done = trace_command("diff", *files, "--json", "--tolerance", "0.1", cwd=tmp_path)
    # The programs have different batch sizes, or traces of phases do not show whether they are the same.
    assert done.returncode in (1, 3), done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    assert facts == json.loads(json.dumps(compare(one, two, 0.1).to_json()))

    phases = facts["phases"]
    compute = [
        sum(phases[name][f"{side}_median_ns"] for name in ("forward", "loss", "backward", "optimizer")) / 1e6
        for side in ("recorded", "replayed")
    ]
    assert compute[1] - compute[0] == pytest.approx(23.4, rel=0.1)
    assert compute[1] / compute[0] - 1 == pytest.approx(0.031, abs=0.003)
    # The script itself copies only the labels, and `scatter` copies the images. The copies in host memory on this machine may
    # be slower.
    h2d = [phases["h2d"][f"device_{side}_median_ns"] / 1e6 for side in ("recorded", "replayed")]
    assert h2d[0] == pytest.approx(6.5, abs=1) and h2d[1] < 6
    assert 2 * (compute[0] + 6.5) / (compute[1] + 0.3) == pytest.approx(1.956, rel=0.01)

    parts = {name: part["replayed_median_ns"] / 1e6 for name, part in facts["parts"].items()}
    published = {"scatter": 6.7, "replicate": 6.2, "gather": 8.5, "gather_backward": 2.2, "broadcast_backward": 5.7}
    assert {name: parts[name] for name in published} == {
        name: pytest.approx(ms, rel=0.02, abs=0.5) for name, ms in published.items()
    }
    for name in ("parallel_apply (cuda:0)", "parallel_apply (cuda:1)"):
        assert facts["parts"][name]["device_replayed_median_ns"] / 1e6 == pytest.approx(255.5, rel=0.02)
    assert facts["memory"]["cuda:0"]["replayed_peak_bytes"] > facts["memory"]["cuda:1"]["replayed_peak_bytes"]


def test_recording_on_two_virtual_gpus_reproduces_the_data_parallel_stages(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    on = unsigned("p100x2-no-cudnn", tmp_path)
    done = trace_command("record", "--on", on, "--grain", "phase", "-o", "again.msgpack", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = load(tmp_path / "again.msgpack")
    assert len(again.devices) == 2 and (again.steps.kind == StepKind.STEADY).any()
    parts = compare(load(find("p100x2-no-cudnn")), again).parts
    assert len(parts) == 7
    for name, part in parts.items():
        recorded, got = part.device_recorded_median_ns, part.device_replayed_median_ns
        assert recorded is not None and got is not None, name
        assert abs(got - recorded) < max(0.02 * recorded, 500_000), name


@pytest.fixture
def one_gpu(tmp_path: Path) -> Path:
    """Return a recording of the model in SMALL on one GPU, with kernels and batches of 4 rows."""
    ops = [
        Op("aten::addmm", 5_100, 50, kernel=(5_160, 3_000), shapes=((16,), (4, 8), (8, 16))),
        Op("aten::relu", 5_200, 50, kernel=(8_161, 2_000), shapes=((4, 16),)),
        Op("aten::addmm", 5_300, 50, kernel=(10_162, 3_000), shapes=((4,), (4, 16), (16, 4))),
        Op("aten::threshold_backward", 7_100, 50, kernel=(13_163, 9_000), shapes=((4, 16), (4, 16))),
        Op("aten::mul_", 9_100, 50, kernel=(22_164, 1_000), shapes=((16, 8),)),
    ]
    phases = [("loader", 0, 5_000), ("forward", 5_000, 7_000), ("backward", 7_000, 9_000), ("optimizer", 9_000, 30_000)]
    save(make_recording(phases, ops, steps=2), tmp_path / "one.msgpack")
    return tmp_path / "one.msgpack"


def test_a_recording_of_one_gpu_predicts_two_gpus(tmp_path: Path, one_gpu: Path) -> None:
    (tmp_path / "train.py").write_text(SMALL)
    options = ("--clock", "virtual", "--gpus", "2", "--link-gbps", "0.1", "-o", "two.msgpack", "--report", "r.json")
    done = trace_command("replay", *options, "train.py", "--trace", one_gpu, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "replicas 2\n"
    two = load(tmp_path / "two.msgpack")
    notes = two.run_of(0).replay
    assert notes is not None and (notes.config.gpus, notes.config.link_gbps) == (2, 0.1)
    assert [(device.index, device.name) for device in two.devices] == [(i, "Tesla P100-PCIE-16GB") for i in (0, 1)]
    assert set(json.loads((tmp_path / "r.json").read_text())["parts"]) == {
        "scatter", "replicate", "parallel_apply (cuda:0)", "parallel_apply (cuda:1)", "gather", "gather_backward",
        "broadcast_backward",
    }  # fmt: skip
    work = two.device
    for device in (0, 1):
        relu = work.take((work.device == device) & (work.name == two.strings.find("kernel of aten::relu")))
        assert len(relu) == 10 and set(relu.origin.tolist()) == {Origin.SCALED}
    p2p = work.take(work.name == two.strings.find("Memcpy PtoP (Device -> Device)"))
    weights_bytes = (8 * 16 + 16 + 16 * 4 + 4) * 4
    assert sorted(set(p2p.bytes.tolist())) == [2 * 4 * 4, weights_bytes]
    # Each byte takes ten nanoseconds, and each copy at least 1.5 us.
    assert set((p2p.duration_ns - p2p.bytes * 10).tolist()) == {1_500}


def test_an_unsupported_number_of_gpus_is_rejected_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')")
    done = trace_command("replay", "--gpus", "2", "train.py", "--trace", "p100-no-cudnn", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "trace: --gpus 2 needs a recording with the kernels of one GPU, but this recording has phases only\n"


def test_a_model_too_large_for_one_gpu_trains_on_two(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP_AND_WIDE)
    options = ("--clock", "virtual", "--gpu-memory", "7.79GiB")
    one = trace_command("replay", *options, "--gpus", "1", "deep.py", "--trace", "p100x2-no-cudnn", cwd=tmp_path)
    assert one.returncode == 1
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB" in one.stderr
    assert "7.79 GiB" in one.stderr and "trained" not in one.stdout
    two = trace_command("replay", *options, "deep.py", "--trace", "p100x2-no-cudnn", cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    assert two.stdout.startswith("trained on 2 [")
    assert all(4600 < int(mib) < 7977 for mib in two.stdout.partition("[")[2].rstrip("]\n").split(","))
