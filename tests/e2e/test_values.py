"""Tests the values of tensors in a replay: recorded values (`--values recorded`), or computed values (`--values compute`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.replayer.recordings import Op, make_recording
from traces.format.trace_file import load, save
from traces.model.machine import DeviceProperties
from traces.model.trace import Device, Values

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a recording of eight steps of an A100 with one kernel each, and without values."""
    made = make_recording(
        [("forward", 0, 2_000), ("backward", 2_000, 3_000), ("optimizer", 3_000, 4_000)],
        [Op("aten::mul", 100, 50, kernel=(160, 500))],
        steps=STEPS,
    )
    made.devices = [Device(0, 0, "NVIDIA A100-SXM4-40GB", 40 << 30, DeviceProperties(major=8, minor=0))]
    path = tmp_path / "a100.msgpack"
    save(made, path)
    return path


def _python(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, env=environment)


def _replay(trace: Path, values: str, *script: str | Path, report: str = "r.json") -> subprocess.CompletedProcess[str]:
    options = ("--clock", "virtual", "--values", values, "--report", report, "--trace", trace)
    return _python("-m", "tui.cli", "replay", *options, *script, cwd=trace.parent)


def _script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


EXACT = """
import runpy, sys, torch

class RankValues(float):
    "A loss that shows all its bits wherever the script prints it."
    def __format__(self, how):
        return self.hex()

item = torch.Tensor.item
torch.Tensor.item = lambda tensor: RankValues(item(tensor)) if tensor.is_floating_point() else item(tensor)
sys.path.insert(0, sys.argv[1])
sys.argv = [sys.argv[1] + "/train_resnet.py", *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_computed_losses_equal_those_of_a_native_run_bit_for_bit(tmp_path: Path, trace: Path) -> None:
    script = _script(tmp_path, EXACT)
    words = f"{ROOT / 'examples'} --image-size 32 --classes 4 --batch-size 4 --steps 4 --print-every 1 --workers 0".split()
    native = _python(script, *words, cwd=tmp_path)
    replayed = _replay(trace, "compute", script, *words)
    assert replayed.returncode == native.returncode == 0, replayed.stderr
    losses = [[line.split()[3] for line in run.stdout.splitlines() if line.startswith("step")] for run in (native, replayed)]
    assert losses[0] == losses[1] and len(set(losses[0])) == 4 and all(loss.startswith("0x1.") for loss in losses[0])
    assert "on NVIDIA A100" in replayed.stdout and "on CPU" in native.stdout
    assert "Values were computed on this machine's CPU" in replayed.stderr
    facts = json.loads((tmp_path / "r.json").read_text())
    assert facts["values"] == {"unrecorded_reads": None, "computed": True, "sizes_assumed": 0}


def test_computed_layer_outputs_equal_those_of_the_cpu(tmp_path: Path, trace: Path) -> None:
    done = _replay(trace, "compute", ROOT / "tests" / "e2e" / "scripts" / "layers_on_both.py")
    assert done.returncode == 0, done.stderr
    apart = json.loads(done.stdout)
    assert len(apart) > 70 and {name: far for name, far in apart.items() if far > 1e-5} == {}


COMPUTED = """
import copy, io, torch
from torch import nn

torch.manual_seed(3)
x = torch.rand(5, 4)
y = x.cuda()
for of in (lambda x: x.nonzero(), lambda x: x[x > 0.5], lambda x: (x * 3).long().unique(return_counts=True),
           lambda x: torch.where(x[0] > 0.2), lambda x: x.masked_select(x < 0.3), lambda x: x[:, x[0] > 0.2].sum(0),
           lambda x: torch.repeat_interleave(x[0], (x[0] * 5).long()), lambda x: x.argsort(1), lambda x: x.sum().item()):
    found, same = ([value] if isinstance(value := of(z), (float, torch.Tensor)) else value for z in (y, x))
    print(all(torch.equal(torch.as_tensor(a).cpu(), torch.as_tensor(b)) for a, b in zip(found, same, strict=True)))
view = y.t()[1:3]
view.mul_(2), y[0].fill_(7), y.add_(1).resize_(3, 2), torch.arange(4, out=y)
x.t()[1:3].mul_(2), x[0].fill_(7), x.add_(1).resize_(3, 2), torch.arange(4, out=x)
print(torch.equal(y.cpu(), x), y.tolist() == x.tolist(), view.device, torch.equal(y, x.cuda()))
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
twin = copy.deepcopy(model)
twin[0].weight.data.zero_()
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
host = torch.load(file, map_location="cpu")
print(float(model[0].weight.detach().abs().sum()) == float(host["0.weight"].abs().sum()) > 0)
twin.load_state_dict(host)
print(torch.equal(twin[0].weight, model[0].weight))
with torch.no_grad():
    twin[0].weight.zero_()
print(float(host["0.weight"].abs().sum()) > 0, 0 < int((model(torch.ones(99, 4).cuda()) == 0).sum()) < 396)
q = torch.rand(1, 2, 8, 16, device="cuda", dtype=torch.float16)
try:
    torch.ops.aten._flash_attention_forward(q, q, q, None, None, 2, 2, 0.0, False, False, alibi_slopes=q[0, 0, :, 0].float())
except NotImplementedError as error:
    print(type(error).__name__, error)
"""


DISTRIBUTED = """
import os
import torch
import torch.distributed as dist
from torch import nn

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
torch.manual_seed(rank)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
said = []
for step in range(3):
    x = torch.rand(8, 64, generator=torch.Generator().manual_seed(2 * step + rank)).to(device)
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    said.append(loss.item().hex())
said.append(model.module[0].weight.detach().sum().item().hex())
os.write(1, f"{rank} {' '.join(said)}\\n".encode())  # whole lines, whichever rank is first
dist.destroy_process_group()
"""


def test_trace_does_not_change_the_values_that_distributed_processes_compute(tmp_path: Path, trace: Path) -> None:
    recorded = load(trace)
    recorded.devices = [replace(recorded.devices[0], index=index) for index in range(2)]
    save(recorded, trace)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", _script(tmp_path, DISTRIBUTED))
    for _ in range(4):  # gloo itself fails in one of twenty exits, and more often on a busy machine
        native = _python(*torchrun, cwd=tmp_path)
        if "terminate called without an active exception" not in native.stderr:
            break
    replayed = _replay(trace, "compute", *torchrun)
    assert native.returncode == replayed.returncode == 0, native.stderr + replayed.stderr
    ranks = [sorted(run.stdout.splitlines()) for run in (native, replayed)]
    assert ranks[0] == ranks[1] and len(ranks[0]) == 2
    assert ranks[0][0].split()[-1] == ranks[0][1].split()[-1]  # both ranks end with the same weights


def test_computed_values_decide_output_sizes_and_shared_memory_works(tmp_path: Path, trace: Path) -> None:
    done = _replay(trace, "compute", _script(tmp_path, COMPUTED))
    assert done.returncode == 0, done.stderr
    *said, refused = done.stdout.splitlines()
    assert [word for line in said for word in line.split()] == ["True"] * 11 + ["cuda:0"] + ["True"] * 5
    assert refused.startswith("NotEmulated aten::_flash_attention_forward with alibi_slopes")


COMPILED_ATTENTION = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

# Equal scores: row i of causal attention is the mean of 0 ... i, which is i / 2.
size = 256
rows = torch.arange(float(size), device="cuda")
q, v = torch.zeros(1, 1, size, 16, device="cuda"), rows.expand(1, 1, 16, size).mT.contiguous().requires_grad_()
mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, size, size)
above = torch.tensor([0.0], device="cuda")  # a score modification that reads a tensor
attention = lambda v: flex_attention(q, q, v, lambda s, b, h, i, j: s + above[h], mask)
attend = torch.compile(lambda v: attention(v) * torch.tensor([2.0], device="cuda"))
before = torch.cuda.max_memory_allocated()
out = attend(v)
print(torch.allclose(out[0, 0, :, 0], rows))
out.sum().backward()
print(torch.allclose(v.grad[0, 0, -2:, 3], 2 * torch.tensor([1 / 255 + 1 / 256, 1 / 256], device="cuda")))
print(torch.cuda.max_memory_allocated() - before < size * size * 4)  # no matrix of scores
values, graph = v.detach().clone(), torch.cuda.CUDAGraph()
with torch.no_grad():
    attend(values)
    with torch.cuda.graph(graph):
        captured = attend(values)
values.mul_(3)
graph.replay()
print(torch.allclose(captured[0, 0, :, 0], 3 * rows))

@torch.compile
def without_large(x):
    y = x + 1
    y[y > 3] = 0.0
    return y

without_large(rows)
filling = torch.cuda.CUDAGraph()
with torch.cuda.graph(filling):
    small = without_large(rows)
filling.replay()
print(small[:5].tolist() == [1.0, 2.0, 3.0, 0.0, 0.0])
"""

MASKED = """
import torch

def assign(x, mask, value):
    y = x + 1
    y[mask] = value
    return y

def assign_constant(x, mask):
    return assign(x, mask, torch.tensor([7.0], device="cuda"))

def add(x, mask, value):
    return x.index_put((mask,), value, accumulate=True)

x = torch.tensor([[0.0, 1.0], [2.0, 3.0]], device="cuda").t()
seven, on_host, odd, first_column = torch.tensor([7.0], device="cuda"), torch.tensor(7.0), x % 2 > 0, x[:, 0] < 1
cases = (assign, odd, seven), (assign, odd, on_host), (assign, first_column, seven), (assign_constant, odd), (add, odd, seven)
for function, mask, *values in cases:
    compiled = torch.compile(function)
    compiled(x, mask, *values)
    torch.cuda.set_sync_debug_mode("error")
    result = compiled(x, mask, *values)
    torch.cuda.set_sync_debug_mode("default")
    print(result.tolist(), result.stride())
print(torch.compile(assign)(x, odd, torch.tensor([5.0, 6.0], device="cuda")).tolist())
"""


def test_compiled_masked_assignment_of_one_value_needs_no_wait_and_keeps_strides(tmp_path: Path, trace: Path) -> None:
    """The matrix is [[0, 2], [1, 3]], so adding one gives [[1, 3], [2, 4]]. Its odd numbers are the second row."""
    done = _replay(trace, "compute", _script(tmp_path, MASKED))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[[1.0, 3.0], [7.0, 7.0]] (1, 2)",
        "[[1.0, 3.0], [7.0, 7.0]] (1, 2)",
        "[[7.0, 7.0], [2.0, 4.0]] (1, 2)",
        "[[1.0, 3.0], [7.0, 7.0]] (1, 2)",
        "[[0.0, 2.0], [8.0, 10.0]] (1, 2)",
        "[[1.0, 3.0], [5.0, 6.0]]",
    ]


def test_captured_graphs_compute_compiled_attention_and_masked_assignments(tmp_path: Path, trace: Path) -> None:
    done = _replay(trace, "compute", _script(tmp_path, COMPILED_ATTENTION))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 5


def test_an_unrecorded_size_raises_an_error_with_advice_if_assumptions_are_off(tmp_path: Path, trace: Path) -> None:
    done = _replay(trace, "constant", _script(tmp_path, "import torch\nx = torch.rand(9, device='cuda')\nx[x > 0.5]\n"))
    assert done.returncode == 1
    assert "DataDependentShape: aten::index" in done.stderr and "--values compute" in done.stderr


DECIDING = """
import torch
from torch import nn
from tqdm import tqdm

torch.manual_seed(0)
model = nn.Linear(8, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
best, patience, right = float("inf"), 0, 0
bar = tqdm(range(50))
for step in bar:
    x, y = torch.rand(4, 8).cuda(), torch.zeros(4, dtype=torch.int64).cuda()
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
    if torch.isnan(loss):
        raise SystemExit("the loss is not a number")
    scaler.scale(loss).backward()
    stepped = scaler.step(optimizer)
    scaler.update()
    value = loss.item()
    right += (out.argmax(1) == y).sum().item()
    bar.set_postfix(loss=value)
    print(f"{step} loss {value:.2f} right {right} scale {scaler.get_scale():.0f}")
    if value < best:
        best, patience = value, 0
    else:
        patience += 1
        if patience == 2:
            print("stopping early")
            break
"""
# In each iteration, the script reads whether a gradient is infinite, and then the loss, the number of correct answers and the
# scale.
READS = [(0, 2.5, 1, 65536), (1, 2.25, 2, 32768), (0, 1.75, 3, 32768), (0, 2.0, 3, 32768), (0, 1.875, 4, 32768)]


def _with_values(trace: Path) -> None:
    """Add recorded values to the trace. A step ends with the update of the optimizer, so an iteration without an update ends no
    step."""
    made = load(trace)
    reads: list[tuple[int, float]] = []
    step = 0
    for infinite, loss, right, scale in READS:
        reads += [(step, 0.0), (step, infinite)]  # the script reads isnan, and the scaler reads found_inf
        step += not infinite
        reads += [(step, loss), (step, right), (step, scale)]
    made.values = Values.of(
        rank=[0] * len(reads),
        step=[row for row, _ in reads],
        read=range(len(reads)),
        op=[made.strings.add("aten::_local_scalar_dense")] * len(reads),
        dtype=[made.strings.add("float32")] * len(reads),
        value=[value for _, value in reads],
    )
    save(made, trace)


def test_a_recorded_value_that_the_dtype_cannot_hold_is_not_used(tmp_path: Path, trace: Path) -> None:
    """GIVEN a recorded value of -inf WHEN the script reads an integer THEN the value counts as not recorded."""
    made = load(trace)
    op, dtype = made.strings.add("aten::_local_scalar_dense"), made.strings.add("float32")
    made.values = Values.of(rank=[0], step=[0], read=[0], op=[op], dtype=[dtype], value=[float("-inf")])
    save(made, trace)
    done = _replay(trace, "recorded", _script(tmp_path, "import torch\nprint(torch.ones(3).cuda().argmax().item())\n"))
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_a_script_that_branches_on_the_loss_repeats_the_recorded_losses(tmp_path: Path, trace: Path) -> None:
    _with_values(trace)
    done = _replay(trace, "recorded", _script(tmp_path, DECIDING))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0 loss 2.50 right 1 scale 65536",
        "1 loss 2.25 right 3 scale 32768",
        "2 loss 1.75 right 6 scale 32768",
        "3 loss 2.00 right 9 scale 32768",
        "4 loss 1.88 right 13 scale 32768",
        "stopping early",
    ]
    assert "4/50" in done.stderr and "loss=1.88" in done.stderr
    facts = json.loads((tmp_path / "r.json").read_text())
    assert facts["values"] == {"unrecorded_reads": 0, "computed": False, "sizes_assumed": 0}
    assert facts["steps_compared"]["replayed"] <= 4  # the step whose gradients overflowed is missing
