"""Tests `trace replay` as a user runs it, with small scripts, small traces, real waits and the exit codes of scripts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.replayer.recordings import Op, make_recording, phase_recording
from tests.tui.json_types import PAGE, faults
from traces.analyses.modules import forward_ops, module_times
from traces.format.trace_file import load, save
from traces.model.run import REPLAY
from traces.model.trace import NONE, HostKind, Origin, StepKind

pytestmark = pytest.mark.real_time

TRAIN = """
import sys
import torch
from torch import nn

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(steps * 4, 8), torch.randint(0, 4, (steps * 4,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    x, y = x.cuda(), y.cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("device", x.device, torch.cuda.get_device_name(), "loss", loss.item())
"""

PHASES_MS = {"h2d": 2, "forward": 20, "loss": 1, "backward": 40, "optimizer": 3}


@pytest.fixture(scope="module")
def phase_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of phases with steps of 66 ms."""
    path = tmp_path_factory.mktemp("traces") / "phases.msgpack"
    save(phase_recording(PHASES_MS), path)
    return path


@pytest.fixture(scope="module")
def kernel_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of kernels for the forward pass of TRAIN's model. The backward pass and the optimizer have one kernel
    each."""
    ops = [
        Op("aten::addmm", 5_100, 50, kernel=(5_160, 3_000), shapes=((16,), (4, 8), (8, 16))),
        Op("aten::relu", 5_200, 50, kernel=(8_161, 2_000), shapes=((4, 16),)),
        Op("aten::addmm", 5_300, 50, kernel=(10_162, 3_000), shapes=((4,), (4, 16), (16, 4))),
        Op("aten::old_backward", 7_100, 50, kernel=(13_163, 9_000), shapes=((4, 4),)),
        Op("aten::mul_", 9_100, 50, kernel=(22_164, 1_000), shapes=((16, 8),)),
    ]
    phases = [("loader", 0, 5_000), ("forward", 5_000, 7_000), ("backward", 7_000, 9_000), ("optimizer", 9_000, 30_000)]
    path = tmp_path_factory.mktemp("traces") / "kernels.msgpack"
    save(make_recording(phases, ops, steps=2), path)
    return path


def trace_command(*words: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **options)


def written(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_script_trains_at_the_speed_of_a_recording_of_phase_times(tmp_path: Path, phase_trace: Path) -> None:
    script = written(tmp_path, TRAIN)
    done = trace_command("replay", "--report", "r.json", "-o", "out.msgpack", script, "8", "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # The loss of such a small network is computed.
    assert re.search(r"device cuda:0 Tesla P100-PCIE-16GB loss [012]\.\d\d", done.stdout)
    facts = json.loads((tmp_path / "r.json").read_text())
    assert faults(facts, PAGE.OUTPUTS["trace replay --report"]) == []
    assert facts["compute_side"]["recorded_median_ns"] == 66_000_000
    assert abs(facts["compute_side"]["error"]) < 0.05
    for name, ms in PHASES_MS.items():
        assert abs(facts["phases"][name]["replayed_median_ns"] - ms * 1e6) < max(0.02 * ms * 1e6, 0.5e6), name
    assert facts["coverage"]["phase"] == pytest.approx(1, abs=0.01)
    assert sum(facts["coverage"].values()) == pytest.approx(1)
    replayed = load(tmp_path / "out.msgpack")
    assert len(replayed.steps) == 8
    assert replayed.run_of(0).source == REPLAY


def test_the_gpu_time_of_a_phase_comes_from_matched_ops_or_from_the_whole_phase(tmp_path: Path, kernel_trace: Path) -> None:
    script = written(tmp_path, TRAIN)
    options = ("--report", "r.json", "-o", "out.msgpack")
    done = trace_command("replay", *options, script, "6", "--trace", kernel_trace, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    replayed = load(tmp_path / "out.msgpack")
    origin, duration = replayed.device.origin, replayed.device.duration_ns
    in_steps = replayed.device.start_ns >= replayed.steps.start_ns[0]
    exact_ms = duration[in_steps & (origin == Origin.EXACT)].sum() / 1e6
    phase_ms = duration[in_steps & (origin == Origin.PHASE)].sum() / 1e6
    assert exact_ms == pytest.approx(6 * 8)
    assert phase_ms == pytest.approx(6 * 10)
    facts = json.loads((tmp_path / "r.json").read_text())
    assert faults(facts, PAGE.OUTPUTS["trace replay --report"]) == []
    assert facts["coverage"]["exact"] > 0.4 and facts["coverage"]["phase"] > 0.5
    assert any(entry["op"].startswith("aten::_foreach") for entry in facts["missing"])


def test_validation_and_inference_batches_are_separate_steps(tmp_path: Path, phase_trace: Path) -> None:
    text = (
        TRAIN
        + """
def validate():
    model.eval()
    with torch.no_grad():
        for x, y in torch.utils.data.DataLoader(data, batch_size=4):
            model(x.cuda())
    model.train()

validate()
loss = nn.functional.cross_entropy(model(x), y)
loss.backward()
optimizer.step()
with torch.inference_mode():
    for _ in range(3):
        model(x)
"""
    )
    options = ("--report", "r.json", "-o", "out.msgpack")
    done = trace_command("replay", *options, written(tmp_path, text), "4", "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    steps = load(tmp_path / "out.msgpack").steps
    kinds = [StepKind(kind).name[0] for kind in steps.kind.tolist()]
    assert "".join(kinds) == "WSSS" + "EEEE" + "S" + "EEE"
    evaluated_ms = (steps.duration_ns[[4, 5, 6, 7]] / 1e6).tolist()
    assert evaluated_ms == pytest.approx([22] * 4, abs=8)  # a step has a copy, a forward pass and the time of loading
    assert (steps.duration_ns[9:] / 1e6).tolist() == pytest.approx([20] * 3, abs=5)
    assert steps.duration_ns[8] / 1e6 == pytest.approx(64, abs=12)  # this step has no validation, which would add 22 ms
    facts = json.loads((tmp_path / "r.json").read_text())
    assert faults(facts, PAGE.OUTPUTS["trace replay --report"]) == []
    assert facts["steps_compared"]["replayed"] == 4 and abs(facts["compute_side"]["error"]) < 0.05
    assert facts["evaluation"]["steps_compared"] == {"recorded": 0, "replayed": 7}


def test_strict_mode_raises_an_error_at_the_first_op_without_an_exact_match(tmp_path: Path, kernel_trace: Path) -> None:
    done = trace_command("replay", "--strict", written(tmp_path, TRAIN), "--trace", kernel_trace, cwd=tmp_path)
    assert done.returncode == 1
    assert "NotExact: --strict:" in done.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(3)", 3), ("raise ValueError('mine')", 1), ("import os; os._exit(5)", 5), ("", 0)],
)
def test_replay_returns_the_exit_code_of_the_script(tmp_path: Path, phase_trace: Path, ending: str, code: int) -> None:
    script = written(tmp_path, TRAIN + "\n" + ending + "\n")
    done = trace_command("replay", script, "1", "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert ("ValueError: mine" in done.stderr) is ("mine" in ending)


def test_using_a_device_that_was_not_recorded_raises_the_error_of_cuda(tmp_path: Path, phase_trace: Path) -> None:
    script = written(tmp_path, "import torch\ntorch.zeros(2).to('cuda:1')\n")
    done = trace_command("replay", script, "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == 1
    assert "CUDA error: invalid device ordinal" in done.stderr


def test_a_forked_child_gets_the_cuda_fork_error_and_the_parent_continues(tmp_path: Path, phase_trace: Path) -> None:
    text = (
        TRAIN
        + """
import os
pid = os.fork()
if pid == 0:
    try:
        torch.zeros(2, device="cuda")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", torch.zeros(2, device="cuda").device)
"""
    )
    done = trace_command("replay", written(tmp_path, text), "1", "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Cannot re-initialize CUDA in forked subprocess" in done.stdout
    assert "parent cuda:0" in done.stdout


def test_ctrl_c_interrupts_the_script_and_trace_returns_its_exit_code(tmp_path: Path, phase_trace: Path) -> None:
    script = written(tmp_path, TRAIN.replace("steps = int", "print('up', flush=True)\nsteps = int"))
    command = [sys.executable, "-m", "tui.cli", "replay", str(script), "10000", "--trace", str(phase_trace)]
    child = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    time.sleep(1.5)
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert child.returncode == 130


def test_a_script_that_never_uses_the_gpu_gets_a_message_and_runs_as_usual(tmp_path: Path, phase_trace: Path) -> None:
    script = written(tmp_path, "import torch\nprint(torch.zeros(2).sum())\n")
    done = trace_command("replay", script, "--trace", phase_trace, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "tensor(0.)\n")
    assert "did not use the GPU" in done.stderr


def test_loader_workers_and_the_pinning_thread_work_with_the_virtual_gpu(tmp_path: Path, phase_trace: Path) -> None:
    text = TRAIN.replace("batch_size=4)", "batch_size=4, num_workers=2, pin_memory=True)").replace(
        "x.cuda(), y.cuda()", "x.cuda(non_blocking=True), y.cuda(non_blocking=True)"
    )
    done = trace_command("replay", written(tmp_path, text), "3", "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"loss [012]\.\d\d", done.stdout)


def test_with_recorded_loader_waits_whole_steps_can_be_compared(tmp_path: Path, kernel_trace: Path) -> None:
    script = written(tmp_path, TRAIN)
    done = trace_command(
        *("replay", "--loader", "recorded", "--clock", "recorded", "--report", "r.json"),
        *(script, "8", "--trace", kernel_trace),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    steps = json.loads((tmp_path / "r.json").read_text())["steps"]
    assert steps["recorded_median_ns"] == 30_000_000
    # 5 of the 30 ms are the recorded wait for data, and the time of this machine does not count.
    assert abs(steps["error"]) < 0.05


def test_the_timeline_is_complete_after_os_exit(tmp_path: Path, kernel_trace: Path) -> None:
    """GIVEN a loop of three steps that ends with `os._exit(5)` THEN the file of the replay has three steps."""
    text = """
import os
import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.zeros(4, 4).cuda()).sum().backward()
    optimizer.step()
os._exit(5)
"""
    done = trace_command("replay", "-o", "out.msgpack", written(tmp_path, text), "--trace", kernel_trace, cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert len(load(tmp_path / "out.msgpack").steps) == 3


def test_a_loader_worker_that_exits_causes_the_usual_torch_error(tmp_path: Path, phase_trace: Path) -> None:
    text = """
import sys
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        sys.exit(4)

torch.zeros(1, device="cuda")
for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1):
    batch.cuda()
"""
    done = trace_command("replay", "-o", "out.msgpack", written(tmp_path, text), "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == 1
    assert "DataLoader worker" in done.stderr and "exited unexpectedly" in done.stderr
    assert load(tmp_path / "out.msgpack").is_replay


def test_mixed_precision_with_scaling_and_clipping_trains_without_an_overflow(tmp_path: Path, phase_trace: Path) -> None:
    text = """
import torch
from torch import nn

model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(4):
    x = torch.randn(2, 5, 16, device="cuda")
    optimizer.zero_grad()
    start.record()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), x)
    end.record()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
torch.cuda.synchronize()
print("scale", scaler.get_scale(), "forward ms", start.elapsed_time(end), "peak", torch.cuda.max_memory_allocated() > 0)
torch.save(model.state_dict(), "model.pt")
print(torch.load("model.pt", map_location="cpu")["linear1.weight"].shape)
"""
    done = trace_command("replay", "-o", "out.msgpack", written(tmp_path, text), "--trace", phase_trace, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scale, forward_ms = (float(done.stdout.split()[i]) for i in (1, 4))
    assert scale == 65536.0
    assert forward_ms == pytest.approx(20, rel=0.1)  # this is the time of the recorded forward pass
    assert "peak True" in done.stdout and "torch.Size([32, 16])" in done.stdout
    replayed = load(tmp_path / "out.msgpack")
    assert len(replayed.steps) == 4  # a step that the gradient scaler skips would be missing
    assert (replayed.memory.allocated_bytes >= 0).all() and len(replayed.memory)


def test_a_module_can_be_replayed_with_the_option_m_of_python(tmp_path: Path, phase_trace: Path) -> None:
    written(tmp_path, TRAIN, "trainer_module.py")
    done = trace_command("replay", "--trace", phase_trace, "-m", "trainer_module", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "device cuda:0" in done.stdout


def test_a_replay_reports_forward_and_backward_time_of_each_module(tmp_path: Path, kernel_trace: Path) -> None:
    # GIVEN a model whose kernels are recorded or estimated, and more steps than those with autograd's sequence numbers
    script, replay = written(tmp_path, TRAIN), tmp_path / "replay.msgpack"
    ran = trace_command("replay", "--trace", kernel_trace, "--clock", "virtual", "-o", replay, script, "6", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    trace = load(replay)
    # THEN the later steps also have modules, with the kernels of their forward and backward passes
    modules = {module.path: module for module in module_times(trace)}
    assert list(modules) == [f"Sequential_0{layer}" for layer in ("", "/Linear_0", "/ReLU_0", "/Linear_1")]
    whole, layers = modules["Sequential_0"], list(modules.values())[1:]
    assert [module.calls for module in modules.values()] == [1.0] * 4
    assert [layer.forward_ns for layer in layers] == [3_000_000, 2_000_000, 3_000_000]
    assert whole.forward_ns == 8_000_000
    forward = forward_ops(trace)
    of_backward = np.flatnonzero(forward != NONE)
    ops = Counter(trace.strings[int(name)] for name in trace.host.name[forward[of_backward]])
    assert ops == dict.fromkeys(("aten::relu", "aten::_log_softmax", "aten::nll_loss_forward"), 6) | {"aten::addmm": 6 * 5}
    steps = np.searchsorted(trace.steps.end_ns, trace.host.start_ns[of_backward])
    assert np.array_equal(steps, np.searchsorted(trace.steps.end_ns, trace.host.start_ns[forward[of_backward]]))


def test_each_memory_event_has_the_start_time_of_its_op(tmp_path: Path, kernel_trace: Path) -> None:
    script, replay = written(tmp_path, TRAIN), tmp_path / "replay.msgpack"
    ran = trace_command("replay", "--trace", kernel_trace, "--clock", "virtual", "-o", replay, script, "12", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    trace = load(replay)
    host, memory, steps = trace.host, trace.memory, trace.steps
    op_ns = host.start_ns[host.kind == HostKind.OP]
    # THEN each memory event of a step is at the start of one of its ops. This holds for the first steps, whose requests are
    # executed, and for later steps. Rows are written once a second, and events between two writes are an exception.
    places, at_ops = [], []
    for start_ns, end_ns in zip(steps.start_ns, steps.end_ns, strict=True):
        ops = op_ns[(op_ns >= start_ns) & (op_ns < end_ns)]
        times_ns = memory.time_ns[(memory.time_ns >= start_ns) & (memory.time_ns < end_ns)]
        at_ops.append(np.isin(times_ns, ops))
        places.append(tuple(np.searchsorted(ops, times_ns).tolist()))
    ((usual, steps_alike),) = Counter(places[2:11]).most_common(1)
    assert len(set(usual)) > 5 and steps_alike >= 6 and np.concatenate(at_ops).mean() > 0.95
    # THEN the totals match the order of the events in time
    assert (np.diff(memory.allocated_bytes) == memory.bytes[1:]).all()
