"""Measures start-up time and total memory of many ranks on one machine.

    python benchmarks/ranks.py --ranks 8 64 [--json results.json] [-- examples/train_ddp.py --steps 4 ...]

Runs `trace replay --nproc N --clock virtual` on the bundled P100 and samples its processes in /proc (Linux only), four times a
second or for at most a fifth of the time. PSS counts a page shared by n processes as 1/n in each, so the sum is the memory that
the machine needs. RSS counts shared pages fully. Shown is the moment of the highest PSS, with the smallest and largest private
memory of a process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = [
    str(ROOT / "examples" / "train_ddp.py"),
    *"--model resnet18 --batch-size 2 --image-size 32 --classes 10 --workers 0 --steps 4 --print-every 1".split(),
]
_LOOKS_PER_S = 4
_MIB = 1 << 20


@dataclass
class Memory:
    """Memory of some processes at one moment, in bytes."""

    pss: int = 0
    rss: int = 0
    private: list[int] = field(default_factory=list)  # of each


@dataclass(frozen=True)
class Result:
    """One run."""

    ranks: int
    first_step_s: float
    total_s: float
    cpu_s: float
    processes: int
    pss_mib: int
    rss_mib: int
    private_least_mib: int
    private_most_mib: int


def descendants(root: int) -> list[int]:
    """All descendants of the process `root`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it has ended meanwhile
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def memory_of(processes: list[int]) -> Memory:
    """Their memory from the kernel's smaps_rollup."""
    memory = Memory()
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue  # it has ended meanwhile
        size_bytes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line}
        if not size_bytes:
            continue
        memory.pss += size_bytes["Pss"]
        memory.rss += size_bytes["Rss"]
        memory.private.append(size_bytes["Private_Clean"] + size_bytes["Private_Dirty"])
    return memory


def measure(ranks: int, script: list[str]) -> Result:
    """Run it. Raises RuntimeError with its output if it fails."""
    options = ["--trace", "p100-no-cudnn", "--nproc", str(ranks), "--clock", "virtual"]
    command = [sys.executable, "-m", "tui.cli", "replay", *options]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run = subprocess.Popen([*command, *script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None and run.stderr is not None
    peak, first_step_s, said = Memory(), 0.0, [""]
    reader = threading.Thread(target=lambda: said.append(run.stderr.read() if run.stderr else ""))
    reader.start()
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        pause_s = 1 / _LOOKS_PER_S
        while not ended.wait(pause_s):
            looked = time.perf_counter()
            peak = max(peak, memory_of(descendants(run.pid)), key=lambda memory: memory.pss)
            pause_s = max(1 / _LOOKS_PER_S, 4 * (time.perf_counter() - looked))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for line in run.stdout:
        if line.startswith("step") and not first_step_s:
            first_step_s = time.perf_counter() - began
    code = run.wait()
    total_s = time.perf_counter() - began
    ended.set()
    watcher.join()
    reader.join()
    if code:
        raise RuntimeError(f"{ranks} ranks ended with {code}:\n{said[-1][-2_000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Result(
        ranks=ranks,
        first_step_s=round(first_step_s, 1),
        total_s=round(total_s, 1),
        cpu_s=round(cpu_s, 1),
        processes=len(peak.private),
        pss_mib=peak.pss // _MIB,
        rss_mib=peak.rss // _MIB,
        private_least_mib=min(peak.private, default=0) // _MIB,
        private_most_mib=max(peak.private, default=0) // _MIB,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("script", nargs="*", default=SCRIPT, help="after --; prints `step ...` when all have trained one")
    args = parser.parse_args()
    print("ranks  first step [s]  total [s]  CPU [s]  PSS [MiB]  RSS [MiB]  for one alone [MiB]", flush=True)
    results = []
    for ranks in args.ranks:
        one = measure(ranks, args.script)
        results.append(asdict(one))
        times = f"{one.first_step_s:14.1f}  {one.total_s:9.1f}  {one.cpu_s:7.1f}"
        alone = f"{one.private_least_mib:8d} to {one.private_most_mib}"
        print(f"{ranks:5d}  {times}  {one.pss_mib:9d}  {one.rss_mib:9d}  {alone}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
