"""Tests that the simulated device follows the rules of CUDA that torch can observe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.conftest import OnDevice
from tests.cuda.truth import read_logs

pytestmark = pytest.mark.cuda


def test_a_forbidden_call_breaks_a_graph_capture(on_device: OnDevice) -> None:
    """In global mode, an event query in any thread fails and breaks the capture. A branch that is not joined also makes the
    capture fail."""
    result = on_device("""
import threading
def attempt(body, mode="global"):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            body()
    except Exception as error:
        torch.cuda.synchronize()
        return str(error).splitlines()[0]
    graph.replay()
    torch.cuda.synchronize()
    return "done"
x = torch.zeros(64, 64, device="cuda")
event, side = torch.cuda.Event(), torch.cuda.Stream()
event.record()
errors = []
def query():
    try:
        event.query()
    except Exception as error:
        errors.append(str(error).splitlines()[0])
def elsewhere():
    x @ x
    thread = threading.Thread(target=query)
    thread.start()
    thread.join()
def unjoined():
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ x
def joined():
    unjoined()
    torch.cuda.current_stream().wait_stream(side)
answer({
    "plain": attempt(lambda: x @ x),
    "query": attempt(lambda: event.query()),
    "query in another thread": attempt(elsewhere),
    "its error": errors[0],
    "query in another thread, thread-local capture": attempt(elsewhere, "thread_local"),
    "unjoined": attempt(unjoined),
    "joined": attempt(joined),
    "errors": len(errors),
})
""")
    lost = "CUDA error: operation failed due to a previous error during capture"
    assert result == {
        "plain": "done",
        "query": lost,
        "query in another thread": lost,
        "its error": "CUDA error: operation not permitted when stream is capturing",
        "query in another thread, thread-local capture": "done",
        "unjoined": "CUDA error: capturing stream has unjoined work",
        "joined": "done",
        "errors": 1,
    }


def test_a_launched_graph_runs_all_of_its_nodes(on_device: OnDevice, tmp_path: Path) -> None:
    """GIVEN a graph of three nodes WHEN it is launched three times THEN the log has each node three times. One node is on a
    side stream. It starts after the fork of this stream, and ends before the join."""
    on_device("""
x, y, side = torch.ones(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda"), torch.cuda.Stream()
x @ x
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y.copy_(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ x
    torch.cuda.current_stream().wait_stream(side)
    x + y
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
answer(None)
""")
    (log,) = read_logs(tmp_path / "log")
    nodes = sorted((work for work in log.work if work.graph), key=lambda work: work.start_ns)
    assert len(nodes) == 9
    for copy, product, addition in zip(nodes[::3], nodes[1::3], nodes[2::3], strict=True):
        assert copy.kind == "memcpy" and "gemm" in product.name and "add" in addition.name
        assert copy.end_ns <= product.start_ns and product.end_ns <= addition.start_ns
        assert copy.stream == addition.stream != product.stream
    assert len({work.graph for work in nodes}) == 1


def test_copies_keep_their_bytes_and_copies_in_two_directions_overlap(on_device: OnDevice, tmp_path: Path) -> None:
    """Bytes come back unchanged. A pageable copy blocks the host, and a pinned one does not. Each direction has one copy
    engine, so only copies in opposite directions overlap."""
    result = on_device(
        """
import time
host = torch.arange(1 << 20, dtype=torch.float32)
pinned, back = host.pin_memory(), torch.empty_like(host).pin_memory()
def timed(body):
    torch.cuda.synchronize()
    start = time.perf_counter()
    body()
    return time.perf_counter() - start
device = host.cuda()
pageable = timed(lambda: device.copy_(host))
asynchronous = timed(lambda: device.copy_(pinned, non_blocking=True))
torch.cuda.synchronize()
one, two = torch.cuda.Stream(), torch.cuda.Stream()
other = torch.empty_like(device)
torch.cuda.synchronize()
with torch.cuda.stream(one):
    device.copy_(pinned, non_blocking=True)
with torch.cuda.stream(two):
    other.copy_(pinned, non_blocking=True)
with torch.cuda.stream(one):
    back.copy_(device, non_blocking=True)
torch.cuda.synchronize()
peer = device.to("cuda:1")
same = bool((back == host).all() and (peer.cpu() == host).all())
answer({"pageable": pageable, "asynchronous": asynchronous, "same": same})
""",
        SIMGPU_DEVICES="2",
        SIMGPU_SLOWDOWN="80",  # each copy takes 28 ms, so even a busy machine launches the next copy in time
    )
    assert result["same"]
    assert result["pageable"] > 80 * 0.0008  # 4 MiB take 0.8 ms at 5 GB/s, and SIMGPU_SLOWDOWN is 80
    assert result["asynchronous"] < result["pageable"] / 2
    (log,) = read_logs(tmp_path / "log")
    to_device = [work for work in log.work if "Pinned -> Device" in work.name and work.stream > 7]
    to_host = [work for work in log.work if "Device -> Pinned" in work.name and work.stream > 7]
    (first, second), (third,) = to_device, to_host
    assert second.start_ns >= first.end_ns  # copies in one direction share an engine
    assert third.start_ns < second.end_ns  # the other direction has another engine
    assert [work.name for work in log.work if "PtoP" in work.name] == ["Memcpy PtoP (Device -> Device)"]


def test_a_filled_tensor_has_a_known_value(on_device: OnDevice) -> None:
    """GIVEN memory with earlier contents WHEN a tensor in this memory is filled, directly or by a CUDA graph THEN it has its
    value.

    GradScaler therefore finds no infinite gradient and skips no step.
    """
    result = on_device("""
torch.rand(1 << 18).cuda()                       # the allocator uses this memory again
dtypes = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool
filled = {str(dtype): torch.full((3,), 1, dtype=dtype, device="cuda").tolist() for dtype in dtypes}
x, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.fill_(2.5)
x.zero_()
before = x.tolist()
graph.replay()
model = torch.nn.Linear(64, 64, device="cuda")
optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler()
steps = []
optimizer.register_step_post_hook(lambda *_: steps.append(1))
for _ in range(3):
    scaler.scale(model(torch.rand(64, 64).cuda()).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
answer({"filled": filled, "before": before, "graph": x.tolist(), "steps": len(steps)})
""")
    assert len(result["filled"]) == 7 and all(values == [1, 1, 1] for values in result["filled"].values())
    assert (result["before"], result["graph"], result["steps"]) == ([0, 0], [2.5, 2.5], 3)


def test_a_full_queue_blocks_the_host(on_device: OnDevice) -> None:
    """GIVEN a long kernel WHEN more than 1 024 launches follow THEN the next launch blocks the host."""
    result = on_device(
        """
import time
x = torch.zeros(8, device="cuda")
x + 1
torch.cuda.synchronize()
durations = []
start = time.perf_counter()
for _ in range(1500):
    x.add_(1)
    durations.append(time.perf_counter() - start)
answer([durations[900], durations[-1]])
""",
        SIMGPU_SLOWDOWN="400",
        SIMGPU_JITTER="0",
    )
    before, after = result
    assert after > before + 0.2  # 475 launches each wait for a kernel of more than 0.6 ms


def test_the_simulated_device_reports_configured_memory_and_launch_errors_like_hardware(on_device: OnDevice) -> None:
    """GIVEN a memory limit, failing allocations and a failing launch THEN torch reports each error as on hardware. The launch
    error persists."""
    memory = on_device(
        """
def attempt(size):
    try:
        torch.empty(size << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return "out of memory"
    return "done"
answer([attempt(60), attempt(200), attempt(60)])
""",
        SIMGPU_MEMORY_MB="100",
    )
    assert memory == ["done", "out of memory", "done"]
    allocations = on_device(
        """
results = []
for _ in range(4):
    try:
        results.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        results.append(None)
answer([result is not None for result in results])
""",
        SIMGPU_OOM_AT="2-3",  # the second allocation fails, and so does torch's second attempt
    )
    assert allocations == [True, False, True, True]
    fault = on_device(
        """
x, texts = torch.zeros(8, device="cuda"), []
for _ in range(3):
    try:
        x.add_(1)
        torch.cuda.synchronize()
    except Exception as error:
        texts.append(str(error).splitlines()[0])
answer(texts)
import os; os._exit(0)  # a faulted context makes torch's own exit noisy
""",
        SIMGPU_ERROR_AT_LAUNCH="2",
    )
    assert fault == ["CUDA error: device-side assert triggered"] * 3


def test_a_stream_that_hangs_blocks_neither_other_streams_nor_the_exit(on_device: OnDevice) -> None:
    """GIVEN a launch that hangs THEN an event after it never completes. The other stream continues, and the process can
    exit."""
    result = on_device(
        """
import time, os
x, side = torch.zeros(8, device="cuda"), torch.cuda.Stream()
x.add_(1)
event = torch.cuda.Event()
event.record()
with torch.cuda.stream(side):
    torch.ones(8, device="cuda")
    side.synchronize()
time.sleep(0.2)
answer(event.query())
os._exit(0)
""",
        SIMGPU_HANG_AT_LAUNCH="2",
    )
    assert result is False


@pytest.mark.parametrize("backend", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_memory_from_either_other_allocator_can_be_copied_and_freed(on_device: OnDevice, backend: str) -> None:
    """Copies can write to memory of the two allocators of torch that are not the default."""
    result = on_device(
        """
import warnings
warnings.simplefilter("ignore")
tensors = [torch.arange(1000 * (n + 1)).cuda() for n in range(50)]
same = all(bool((t.cpu() == torch.arange(len(t))).all()) for t in tensors)
del tensors
torch.cuda.synchronize()
torch.cuda.empty_cache()
free, total = torch.cuda.mem_get_info()
answer([same, total - free])
""",
        PYTORCH_ALLOC_CONF=backend,
    )
    assert result == [True, 0]


def test_the_seed_of_the_simulated_device_determines_all_durations(on_device: OnDevice, tmp_path: Path) -> None:
    """GIVEN no jitter WHEN a program runs twice THEN all durations are equal. With another seed, they differ. A product of
    twice the size has eight times as many operations."""
    code = """
a, b = torch.zeros(2048, 2048, device="cuda"), torch.zeros(4096, 4096, device="cuda")
a @ a; b @ b; a.relu_()
torch.cuda.synchronize()
answer(None)
"""
    durations = []
    for seed in ("1", "1", "2"):
        for old in (tmp_path / "log").glob("*"):
            old.unlink()
        on_device(code, SIMGPU_JITTER="0", SIMGPU_SEED=seed)
        (log,) = read_logs(tmp_path / "log")
        durations.append({work.name: work.end_ns - work.start_ns for work in log.work})
    assert durations[0] == durations[1] != durations[2]
    products = [work.end_ns - work.start_ns for work in log.work if "gemm" in work.name]
    assert products == [3500 + 2 * 2048**3 // 12_000, 3500 + 2 * 4096**3 // 12_000]


def test_a_call_that_is_not_simulated_fails_and_its_error_names_the_call(on_device: OnDevice) -> None:
    """Because such a call fails, no test passes by accident."""
    assert "CUSOLVER" in on_device("""
try:
    torch.linalg.eigh(torch.eye(3, device="cuda"))
    answer("no error")
except Exception as error:
    answer(str(error).upper())
""")


RANKS = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
def of(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype).cuda()
mine = of(1.0, 2.0) * 1
x = of(1.0 + rank, 5.0 - rank); dist.all_reduce(x); assert x.tolist() == [3.0, 9.0], x
x = of(1.0 + rank, 5.0 - rank); dist.all_reduce(x, dist.ReduceOp.MAX); assert x.tolist() == [2.0, 5.0], x
x = of(1.0 + rank, dtype=torch.bfloat16); dist.all_reduce(x, dist.ReduceOp.AVG); assert x.tolist() == [1.5], x
x = of(1.5 + rank, dtype=torch.float16); dist.all_reduce(x); assert x.tolist() == [4.0], x
x = of(7 + rank, dtype=torch.int64); dist.broadcast(x, 1); assert x.tolist() == [8], x
out = of(0, 0, 0, 0); dist.all_gather_into_tensor(out, of(rank, 10 + rank)); assert out.tolist() == [0, 10, 1, 11], out
out = of(0); dist.reduce_scatter_tensor(out, of(1 + rank, 10 + rank)); assert out.tolist() == [[3.0], [21.0]][rank], out
out = of(0, 0); dist.all_to_all_single(out, of(10 * rank, 10 * rank + 1))
assert out.tolist() == [[0.0, 10.0], [1.0, 11.0]][rank], out
x = of(5.0 + rank)
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
assert x.tolist() == [5.0]
objects = [None, None]; dist.all_gather_object(objects, {"rank": rank}); assert objects == [{"rank": 0}, {"rank": 1}]
large = torch.zeros(1 << 20, device="cuda"); dist.all_reduce(large)
dist.barrier()
os.write(1, f"rank {rank} is right\\n".encode())  # one write, so that the lines of two ranks do not mix
dist.destroy_process_group()
"""


def test_collectives_give_the_results_of_nccl(device: Path, tmp_path: Path) -> None:
    """Every collective has the result that NCCL gives, ends on both ranks at the same time, and leaves no file behind."""
    (tmp_path / "log").mkdir()
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    before = set(Path("/dev/shm").glob("simgpu-*"))
    done = subprocess.run(
        [str(device), sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)],
        env=dict(os.environ, SIMGPU_DEVICES="2", SIMGPU_LOG=str(tmp_path / "log"), OMP_NUM_THREADS="1"),
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split("\n")[:2]) == ["rank 0 is right", "rank 1 is right"]
    assert set(Path("/dev/shm").glob("simgpu-*")) == before
    first, second = ([work for work in log.work if "AllReduce" in work.name] for log in read_logs(tmp_path / "log") if log.work)
    assert [work.end_ns for work in first] == [work.end_ns for work in second]
    shortest = min(first[4].end_ns - first[4].start_ns, second[4].end_ns - second[4].start_ns)
    moved_ns = 4 * 2**20 / 20  # with n = 2 ranks, 2 (n - 1) / n of 4 MiB are sent, at 20 bytes per ns
    assert 0.95 * moved_ns < shortest < 1.2 * moved_ns + 20_000
