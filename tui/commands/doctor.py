"""Checks this machine for `trace doctor`.

    $ trace doctor
    ok    torch            2.13.0+cpu, of /usr/bin/python3
    ok    a replay         3 steps of the bundled P100 in 4.1 s
    warn  locked memory    64.0 KiB: pinned memory beyond that is not page-locked; raise it with `ulimit -l unlimited`
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from replayer.timing.clock import WallClock, lower_timer_slack
from traces.comparison.thresholds import LATE_NS, LOW_DISK_BYTES
from traces.model.trace import TraceError
from traces.script.launch import check_torch
from tui.formatting import paint, size_text
from tui.outputs import json_text, show_text
from tui.running.kernel_access import why_no_kernels
from tui.running.progress import working
from tui.terminal import terminal_style

_TIMEOUT_S = 120
_DEADLINES, _APART_NS = 300, 2_000_000
_CAP_IPC_LOCK = 14  # bit number in linux/capability.h
_TRAIN = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad(); model(torch.ones(4, 8, device="cuda")).sum().backward(); optimizer.step()
torch.cuda.synchronize()
"""
# profile the GPU first, because PyTorch 2.14 records no kernels in a process that has run a CPU-only profile
_ASK_TORCH = """
import json, tempfile, os
import torch
facts = {"version": torch.__version__, "build": torch.version.cuda or (torch.version.hip and "ROCm " + torch.version.hip) or ""}
facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
if facts["gpus"]:
    try:
        torch.cuda.init()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            torch.ones(4, device="cuda").add_(1)
            torch.cuda.synchronize()
        facts["kernels"] = sum(of.device_type == torch.autograd.DeviceType.CUDA for of in profile.events())
    except RuntimeError as error:
        facts["gpu_error"] = str(error).partition("\\n")[0]
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    torch.ones(4) + 1
facts["profiled"] = len(profile.events())
print(json.dumps(facts))
"""


class KernelFacts(TypedDict, total=False):
    kernels: int
    gpu_error: str


class TorchFacts(KernelFacts):
    """Describes the PyTorch installation of this machine."""

    version: str
    build: str  # the CUDA or ROCm version, empty for a CPU build
    gpus: list[str]
    profiled: int


class Health(StrEnum):
    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Describes the result of one check."""

    check: str  # what was checked
    state: Health  # result of the check
    told: str  # the result in words
    advice: str = ""  # a suggested fix, empty if there is no problem


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Lists the checks of this machine."""

    works: bool  # false if replays cannot work on this machine
    findings: list[Diagnosis]


def _judged(check: str, is_well: bool, text: str, advice: str, otherwise: str = "") -> Diagnosis:
    return Diagnosis(check, Health.ok, text) if is_well else Diagnosis(check, Health.warn, otherwise or text, advice)


def run(json_wanted: bool) -> int:
    findings = []
    colours = {Health.ok: "green", Health.warn: "bold", Health.fail: "red"}
    for check in (_torch, _replay, _clock, _locked_memory, _disk, _processors, _extras):
        with working(f"checking {check.__name__.strip('_').replace('_', ' ')}"):
            found = list(check())
        findings += found
        if not json_wanted:
            for of in found:
                state = paint(of.state.ljust(5), colours[of.state], colour=terminal_style(sys.stdout)["colour"])
                show_text(f"{state} {of.check.ljust(14)} {of.told}{f'; {of.advice}' if of.advice else ''}")
                sys.stdout.flush()
    failed = any(of.state is Health.fail for of in findings)
    if json_wanted:
        print(json_text(DoctorFacts(not failed, findings)))
    return int(failed)


def _run_with_timeout(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"did not finish within {_TIMEOUT_S} s")


def _torch() -> Iterator[Diagnosis]:
    done = _run_with_timeout([sys.executable, "-c", _ASK_TORCH], Path.cwd())
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        advice = f"install it for {sys.executable}: pip install torch"
        yield Diagnosis("torch", Health.fail, f"cannot be imported: {reason}", advice)
        return
    facts: TorchFacts = json.loads(done.stdout.splitlines()[-1])
    build = f"CUDA {facts['build']}" if facts["build"] and "ROCm" not in facts["build"] else facts["build"] or "CPU build"
    try:
        check_torch()
        yield Diagnosis("torch", Health.ok, f"{facts['version']} ({build}), of {sys.executable}")
    except TraceError as too_old:
        yield Diagnosis("torch", Health.fail, "too old", str(too_old))
    yield _judged(
        "torch.profiler", bool(facts["profiled"]), "records host operations", "record with --grain phase", "records nothing"
    )
    none = "no GPU; replays do not need a GPU, and trace record --on can use a recording"
    yield Diagnosis("GPU", Health.ok, ", ".join(facts["gpus"]) if facts["gpus"] else none)
    if facts["gpus"]:
        yield _kernels(facts, done.stderr)


def _kernels(facts: KernelFacts, stderr: str) -> Diagnosis:
    if "gpu_error" in facts:
        text = f"the GPU failed to run a test kernel: {facts['gpu_error']}"
        return Diagnosis("kernels", Health.warn, text, "check it with nvidia-smi")
    if facts["kernels"]:
        return Diagnosis("kernels", Health.ok, "torch.profiler records kernels, so trace record works here")
    obstacle = why_no_kernels(line for line in stderr.splitlines() if line.startswith(("WARNING", "ERROR")))
    return Diagnosis("kernels", Health.warn, f"cannot be recorded: {obstacle.reason}", obstacle.remedy)


def _replay() -> Iterator[Diagnosis]:
    with tempfile.TemporaryDirectory(prefix="trace-doctor-") as folder:
        script = Path(folder) / "train.py"
        script.write_text(_TRAIN, encoding="utf-8")
        words = ["replay", "--trace", "p100-no-cudnn", "--clock", "virtual", "--report", "r.json", script.name]
        start_s = time.monotonic()
        command = [sys.executable, "-c", "import sys; from trace_replay import main; sys.exit(main())", *words]
        done = _run_with_timeout(command, Path(folder))
        took_s = time.monotonic() - start_s
        if done.returncode == 0 and (Path(folder) / "r.json").exists():
            yield Diagnosis("a replay", Health.ok, f"3 steps on the bundled P100 in {took_s:.1f} s")
        else:
            reason = (done.stderr.strip() or done.stdout.strip() or "it ended without a report").rpartition("\n")[2]
            yield Diagnosis("a replay", Health.fail, f"ended with exit code {done.returncode}: {reason}", "please report this")


def _clock() -> Iterator[Diagnosis]:
    clock = WallClock()
    lower_timer_slack()
    late_ns = []
    for _ in range(_DEADLINES):
        deadline_ns = clock.now_ns() + _APART_NS
        clock.wait_until(deadline_ns)
        late_ns.append(clock.now_ns() - deadline_ns)
    worst_ns = sorted(late_ns)[_DEADLINES * 99 // 100]
    text = f"99 % of {_DEADLINES} waits ended at most {worst_ns / 1e3:.0f} µs too late"
    yield _judged("clock", worst_ns <= LATE_NS, text, "this machine is busy; use --clock recorded, which ignores its load")


def _locked_memory() -> Iterator[Diagnosis]:
    limit_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    is_free = limit_bytes == resource.RLIM_INFINITY or _may_lock_anything()
    text = "no limit: pinned memory is page-locked as on a GPU machine"
    raising = "`ulimit -l unlimited`, docker --ulimit memlock=-1"
    advice = f"pinned memory beyond this limit is not page-locked; raise the limit: {raising}"
    yield _judged("locked memory", is_free, text, advice, f"{size_text(limit_bytes)} at most")


def _may_lock_anything() -> bool:
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []  # macOS does not have this file
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(effective >> _CAP_IPC_LOCK & 1)


def _disk() -> Iterator[Diagnosis]:
    for name, folder in (("here", Path.cwd()), ("for files between processes", Path(tempfile.gettempdir()))):
        free_bytes = shutil.disk_usage(folder).free
        if not os.access(folder, os.W_OK):
            yield Diagnosis("disk", Health.warn, f"{name}: not writable", "use -o to write files to another folder")
        else:
            text = f"{name}: {size_text(free_bytes)} free"
            yield _judged("disk", free_bytes >= LOW_DISK_BYTES, text, "the timeline of one hour takes about 100 MB")


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS lacks this


def _processors() -> Iterator[Diagnosis]:
    count, load = usable_cores(), os.getloadavg()[0]
    text = f"{count} for this process, load {load:.1f}"
    yield _judged("processors", load <= count, text, "other programs use the processors too, so replays run slower than"
    " necessary")


def _extras() -> Iterator[Diagnosis]:
    try:
        yield Diagnosis("extras", Health.ok, f"pandas {version('pandas')}, for traces.to_pandas")
    except PackageNotFoundError:
        yield Diagnosis("extras", Health.ok, "pandas is not installed; traces.to_pandas needs it: pip install pandas")
