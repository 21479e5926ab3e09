"""Tests `trace record` of scripts with several replicas or processes, on a virtual GPU and as two ranks with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from replayer.cost_model.collective_costs import CollectiveCosts
from tests.replayer.recordings import Op, make_recording, phase_recording
from traces.format.trace_file import load, save
from traces.model.trace import NONE, Ending, Origin, StepKind, Trace

pytestmark = pytest.mark.real_time

# The script trains in replicas in three ways: with the class, with the function, and with the four primitives.
REPLICAS = """
import sys
import torch
from torch import nn
from torch.nn.parallel import data_parallel, gather, parallel_apply, replicate, scatter

how = sys.argv[1]
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
model = nn.DataParallel(net, device_ids=[0, 0])

def forward(x):
    if how == "class":
        return model(x)
    if how == "function":
        return data_parallel(net, x, [0, 0])
    inputs = scatter((x,), [0, 0])
    return gather(parallel_apply(replicate(net, [0, 0]), inputs), 0)

optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(36, 8), torch.randint(0, 4, (36,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    loss = nn.functional.cross_entropy(forward(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Each rank prints the values that it has read. The two ranks have different data.
RANKS = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn

def train(rank, store=None):
    if store is None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    else:
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(36, 8), torch.randint(0, 4, (36,)))
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone().double()
        work = dist.all_reduce(mean, async_op=True)
        work.wait()
        os.write(1, f"{rank} {loss.item()}\\n".encode())  # whole lines, whichever rank is first
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.multiprocessing.spawn(train, (os.path.abspath("store"),), nprocs=2)
    else:
        train(None)
"""

SCHEDULE = ("--warmup", "1", "--clean-steps", "3", "--profiled-steps", "3")


def record(*words: str, cwd: Path) -> Trace:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # without this variable, torchrun would set it and print a message
    done = subprocess.run(
        [sys.executable, "-m", "tui.cli", "record", "-o", "run.msgpack", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert not list(cwd.glob("*.part")) and not list(cwd.glob("*.json"))
    (cwd / "stdout").write_text(done.stdout)
    return load(cwd / "run.msgpack")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of phases with steps of 20 ms. The tests record on its virtual GPU."""
    path = tmp_path_factory.mktemp("traces") / "phases.msgpack"
    save(phase_recording({"h2d": 1, "forward": 8, "backward": 9, "optimizer": 2}), path)
    return path


def parts_by_phase(trace: Trace, step: int) -> Counter[tuple[str, str, str]]:
    """Return (phase, stage, name of the thread) for each stage of one step."""
    parts, phases, text = trace.parts, trace.phases, trace.strings
    rows = np.flatnonzero((parts.phase != NONE) & (phases.step[parts.phase] == step))
    return Counter(
        (
            text[int(phases.name[parts.phase[row]])],
            text[int(parts.name[row])],
            trace.threads[int(parts.thread[row])].name,
        )
        for row in rows.tolist()
    )


@pytest.mark.parametrize("how", ["class", "function", "primitives"])
def test_every_step_contains_the_stages_of_data_parallel(tmp_path: Path, gpu: Path, how: str) -> None:
    """On a virtual GPU, the backward pass runs in the main thread."""
    (tmp_path / "train.py").write_text(REPLICAS)
    trace = record("--on", str(gpu), "--grain", "phase", "train.py", how, cwd=tmp_path)
    assert len(trace.steps) == 9
    expected = {
        ("forward", "scatter", "MainThread"): 1,
        ("forward", "replicate", "MainThread"): 1,
        ("forward", "parallel_apply", "replica 0"): 1,
        ("forward", "parallel_apply", "replica 1"): 1,
        ("forward", "gather", "MainThread"): 1,
        ("backward", "gather_backward", "MainThread"): 1,
        ("backward", "broadcast_backward", "MainThread"): 1,
    }
    assert [parts_by_phase(trace, step) for step in range(9)] == [expected] * 9
    parts = trace.parts
    # The recorder must not be the first to use CUDA in a new thread, so the first replicas have no device times.
    untimed = np.flatnonzero(parts.device == NONE)
    assert not trace.phases.step[parts.phase[untimed]].any()
    assert {trace.strings[int(name)] for name in parts.name[untimed]} == {"parallel_apply"}
    assert set(parts.origin.tolist()) == {Origin.MEASURED} and set(parts.device.tolist()) == {0, NONE}
    assert (parts.device_end_ns >= parts.device_start_ns).all()
    names = sorted(thread.name for thread in trace.threads)
    assert names == ["MainThread", "replica 0", "replica 1"]  # nine steps have started eighteen threads


def test_recordings_with_kernels_take_data_parallel_stages_from_the_profile(tmp_path: Path, gpu: Path) -> None:
    (tmp_path / "train.py").write_text(REPLICAS)
    trace = record("--on", str(gpu), *SCHEDULE, "train.py", "class", cwd=tmp_path)
    profiled = np.flatnonzero(trace.steps.kind == StepKind.PROFILED).tolist()
    assert len(profiled) == 3
    ranges = {trace.strings[int(name)] for name in trace.host.name}
    assert {"DataParallel.scatter", "DataParallel.parallel_apply#0", "DataParallel.broadcast_backward"} <= ranges
    for step in profiled:
        names = Counter(name for (_, name, _), count in parts_by_phase(trace, step).items() for _ in range(count))
        assert names == {
            "scatter": 1,
            "replicate": 1,
            "parallel_apply": 2,
            "gather": 1,
            "gather_backward": 1,
            "broadcast_backward": 1,
        }
    replicas = trace.host.name == trace.strings.find("DataParallel.parallel_apply#0")
    threads = set(trace.host.thread[replicas].tolist())
    inside = np.isin(trace.host.thread, list(threads)) & (trace.host.name == trace.strings.find("aten::linear"))
    assert int(inside.sum()) == 3 * 2 * 2  # the profile contains the ops in the threads of both replicas


@pytest.mark.parametrize("start", ["torchrun", "spawn"])
def test_two_ranks_become_one_trace(tmp_path: Path, start: str) -> None:
    """GIVEN two processes of one run THEN one trace has the steps, values and collectives of both."""
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    words = ["--", *torchrun] if start == "torchrun" else ["train.py", "spawn"]
    trace = record(*SCHEDULE, *words, cwd=tmp_path)

    assert trace.ranks == [0, 1]
    assert sorted(trace.runs) == [0, 1]
    assert Counter(trace.steps.rank.tolist()) == {0: 9, 1: 9}
    assert Counter(trace.batches.rank.tolist()) == {0: 9, 1: 9}
    assert Counter(trace.steps.kind.tolist()) == {StepKind.WARMUP: 4, StepKind.PROFILED: 6, StepKind.STEADY: 8}

    printed: dict[int, list[float]] = {0: [], 1: []}
    for line in (tmp_path / "stdout").read_text().splitlines():
        if line.startswith("[Gloo]"):  # up to PyTorch 2.10, gloo prints such lines
            continue
        said, value = line.split()
        printed[int(said)].append(float(value))
    for rank in (0, 1):
        scalars = (trace.values.rank == rank) & (trace.values.op == trace.strings.find("aten::_local_scalar_dense"))
        assert trace.values.value[scalars].tolist() == printed[rank]

    calls, text = trace.collectives, trace.strings
    for rank in (0, 1):
        mine = calls.take(calls.rank == rank)
        clean = mine.take(mine.group != NONE)  # these calls of the script were made in unprofiled steps
        told = Counter((text[int(name)], int(size)) for name, size in zip(clean.name, clean.bytes, strict=True))
        assert told == {("all_reduce", 8): 6, ("barrier", NONE): 1}
        assert {text[int(dtype)] for dtype in clean.dtype if dtype != NONE} == {"float64"}
        assert set(clean.group_size.tolist()) == {2} and {text[int(name)] for name in clean.backend} == {"gloo"}
        assert (clean.duration_ns > 0).all()
        # In profiled steps, calls of the script and of DistributedDataParallel are recorded.
        buckets = mine.take(mine.group == NONE)
        assert int((buckets.bytes == (8 * 4 + 4) * 4).sum()) == 3
        [ddp] = (trace.provenance | trace.provenance["ranks"][str(rank)])["ddp"]
        assert (ddp["bucket_bytes"], ddp["world_size"], ddp["backend"]) == ([(8 * 4 + 4) * 4], 2, "gloo")
    assert any("DistributedDataParallel's buckets" in lack for lack in trace.lacks)


# The script's stream waits for each operation, as with NCCL. Rank 1 calls each operation later than rank 0.
WAITED_FOR = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank())
gradient = torch.ones(4 << 20, device=device)
for _ in range(6):
    time.sleep(0.02 * dist.get_rank())
    dist.all_reduce(gradient)
    torch.cuda.synchronize(device)
dist.destroy_process_group()
"""


def test_a_blocking_gpu_collective_gets_its_device_time(tmp_path: Path, gpu: Path) -> None:
    (tmp_path / "reduce.py").write_text(WAITED_FOR)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "reduce.py"]
    trace = record("--on", str(gpu), "--grain", "phase", "--", *torchrun, cwd=tmp_path)
    calls = trace.collectives.take(trace.collectives.name == trace.strings.find("all_reduce"))
    assert [trace.devices[int(row)].rank for row in calls.device] == calls.rank.tolist()
    early_ns, late_ns = (calls.duration_ns[calls.rank == rank] for rank in (0, 1))
    # THEN the operation of the last rank takes the time of the transfer. The first rank's operation includes the wait.
    expected = CollectiveCosts.of(load(gpu)).next("all_reduce", 16 << 20, 2).duration_ns
    # A busy machine can only add to the time of the transfer.
    assert float(np.minimum(late_ns, early_ns).min()) == pytest.approx(expected, rel=0.2)
    assert float(np.median(early_ns[1:])) > expected + 10_000_000
    # THEN a replay of this recording uses the recorded time
    assert CollectiveCosts.of(trace).next("all_reduce", 16 << 20, 2).origin == Origin.EXACT


# The operations run in parallel with the script's work. The last operation ends long before the GPU finishes its other work.
# Rank 1 makes its calls later, so it does not wait for rank 0. The operations take about 20 ms. The recorder notices an idle
# stream only if the host asks for a wait in less than that time, and a busy machine may need milliseconds for this.
LET_GO = """
import time, weakref
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank())
gradient, other = torch.ones(64 << 20, device=device), torch.ones(64 << 20, device=device)
matrix = torch.ones(64, 64, device=device)
for products in (0, 0, 0, 0, 0, 0, 1):
    time.sleep(0.02 * dist.get_rank())
    work = dist.all_reduce(gradient, async_op=True)
    assert isinstance(work, dist.Work)
    for _ in range(products):
        matrix @ matrix
    assert work.wait() and work.wait()
    torch.cuda.synchronize(device)
    alive = weakref.ref(work)
    del work
    assert alive() is None
peer = 1 - dist.get_rank()
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, other, peer), dist.P2POp(dist.irecv, gradient, peer)]):
    work.wait()
dist.broadcast(other, 0, async_op=True)  # waited for by nobody
torch.cuda.synchronize(device)
dist.destroy_process_group()
"""


def test_an_asynchronous_collective_gets_its_device_time_if_the_script_waited(tmp_path: Path) -> None:
    mm = Op("aten::mm", 5, 20, kernel=(10, 100_000), shapes=((64, 64), (64, 64)))
    save(make_recording([("forward", 0, 300_000)], [mm], steps=3), tmp_path / "kernels.msgpack")
    (tmp_path / "reduce.py").write_text(LET_GO)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "reduce.py"]
    trace = record("--on", "kernels.msgpack", "--grain", "phase", "--", *torchrun, cwd=tmp_path)
    calls = trace.collectives.take(trace.collectives.name == trace.strings.find("all_reduce"))
    assert Counter(calls.rank.tolist()) == {0: 7, 1: 7} and set(calls.bytes.tolist()) == {256 << 20}
    assert [trace.devices[int(row)].rank for row in calls.device] == calls.rank.tolist()
    # THEN the shortest wait of an idle stream is the time of the transfer. Other waits may include the other rank.
    expected = CollectiveCosts.of(load(tmp_path / "kernels.msgpack")).next("all_reduce", 256 << 20, 2).duration_ns
    seen = calls.duration_ns[calls.ending == Ending.SEEN]
    assert float(seen.min()) == pytest.approx(expected, rel=0.2)
    # THEN for the operation during which the stream was busy, only a latest end is known. No time is estimated from it.
    for rank in (0, 1):
        last = calls.take(calls.rank == rank).take([-1])
        assert last.ending.tolist() == [Ending.BY] and last.duration_ns[0] >= 100_000_000
    assert CollectiveCosts.of(trace).next("all_reduce", 256 << 20, 2).origin == Origin.EXACT
    batch = trace.collectives.take(trace.collectives.name == trace.strings.find("batch_isend_irecv"))
    assert batch.bytes.tolist() == [512 << 20] * 2 and sorted(batch.device.tolist()) == [0, 1]
    assert (batch.duration_ns > 0).all() and Ending.UNSEEN not in batch.ending
    forgotten = trace.collectives.take(trace.collectives.name == trace.strings.find("broadcast"))
    assert forgotten.ending.tolist() == [Ending.UNSEEN] * 2 and forgotten.device.tolist() == [NONE] * 2
    assert CollectiveCosts.of(trace).next("broadcast", 256 << 20, 2).origin == Origin.SCALED


# From the second step on, DDP uses two buckets. In each step, the script also calls an operation itself.
BUCKETS = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn

settings = {name: value for name, value in os.environ.items() if name.startswith(("TORCH_", "NCCL_", "GLOO_"))}
dist.init_process_group(sys.argv[1])
device = torch.device("cuda", dist.get_rank()) if sys.argv[1] == "nccl" else torch.device("cpu")
net = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 100)).to(device)
model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.04)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 100, device=device)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(5, device=device), async_op=True).wait()
found = [None, None]
dist.all_gather_object(found, settings)
now = {name: value for name, value in os.environ.items() if name.startswith(("TORCH_", "NCCL_", "GLOO_"))}
assert now == settings, (now, settings)
print(sorted(settings))
dist.destroy_process_group()
"""
LAYERS = (200 * 100 + 200) * 4, (100 * 200 + 100) * 4  # the bytes of the two layers


def record_buckets(folder: Path, backend: str, *words: str) -> dict[int, list[tuple[str, int, str, Ending, int]]]:
    """Return, for each rank, the (operation, bytes, phase, ending, step) of its collectives in order."""
    (folder / "train.py").write_text(BUCKETS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", backend]
    trace = record(*words, "--grain", "phase", "--", *torchrun, cwd=folder)
    assert Counter(trace.steps.rank.tolist()) == {0: 6, 1: 6}
    assert set(trace.collectives.group_size.tolist()) == {2}
    assert {trace.strings[int(row)] for row in trace.collectives.backend} == {backend}
    assert not [lack for lack in trace.lacks if "unless profiled" in lack or "forgotten" in lack or "is off" in lack]
    found: dict[int, list[tuple[str, int, str, Ending, int]]] = {}
    for rank in (0, 1):
        steps, phases = np.flatnonzero(trace.steps.rank == rank), trace.phases
        calls = trace.collectives.take(trace.collectives.rank == rank)
        found[rank] = []
        for name, size, start_ns, ending in zip(calls.name, calls.bytes, calls.start_ns, calls.ending, strict=True):
            inside = np.isin(phases.step, steps) & (phases.start_ns <= start_ns) & (start_ns < phases.end_ns)
            at = np.flatnonzero(inside)
            phase = trace.strings[int(phases.name[at[0]])] if len(at) else ""
            step = int(trace.steps.number[phases.step[at[0]]]) if len(at) else NONE
            found[rank].append((trace.strings[int(name)], int(size), phase, Ending(int(ending)), step))
    return found


@pytest.mark.skipif(torch.__version__ < "2.11", reason="gloo keeps no flight recorder yet")
def test_recordings_of_phase_times_contain_collectives_of_cpp_code_once(tmp_path: Path) -> None:
    """The collectives of DDP are read from PyTorch's flight recorder, each of them once. No environment variable is set for
    this."""
    for calls in record_buckets(tmp_path, "gloo").values():
        buckets = [(size, step) for name, size, phase, _, step in calls if (name, phase) == ("all_reduce", "backward")]
        first, later = LAYERS
        assert buckets[0] == (first + later, 0)
        assert buckets[1:] == [(size, step) for step in range(1, 6) for size in (later, first)]
        own = [ending for name, size, _, ending, _ in calls if (name, size) == ("all_reduce", 20)]
        assert own == [Ending.SEEN] * 6
        assert sum(name == "all_reduce" for name, *_ in calls) == 11 + 6
        assert sum(name == "all_gather_object" for name, *_ in calls) == 1
        # When the model is created, all parameters are broadcast.
        assert ("broadcast", first + later) in [call[:2] for call in calls]
        assert all(ending == Ending.UNSEEN for _, _, phase, ending, _ in calls if phase == "backward")
    settings = (tmp_path / "stdout").read_text()
    assert "TORCH_FR" not in settings and "TRACE_BUFFER" not in settings


def test_collectives_started_in_cpp_on_a_python_process_group_get_device_times(tmp_path: Path, gpu: Path) -> None:
    for calls in record_buckets(tmp_path, "nccl", "--on", str(gpu)).values():
        first, later = LAYERS
        buckets = [size for name, size, *_ in calls if name == "all_reduce" and size != 20]
        assert buckets == [first + later, *[size for _ in range(5) for size in (later, first)]]
        assert ("broadcast", first + later) in [call[:2] for call in calls]
        assert {ending for name, *_, ending, _ in calls if name == "all_reduce"} <= {Ending.SEEN, Ending.BY}
