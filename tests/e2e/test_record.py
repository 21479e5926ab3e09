"""Tests `trace record` as a user runs it, on the CPU and on the virtual GPU of another recording. Many tests end or disturb a
run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.replayer.recordings import phase_recording
from traces.analyses.modules import module_times
from traces.figures.measure import phase_times
from traces.format.trace_file import load, save
from traces.model.trace import BatchKind, HostKind, StepKind, Trace
from traces.model.workload import InputTensor, Sameness, WorkloadSignature, compare_workloads

pytestmark = pytest.mark.real_time

TRAIN = """
import sys
import torch
from torch import nn

steps, device = int(sys.argv[1]), sys.argv[2]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(steps * 4, 8), torch.randint(0, 4, (steps * 4,)))
for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    x, y = x.to(device), y.to(device)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), flush=True)
    exec(" ".join(sys.argv[3:]))
"""

PHASES_MS = {"h2d": 2, "forward": 20, "loss": 2, "backward": 30, "optimizer": 4}


@pytest.fixture(scope="module")
def phase_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of phases with steps of 58 ms."""
    path = tmp_path_factory.mktemp("traces") / "phases.msgpack"
    save(phase_recording(PHASES_MS), path)
    return path


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "tui.cli", "record", *map(str, words)]


def record(*words: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def device_ms(trace: Trace, name: str) -> float:
    rows = (trace.phases.name == trace.strings.find(name)) & (trace.steps.kind[trace.phases.step] == StepKind.STEADY)
    phases = trace.phases.take(rows)
    # On a busy machine, phases can only become longer, because the device waits for the host.
    return float(np.percentile(phases.device_end_ns - phases.device_start_ns, 25)) / 1e6


def test_recording_a_replay_reproduces_its_phase_times(place: Path, phase_trace: Path) -> None:
    """The times of phases in the new recording differ from those of the replayed recording by at most 2 % or 0.5 ms."""
    done = record("--on", phase_trace, "--grain", "phase", "-o", "b.msgpack", "train.py", "12", "cuda", cwd=place)
    assert done.returncode == 0, done.stderr
    trace = load(place / "b.msgpack")
    assert trace.grain == "phase"
    assert trace.steps.kind.tolist() == [StepKind.WARMUP] * 3 + [StepKind.STEADY] * 9
    for name, ms in PHASES_MS.items():
        assert device_ms(trace, name) == pytest.approx(ms, rel=0.02, abs=0.5), name
    assert set(phase_times(trace)) >= {"loader", "h2d", "forward", "loss", "zero_grad", "backward", "optimizer"}
    assert trace.values.value.tolist() and (trace.values.step[:-1] >= 0).all()
    assert (trace.batches.kind == BatchKind.WAIT).all() and set(trace.batches.bytes.tolist()) == {4 * 8 * 4 + 4 * 8}
    assert trace.devices and trace.run_of(0).loaders[0].batch_size == 4
    assert "next: trace info b.msgpack, or trace replay train.py 12 cuda --trace b.msgpack" in done.stderr
    assert sorted(path.name for path in place.iterdir()) == ["b.msgpack", "train.py"]  # no partial files are left


def test_a_recording_of_a_replay_can_be_replayed(place: Path, phase_trace: Path) -> None:
    done = record("--on", phase_trace, "--grain", "phase", "-o", "b.msgpack", "train.py", "8", "cuda", cwd=place)
    assert done.returncode == 0, done.stderr
    words = [sys.executable, "-m", "tui.cli", "replay", "-o", "c.msgpack", "train.py", "8", "cuda", "--trace", "b.msgpack"]
    again = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout  # the replay prints the recorded losses
    assert phase_times(load(place / "c.msgpack"))


def test_only_the_host_is_recorded_without_a_gpu(place: Path) -> None:
    words = ("--warmup", "1", "--clean-steps", "2", "--profiled-steps", "2", "train.py", "8", "cpu")
    done = record(*words, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "no device times: the script used no GPU on this machine" in done.stderr
    trace = load(place / "train.msgpack")
    warmup, steady, profiled = StepKind.WARMUP, StepKind.STEADY, StepKind.PROFILED
    assert trace.steps.kind.tolist() == [warmup, steady, steady, warmup, profiled, profiled, steady, steady]
    ops = {trace.strings[int(name)] for name in trace.host.name[trace.host.kind == HostKind.OP]}
    assert {"aten::linear", "aten::addmm", "aten::cross_entropy_loss"} <= ops
    modules = module_times(trace)
    assert modules and all(module.host_ns for module in modules) and not any("Module" in name for name in ops)
    assert len(trace.memory) and not len(trace.device)
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert trace.values.value.tolist() == pytest.approx(losses)
    run = trace.run_of(0)
    assert run.clean is not None and run.clean.steps == 4 and run.host_scale["forward"] > 0 and run.profiler_cost is not None


COMPARE = """
import atexit, multiprocessing, os, pickle, sys, threading, traceback
import torch

class Thing:
    pass

def work(queue):
    queue.put((__name__, Thing.__module__, sorted(sys.argv), Thing()))

if __name__ == "__main__":
    atexit.register(print, "first registered, last run")
    atexit.register(print, "last registered, first run")
    print(sys.argv, __name__, os.path.basename(__file__), __spec__ is None, sys.path[:2], sorted(os.listdir(".")))
    print(pickle.loads(pickle.dumps(Thing())).__class__, pickle.dumps(Thing()))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    print([str(part).partition(" object at")[0] for part in queue.get()])
    worker.join()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(9):
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
    print(type(model).__call__.__name__, torch.Tensor.item.__name__, type(optimizer).step.__qualname__, repr(loss), flush=True)
    torch.nn.functional.mse_loss(loss, torch.ones(3))  # warns about the shapes, with the place of this line
    torch.nn.functional.log_softmax(torch.ones(2, 2))
    try:
        torch.ones(1).to("nowhere")
    except RuntimeError:
        traceback.print_exc()
    print([thread.name for thread in threading.enumerate()])
    print("to stderr", file=sys.stderr)
    sys.exit(int(os.environ.get("RANK", 0)) * 0 + 7)
"""


@pytest.mark.parametrize("way", ["script", "module", "torchrun"])
def test_the_recorder_does_not_change_what_a_script_does(tmp_path: Path, way: str) -> None:
    """Arguments, names, paths, output, the exit code, pickling, atexit, threads and a spawned worker are the same with and
    without recording."""
    (tmp_path / "compare.py").write_text(COMPARE.replace("+ 7", "+ (0 if 'torchrun' in sys.argv else 7)"))
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    words = {"script": ["compare.py"], "module": ["-m", "compare"], "torchrun": [*torchrun, "compare.py"]}[way]
    words += [way, "--lr", "0.1"]
    native = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    where = tmp_path.parent / f"{way}.msgpack"
    ours = record("--grain", "phase", "-o", where, *(["--", *words] if way == "torchrun" else words), cwd=tmp_path)
    assert (ours.stdout, ours.returncode) == (native.stdout, native.returncode)
    own_lines = [line for line in ours.stderr.splitlines() if not line.startswith("trace: ")]
    assert own_lines == native.stderr.splitlines()
    assert native.returncode == (0 if way == "torchrun" else 7) and "to stderr" in native.stderr
    assert native.stderr.count("compare.py:") == 2
    assert len(load(where).steps) == 9


@pytest.mark.parametrize(
    ("end", "code", "steps"),
    [
        ("if step == 4: raise ValueError('no')", 1, 5),
        ("if step == 4: sys.exit(3)", 3, 5),
        ("if step == 4: import os; os._exit(5)", 5, 5),
        ("if step == 4: import os; os.fork() or os._exit(0); os.wait()", 0, 8),
    ],
    ids=["exception", "exit", "os._exit", "fork"],
)
def test_the_recording_is_complete_for_every_way_a_script_can_end(place: Path, end: str, code: int, steps: int) -> None:
    done = record("--grain", "phase", "train.py", "8", "cpu", end, cwd=place)
    assert done.returncode == code
    assert ("ValueError: no" in done.stderr) is ("ValueError" in end)
    trace = load(place / "train.msgpack")
    assert (len(trace.steps), trace.problems) == (steps, {})
    assert done.stderr.count("wrote train.msgpack") == 1


def started(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start to record a script that never ends, and let the script train for a second."""
    process = subprocess.Popen(
        command("--grain", "phase", *words, "train.py", "100000", "cpu", "import time; time.sleep(0.01)"),
        cwd=place,
        env=os.environ | {"TMPDIR": str(place)},  # a killed command leaves its temporary folders behind
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(80):
        process.stdout.readline()
    return process


def child_of(process: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_the_steps_before_a_script_was_killed_are_kept(place: Path) -> None:
    process = started(place)
    os.kill(child_of(process), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    trace = load(place / "train.msgpack")
    assert len(trace.steps) >= 20
    assert trace.problems == {"killed-script": 1} and "wrote train.msgpack" in err


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_a_profile_finished_before_the_script_was_killed_is_kept(place: Path) -> None:
    process = started(place, "--grain", "kernel", "--warmup", "1", "--clean-steps", "1", "--profiled-steps", "2")
    os.kill(child_of(process), signal.SIGKILL)
    process.communicate(timeout=60)
    trace = load(place / "train.msgpack")
    assert "killed-script" in trace.problems and len(trace.steps) >= 20
    assert len(trace.host) and trace.run_of(0).profiler.steps == (3, 4)


VALIDATES_FIRST = """
import torch
from torch import nn

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    for _ in range(12):
        model(torch.ones(4, 8))
for _ in range(8):
    nn.functional.cross_entropy(model(torch.ones(4, 8)), torch.zeros(4, dtype=torch.long)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_training_is_profiled_although_the_script_validates_first(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(VALIDATES_FIRST)
    done = record("--warmup", "1", "--clean-steps", "1", "--profiled-steps", "2", "first.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    trace = load(tmp_path / "first.msgpack")
    assert trace.run_of(0).profiler.steps == (3, 4, 15, 16)
    steps, host = trace.steps, trace.host
    assert steps.kind[12:17].tolist() == [
        StepKind.WARMUP, StepKind.STEADY, StepKind.WARMUP, StepKind.PROFILED, StepKind.PROFILED
    ]  # fmt: skip
    ops = host.start_ns[host.name == trace.strings.find("aten::addmm")]
    assert ((ops[:, None] >= steps.start_ns) & (ops[:, None] < steps.end_ns)).sum(0).nonzero()[0].tolist() == [3, 4, 15, 16]
    clean = trace.run_of(0).clean
    assert clean is not None and clean.steps == int((steps.kind == StepKind.STEADY).sum())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.msgpack", "first.py"]


def test_ctrl_c_interrupts_the_script_and_the_recording_is_still_written(place: Path) -> None:
    process = started(place)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err and "wrote train.msgpack" in err
    trace = load(place / "train.msgpack")
    assert len(trace.steps) >= 70 and trace.problems == {}


@pytest.mark.skipif(sys.platform != "linux", reason="kills the whole session at once")
def test_the_partial_file_is_readable_after_sigkill(place: Path) -> None:
    process = started(place)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    parts = list(place.glob("train.msgpack.*.part"))
    assert len(parts) == 1 and not (place / "train.msgpack").exists()
    assert len(load(parts[0]).steps) >= 20
    told = subprocess.run([sys.executable, "-m", "tui.cli", "info", parts[0].name], cwd=place, capture_output=True, text=True)
    assert told.returncode == 0 and "step" in told.stdout
    again = record("--grain", "phase", "train.py", "3", "cpu", cwd=place)  # a later run does not change the partial file
    assert again.returncode == 0 and parts[0].exists() and len(load(place / "train.msgpack").steps) == 3


def test_training_continues_after_the_disk_becomes_full(place: Path) -> None:
    """A limit on the file size fails a write in the same way as a full disk."""
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash"]
    words = command("--grain", "phase", "train.py", "400", "cpu", "x = [t.item() for t in torch.rand(40)]")
    done = subprocess.run([*limited, *words], cwd=place, capture_output=True, text=True, timeout=120)
    assert done.stdout.count("loss") == 400
    said = [line for line in done.stderr.splitlines() if line.startswith("trace: ")]
    assert sum("recording stopped, the script continues" in line for line in said) == 1, done.stderr
    readable = [path for path in place.iterdir() if path.suffix in (".part", ".msgpack") and path.stat().st_size]
    assert any(len(load(path).steps) for path in readable)


def test_a_script_that_runs_its_own_profiler_is_not_profiled(place: Path) -> None:
    profiling = "step or globals().update(p=torch.profiler.profile()) or p.start(); step == 6 and p.stop()"
    words = ("--warmup", "1", "--clean-steps", "1", "--profiled-steps", "2", "train.py", "8", "cpu", profiling)
    done = record(*words, cwd=place)
    assert done.returncode == 0 and done.stdout.count("loss") == 8, done.stderr
    trace = load(place / "train.msgpack")
    assert len(trace.steps) == 8 and trace.run_of(0).profiler.failed == "the script was already profiling itself"


def test_a_script_without_torch_is_reported_as_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('hello')")
    done = record("plain.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert done.stderr == "trace: nothing was recorded: the script did not import torch\n"
    assert not (tmp_path / "plain.msgpack").exists()


def test_values_that_torch_compile_reads_are_not_recorded(tmp_path: Path) -> None:
    """GIVEN a backend that reads a constant while it compiles THEN only the read of the script is recorded."""
    text = """
import torch

def backend(graph, inputs):
    torch.full((), float("-inf")).item()
    return graph.forward

weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.0)
loss = torch.compile(lambda: (weight + 1).sum(), backend=backend)()
loss.backward()
optimizer.step()
print(loss.item())
"""
    (tmp_path / "compiles.py").write_text(text)
    done = record("-o", "made.msgpack", "compiles.py", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == "4.0", done.stderr
    assert load(tmp_path / "made.msgpack").values.value.tolist() == [4.0]


def test_recording_works_without_the_package_textual(place: Path) -> None:
    (place / "textual.py").write_text("raise ImportError('textual is not installed here')")
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = record("--grain", "phase", "train.py", "3", "cpu", cwd=place, env=environment)
    assert done.returncode == 0 and (place / "train.msgpack").exists(), done.stderr


WORKERS = """
import torch
from torch import nn

class Augmented(torch.utils.data.Dataset):
    def __init__(self):
        self.augment = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    def __len__(self):
        return 24
    def __getitem__(self, index):
        with torch.no_grad():
            return self.augment(torch.full((8,), float(index)))

if __name__ == "__main__":
    model = nn.Linear(8, 1)
    model(torch.zeros(1, 8))  # the recorder is there before the workers are
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for context in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Augmented(), 4, num_workers=2, multiprocessing_context=context)
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
"""


def test_module_calls_in_loader_workers_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    done = record("--grain", "phase", "workers.py", cwd=tmp_path)
    assert done.returncode == 0 and "processes" not in done.stderr, done.stderr
    trace = load(tmp_path / "workers.msgpack")
    assert len(trace.steps) == 12 and not (trace.steps.kind == StepKind.EVALUATION).any()


BY_HAND = """
import sys
import torch
from torch import nn

device = sys.argv[1]
model, criterion = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device), nn.CrossEntropyLoss()
x, y = torch.ones(4, 8, device=device), torch.zeros(4, dtype=torch.long, device=device)
for _ in range(10):
    model.zero_grad()
    criterion(model(x), y).backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.1)
"""


def test_a_script_without_an_optimizer_is_recorded_and_replayed_in_steps(tmp_path: Path, phase_trace: Path) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    done = record("--on", phase_trace, "--grain", "phase", "-o", "a.msgpack", "by_hand.py", "cuda", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = [sys.executable, "-m", "tui.cli", "replay", "-o", "b.msgpack", "by_hand.py", "cuda", "--trace", "a.msgpack"]
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    for name in ("a.msgpack", "b.msgpack"):
        trace = load(tmp_path / name)
        assert len(trace.steps) == 10 and not (trace.steps.kind == StepKind.EVALUATION).any(), name
        assert {"forward", "loss", "backward", "other"} <= set(phase_times(trace)), name


WORKLOAD = """
import sys
import torch
from torch import nn

batch, width = int(sys.argv[1]), int(sys.argv[2])
model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4)).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(4 * batch, 8), torch.randint(0, 4, (4 * batch,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=batch):
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    optimizer.step()
"""


def test_a_recording_and_its_replay_have_the_same_workload_signature(tmp_path: Path, phase_trace: Path) -> None:
    (tmp_path / "train.py").write_text(WORKLOAD)
    done = record("--on", phase_trace, "--grain", "phase", "-o", "a.msgpack", "train.py", "4", "16", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recorded = load(tmp_path / "a.msgpack").workload
    linear = 8 * 16 + 16 + 16 * 4 + 4
    assert recorded is not None and recorded.module_order
    assert recorded == WorkloadSignature(
        parameters=linear,
        parameter_bytes=4 * linear,
        modules={"Linear": 2, "ReLU": 1, "Sequential": 1},
        inputs=(InputTensor((4, 8), "float32"),),
        batch_bytes=4 * (8 * 4 + 8),
        optimizer="Adam",
        trainable_parameters=212,
        autocast="off",
        module_order=recorded.module_order,
        training_modules=4,
    )
    sameness = []
    for i, arguments in enumerate((("4", "16"), ("8", "16"), ("4", "32"))):
        options = ["--clock", "virtual", "-o", f"{i}.msgpack", "--trace", "a.msgpack"]
        words = [sys.executable, "-m", "tui.cli", "replay", *options, "train.py", *arguments]
        again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert again.returncode == 0, again.stderr
        replayed = load(tmp_path / f"{i}.msgpack").workload
        assert replayed is not None
        sameness.append(compare_workloads(recorded, replayed).sameness)
    assert sameness == [Sameness.SAME_PROGRAM, Sameness.OTHER_BATCH_SIZE, Sameness.OTHER_PROGRAM]


def test_the_memory_of_a_long_recording_does_not_grow(place: Path) -> None:
    """Rows are streamed to the file, so the memory of the process does not grow with the number of steps."""
    watch = "step % 500 == 0 and print('kib', int(open('/proc/self/statm').read().split()[1]) * 4)"
    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")
    done = record("--grain", "phase", "train.py", "6200", "cpu", watch, cwd=place)
    kib = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("kib")]
    # PyTorch's memory use becomes steady within the first 3 000 steps, and the allocator may take 1 MiB at any time. A leak
    # grows all the time.
    growth = np.diff(kib[6:])
    assert len(growth) == 6 and np.median(growth) < 64, kib  # 64 KiB in 500 steps are 128 bytes per step


def test_recorded_stacks_name_functions_without_folders(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--warmup", "1", "--clean-steps", "1", "--profiled-steps", "2")
    for name, stacks in (("plain", ()), ("stacks", ("--stacks",))):
        done = record(*words, *stacks, "-o", f"{name}.msgpack", "train.py", "6", "cpu", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    trace = load(tmp_path / "stacks.msgpack")
    names = {trace.strings[int(row)] for row in trace.host.name[trace.host.kind == HostKind.PYTHON]}
    assert any(name.startswith("torch/nn/modules/linear.py(") for name in names)
    assert not any(str(tmp_path) in text for text in trace.strings.texts)
    assert not (load(tmp_path / "plain.msgpack").host.kind == HostKind.PYTHON).any()
    assert not any(name.startswith(("tracer/", "traces/")) for name in names)
    assert (tmp_path / "stacks.msgpack").stat().st_size <= 2 * (tmp_path / "plain.msgpack").stat().st_size


ENDS_LATE = """
import atexit, time
import torch

model = torch.nn.Linear(2, 2)
model.to("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for _ in range(9):
        model(torch.ones(1, 2, device=model.weight.device)).sum().backward()
        optimizer.step()

def evaluate():
    with torch.no_grad():
        for _ in range(3):
            model(torch.ones(1, 2, device=model.weight.device))

atexit.register(train)
atexit.register(time.sleep, 4)
train()
evaluate()
"""


def test_the_last_evaluation_step_ends_before_the_exit_handlers_run(tmp_path: Path, phase_trace: Path) -> None:
    """GIVEN a script that evaluates last, and exit handlers that sleep and train THEN no step contains the sleep. The steps of
    the exit handler are in the recording and in the replay."""
    (tmp_path / "late.py").write_text(ENDS_LATE)
    record("--grain", "phase", "-o", "late.msgpack", "late.py", cwd=tmp_path)
    words = [sys.executable, "-m", "tui.cli", "replay", "-q", "--clock", "recorded", "-o", "replay.msgpack"]
    words += ["--trace", str(phase_trace), "late.py"]
    replayed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in replayed.stderr, replayed.stderr
    for name in ("late.msgpack", "replay.msgpack"):
        steps = load(tmp_path / name).steps
        assert sum(kind == StepKind.EVALUATION for kind in steps.kind) == 3
        assert len(steps) == 21
        assert max(steps.duration_ns[:12]) < 4 * 10**9, name
