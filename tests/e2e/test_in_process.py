"""Tests scripts that start and stop a virtual GPU in their own process, with `trace_replay.gpu` or `trace_replay.start`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replayer.recordings import phase_recording
from trace_replay import unsupported
from traces.format.trace_file import save

ROOT = Path(__file__).resolve().parents[2]

# This code prints each attribute of torch and of the patched parts of Python that differs from its value before the start.
WALK = '''
import os, sys, types

PARTS = {"builtins", "os", "io", "gc", "time", "sys", "subprocess", "pickle", "bz2", "tarfile"}

def snapshot():
    found = {("environment",): dict(os.environ), ("meta_path",): list(sys.meta_path)}
    found["pynvml",] = sys.modules.get("pynvml")
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or (name.partition(".")[0] != "torch" and name not in PARTS):
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = value
            if isinstance(value, type) and str(value.__module__).partition(".")[0] in ("torch", "subprocess", "builtins"):
                found.update({(f"{value.__module__}.{value.__qualname__}", of): one for of, one in vars(value).items()})
            if isinstance(value, (list, dict)) and key != "__dict__":
                found[name, key, "items"] = value.copy()
    return found

def is_equal(one, other):
    return one is other or (type(one) is type(other) and isinstance(one, (int, str, float)) and one == other)

def is_same(one, other):
    if isinstance(one, dict) and type(one) is type(other):
        return one.keys() == other.keys() and all(is_equal(value, other[key]) for key, value in one.items())
    if type(one) is type(other) is list:
        return len(one) == len(other) and all(map(is_equal, one, other))
    return is_equal(one, other)

def differences(before, after):
    return sorted(".".join(key) for key in before.keys() | after.keys() if not is_same(before.get(key), after.get(key)))
'''

TRAIN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x, y = torch.randn(4, 8).cuda(), torch.randint(0, 4, (4,)).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "phases.msgpack"
    save(phase_recording({"h2d": 2, "forward": 20, "loss": 1, "backward": 40, "optimizer": 3}), path)
    return path


def run(source: str, folder: Path, *words: str, stdin: str | None = None) -> str:
    """Run a script in a folder that contains an unrelated module `tui`, and return what the script prints."""
    (folder / "tui.py").write_text("raise RuntimeError('this is the module of the user')", encoding="utf-8")
    script = folder / "script.py"
    script.write_text(source, encoding="utf-8")
    command = [sys.executable, "-W", "error::DeprecationWarning", *(["-i"] if stdin is not None else [str(script)]), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_warnings_show_lines_of_the_script(tmp_path: Path) -> None:
    """PyTorch's C++ code shows a warning at the line of its Python caller. This caller may be a function of the virtual GPU."""
    source = """
import warnings
import torch, trace_replay

def lines(*calls):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            call()
    return [(each.filename.rpartition("/")[2], each.lineno) for each in caught]

with trace_replay.gpu("a100", values="compute"):
    torch.set_warn_always(True)
    x = torch.ones(1, device="cuda", requires_grad=True)
    out = torch.empty(5)
    found = lines(
        lambda: torch.arange(3, out=out),
        lambda: float(x),
        lambda: torch.cuda.FloatTensor([0]),
        lambda: torch.cuda.FloatTensor([0]),
        lambda: torch.empty(2, dtype=torch.chalf, device="cuda"),
    )
    assert found == [("script.py", number) for number in range(17, 22)], found
show = warnings._showwarnmsg
with trace_replay.gpu("a100"):
    assert warnings._showwarnmsg is not show
assert warnings._showwarnmsg is show
"""
    run(source, tmp_path)


@pytest.mark.parametrize("start", ['with trace_replay.gpu("a100"):', 'gpu = trace_replay.start("a100")\nif True:'])
def test_the_last_frame_of_a_traceback_is_in_the_script(start: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import torch, trace_replay\n{start}\n    torch.ones(2, device='cuda') + torch.ones(2)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert files == [str(script)]
    assert done.stderr.splitlines()[-1].startswith("RuntimeError: Expected all tensors to be on the same device")


def test_an_error_of_the_replay_gets_no_explanation_about_the_driver(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import torch, torch.distributed as dist, trace_replay
gpu = trace_replay.start("a100")
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.eye(3, device="cuda").to_sparse())
""")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert "Tensors must be CUDA and dense" in done.stderr and "asked for NVIDIA's driver" not in done.stderr


def test_a_storage_keeps_its_values_when_it_is_resized(tmp_path: Path) -> None:
    source = """
import torch, trace_replay

with trace_replay.gpu("a100", values="compute"):
    for device in ("cpu", "cuda"):
        x = torch.arange(3.0, device=device)
        x.untyped_storage().resize_(20)
        longer = x.as_strided((5,), (1,))
        assert x.tolist() == [0, 1, 2] and longer.fill_(4).tolist() == [4] * 5
        x.untyped_storage().resize_(8)
        assert x[:2].tolist() == [4, 4]
"""
    run(source, tmp_path)


def test_stop_restores_torch_and_a_second_gpu_can_start(tmp_path: Path) -> None:
    source = """
import json, warnings
import torch, torch.distributed, torch.nn.parallel, torch.profiler
import torch.distributed._functional_collectives, torch.distributed.rpc.api, torch.multiprocessing.spawn
import torch._dynamo, torch.backends.cudnn.rnn
import torch.multiprocessing.reductions, torch._subclasses.fake_tensor, torch.jit._builtins
from torch.cuda import Event
import trace_replay
from trace_replay.virtual_gpu import our_packages

warnings.simplefilter("ignore")
with our_packages():
    import traces.format.trace_file, tui.report.page, replayer.child
on_cpu = torch.nn.Linear(2, 2)
earlier = torch.optim.SGD(on_cpu.parameters(), lr=0.1)
unpatched = [Event]  # a list, because the start also patches this module
torch.jit._builtins._get_builtin_table()
before = snapshot()
modules = set(sys.modules)
for values in ("compute", "recorded"):
    with trace_replay.gpu("a100", values=values) as gpu:
        assert Event is torch.cuda.Event is not unpatched[0]
        assert len(differences(before, snapshot())) > 500
        assert torch.cuda.is_available() and torch.accelerator.is_available()
        model = torch.nn.Linear(4, 3).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with torch.autocast("cuda"):
            loss = model(torch.ones(2, 4, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        assert gpu.step_time > 0 and gpu.timeline().steps.kind.size == 1
        on_gpu = torch.ones(3, device="cuda") + 1
        if values == "compute":
            assert on_gpu.tolist() == [2, 2, 2] and model.bias.grad.tolist() == [2, 2, 2]
        pinned = torch.ones(2).pin_memory()
    assert Event is torch.cuda.Event is unpatched[0]
    errors = []
    for use in (lambda: on_gpu + 1, lambda: on_gpu.cpu(), lambda: model.cpu(), lambda: model.weight.shape,
                lambda: torch.stack([on_gpu]), lambda: loss.backward()):
        try:
            use()
        except RuntimeError as error:
            errors.append(str(error))
    assert len(errors) == 6 and all("on a virtual GPU that was stopped" in error for error in errors), errors
    assert not torch.cuda.is_available() and not torch.accelerator.is_available()
    assert pinned.tolist() == [1, 1]
    try:
        torch.ones(1, device="cuda")
        raise SystemExit("there is no GPU")
    except (AssertionError, RuntimeError, NotImplementedError):
        pass
    found = [name for name in differences(before, snapshot()) if name not in ("sys.modules.items", "torch._dir.items")]
    print(json.dumps([values, found]))
    on_cpu(torch.ones(1, 2)).sum().backward()
    earlier.step()
"""
    lines = run(WALK + source, tmp_path).splitlines()
    # torch imports these modules and fills these caches at their first use. They contain no values of the virtual GPU.
    lazy = {
        "sys.path_importer_cache.items",
        "torch._custom_class_base._FakeScriptObject_cls",
        "torch._dynamo.utils._compilation_metrics",
        "torch._opaque_base._FakeScriptObject_cls",
        "torch.autograd.profiler._cupti_monitor_checked",
        "torch.autograd.profiler._cupti_monitor_module",
        "torch.jit._builtins._builtin_table.items",  # torch.ops adds each op at its first use
        # `warnings.warn` adds this attribute to the calling module, even if the warning is ignored.
        "torch.library.__warningregistry__",
        "torch.library.__warningregistry__.items",
        "torch.ops._dir.items",
        "torch.ops.c10d",
        "torch.profiler._cupti_monitor",
    }
    assert [json.loads(line)[0] for line in lines] == ["compute", "recorded"]
    for line in lines:
        changed = {name for name in json.loads(line)[1] if not name.startswith("torch.profiler._cupti_monitor.")}
        assert changed <= lazy


def test_a_replay_within_a_process_reports_the_same_figures_as_the_command(recording: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    script = tmp_path / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    command = [sys.executable, "-m", "trace_replay", "replay", "--trace", str(recording), "--clock", "recorded"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--report", str(report), str(script)], check=True, env=environment, capture_output=True)
    body = "\n".join(f"    {line}" for line in TRAIN.splitlines())
    source = f"""
import json, sys
import trace_replay

with trace_replay.gpu(sys.argv[1], clock="recorded") as gpu:
{body}
assert gpu.report()._repr_html_().startswith("<iframe") and "<svg" in gpu.report().to_html()
print(json.dumps([gpu.report().to_json(), gpu.step_time, gpu.peak_memory]))
"""
    here, step_time, peak_memory = json.loads(run(source, tmp_path, str(recording)))
    there = json.loads(report.read_text(encoding="utf-8"))
    exact = ("verdict", "steps_compared", "phases", "coverage", "memory", "missing", "changes", "clock", "values", "judged")
    assert {name: here[name] for name in exact} == {name: there[name] for name in exact}
    for name in ("steps", "compute_side", "gpu_busy"):
        assert here[name]["replayed_median_ns"] == there[name]["replayed_median_ns"]
    assert step_time == pytest.approx(there["steps"]["replayed_median_ns"] / 1e9)
    assert peak_memory == there["memory"]["cuda:0"]["replayed_peak_bytes"]


def test_a_replay_is_comparable_with_files_traces_and_other_replays(recording: Path, tmp_path: Path) -> None:
    """The recorded steps take 66 ms, and those of the slower recording 99 ms. The replay is therefore 33.3 % faster than the
    latter."""
    slower = tmp_path / "slower.msgpack"
    save(phase_recording({"h2d": 2, "forward": 20, "loss": 1, "backward": 73, "optimizer": 3}), slower)
    body = "\n".join(f"    {line}" for line in TRAIN.splitlines())
    source = f"""
import json, sys
import trace_replay
from trace_replay import traces

def replayed(file):
    with trace_replay.gpu(file, clock="recorded") as gpu:
        train()
    return gpu

def train():
{body}

gpu, slower = replayed(sys.argv[1]), replayed(sys.argv[2])
for other in (sys.argv[1], sys.argv[2], traces.load(sys.argv[2]), slower):
    steps = gpu.compare(other).comparison.steps
    print(json.dumps([steps.recorded_median_ns, steps.replayed_median_ns]))
"""
    figures = [json.loads(line) for line in run(source, tmp_path, str(recording), str(slower)).splitlines()]
    assert figures == [[66_000_000, 66_000_000], *[[99_000_000, 66_000_000]] * 3]


def test_the_notebook_command_lists_its_arguments(tmp_path: Path) -> None:
    source = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "trace_replay")

def error_of(line, cell=None):
    try:
        shell.run_line_magic("gpu", line) if cell is None else shell.run_cell_magic("gpu", line, cell)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

print(error_of(""))
print(error_of("stop"))
print(error_of("start"))
print(error_of("start no-such-gpu"))
print(error_of("start t4 --values guessed"))
print(error_of("start t4"))
print(error_of("start t4"))
print(error_of("stop"))
print(error_of("t4", "import torch\\n1 / 0"))
print(error_of("stop"))
"""
    said = run(source, tmp_path).splitlines()
    found = [line for line in said if line.partition(":")[0].endswith(("Error", "None"))]
    assert found[0] == "ValueError: write `%gpu start NAME` or `%gpu stop`, or `%%gpu NAME` in the first line of a cell"
    assert found[1] == "ValueError: `%gpu stop`: no virtual GPU is running"
    assert found[2] == "ValueError: %gpu: the following arguments are required: what"
    assert "no-such-gpu" in found[3]
    assert found[4].startswith("ValueError: %gpu: argument --values: invalid choice: 'guessed'")
    assert found[5] == "None"
    assert found[6].startswith("RuntimeError: ") and "already" in found[6]
    assert found[7] == "None"
    assert found[-2] == "ZeroDivisionError: division by zero"
    assert found[-1] == "ValueError: `%gpu stop`: no virtual GPU is running"


def test_the_summary_of_a_cell_separates_gpu_time_from_host_time(tmp_path: Path) -> None:
    source = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "trace_replay")
shell.run_cell_magic("gpu", "t4", "x = 1")
train = '''
import torch
model = torch.nn.Linear(8, 8).cuda()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    sgd.step()
'''
shell.run_cell_magic("gpu", "t4", train)
shell.run_cell_magic("gpu", "t4 --clock recorded", train)
"""
    said = run(source, tmp_path).splitlines()
    assert said[0] == "Tesla T4: the script has not used the virtual GPU, so there is no timeline."
    busy = re.fullmatch(
        r"The GPU is busy for (.+) of a training step\. --clock recorded excludes the host time of this machine\.", said[2]
    )
    steps = [line for line in said if "per step (median)" in line]
    assert busy is not None and len(steps) == 2
    assert steps[1].startswith(f"Tesla T4: {busy[1]} per step (median), ")  # the recorded clock counts only GPU time


def test_start_and_trace_replay_reject_four_gpus_without_recorded_kernels(recording: Path, tmp_path: Path) -> None:
    """The test calls `trace_replay.start` in a process, and runs `trace replay --gpus 4`."""
    said = run(
        f"""
import trace_replay
try:
    trace_replay.start({str(recording)!r}, gpus=4)
except Exception as error:
    print(error)
""",
        tmp_path,
    )
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    command = [sys.executable, "-m", "trace_replay", "replay", "--trace", str(recording), "--gpus", "4", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert done.returncode != 0
    assert said.strip() and said.strip() in " ".join(done.stderr.split())


def test_workers_that_are_spawned_and_forked_see_the_gpu(tmp_path: Path) -> None:
    source = """
import multiprocessing
import trace_replay

def add(number):
    import torch
    return (torch.full((2,), number, device="cuda") + 1).tolist(), torch.cuda.get_device_name()

if __name__ == "__main__":
    gpu = trace_replay.start("t4", values="compute")
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.apply(add, (1,)))
    import torch
    print(torch.ones(1, device="cuda").item())
    with multiprocessing.get_context("fork").Pool(1) as pool:
        try:
            pool.apply(add, (1,))
        except RuntimeError as error:
            print(str(error)[:43])
    gpu.stop()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            pool.apply(add, (1,))
        except (AssertionError, RuntimeError):
            print("no GPU")
"""
    said = run(source, tmp_path).splitlines()
    assert said[:2] == ["([2, 2], 'Tesla T4')"] * 2
    assert said[2:] == ["1.0", "Cannot re-initialize CUDA in forked subproc", "no GPU"]


def test_running_on_windows_is_rejected_in_one_sentence() -> None:
    reason = unsupported("win32")
    assert reason is not None and "does not run on Windows" in reason and "\n" not in reason
    assert unsupported("linux") is None and unsupported("darwin") is None


def test_a_repl_can_start_one_virtual_gpu_and_must_do_so_before_importing_torch(tmp_path: Path) -> None:
    said = run(
        "",
        tmp_path,
        stdin="""
import sys, trace_replay
print("torch" in sys.modules, "numpy" in sys.modules)
try: trace_replay.start("no such gpu")
except Exception as error: print(type(error).__name__, error)

gpu = trace_replay.start("a100", memory="1GiB")
try: trace_replay.start("v100")
except RuntimeError as error: print(error)

import torch
torch.cuda.mem_get_info()[1] >> 20
try: torch.empty(1 << 30, device="cuda")
except torch.cuda.OutOfMemoryError: print("out of memory")

gpu.stop(); gpu.stop(); gpu
gpu = trace_replay.start("v100"); torch.cuda.get_device_name()
""",
    )
    lines = [line.removeprefix(">>> ") for line in said.splitlines()]
    assert lines[0] == "False False"
    assert lines[1].startswith("TraceLibraryError no such gpu: no such file")
    assert lines[2] == "<virtual NVIDIA A100-SXM4-40GB, running> already runs in this process; call its `stop()` first"
    assert lines[3:] == ["1024", "out of memory", "<virtual NVIDIA A100-SXM4-40GB, stopped>", "'Tesla V100-PCIE-32GB'"]
