"""Measures the start-up time and the memory of a replay with many ranks on one machine.

    python benchmarks/ranks.py --ranks 8 64 256 [--write docs/ranks.md] [-- examples/train_ddp.py --steps 20 ...]

The benchmark runs `trace replay --nproc N --clock virtual` with the bundled P100 recording. Four times a second, the benchmark
reads the memory of the replay's processes from /proc (Linux only). Reading takes at most a fifth of the time. PSS counts 1/n of
each page that n processes share, so the sum over all processes is the memory that the machine needs. RSS counts shared pages
fully. The table shows the highest PSS during and after the training, and the largest private memory of any process.

    python benchmarks/ranks.py --pictures replay.msgpack --ranks 256 [--write docs/ranks.md]

The second command merges copies of a replay's ranks into a trace of 256 ranks. For this trace and for one rank, the command
prints the processor time of `trace view --screenshot`, `trace report` and `trace export`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from traces.combining.merge import merge_ranks, trace_of_ranks  # noqa: E402
from traces.format.trace_file import load, save  # noqa: E402

SCRIPT = [
    str(ROOT / "examples" / "train_ddp.py"),
    *"--model resnet18 --batch-size 2 --image-size 32 --classes 10 --workers 0 --steps 20 --print-every 1".split(),
]
_COLUMNS = (
    "ranks", "first step [s]", "CPU per rank to first step [s]", "total [s]", "CPU [s]", "reports", "PSS [MiB]",
    "PSS at exit [MiB]", "RSS [MiB]", "most of one rank [MiB]",
)  # fmt: skip
_HEAD = f"| {' | '.join(_COLUMNS)} |\n|{'--:|' * len(_COLUMNS)}"
_PAGE = f"""\
# Many ranks on one machine

`trace replay --nproc N --clock virtual` replays a script with N ranks, each on its own virtual GPU. This page shows how many
ranks fit on a machine with {os.cpu_count()} processors. The script trained 20 steps of ResNet-18 under DDP on N virtual P100s.
`python benchmarks/ranks.py --ranks 16 64 256 --write docs/ranks.md` writes this page.

| column | meaning |
|---|---|
| reports | number of ranks in the replay's timeline |
| PSS | memory of all processes, counting each shared page once |
| RSS | memory of all processes, counting a shared page once per process |
| most of one rank | largest amount of memory that one rank does not share with others |
| - | the ranks ended before their memory was measured |

"""
_PICTURES = """
## Pictures of many ranks

If many ranks are similar, the commands `view --screenshot`, `report` and `export` use only one of them. The table shows the
processor time of these commands, the lowest of three runs. For one rank, nearly all of this time is the start of Python and its
packages. Python read compiled modules from its bytecode cache, as it does after the first run of an installed package. The
command `python benchmarks/ranks.py --pictures REPLAY.msgpack --ranks 256 --write docs/ranks.md` writes this table. Here,
the file REPLAY.msgpack contained the timeline of two ranks of the script above.

| command | ranks | CPU [s] | CPU for one rank [s] |
|---|--:|--:|--:|
"""
_LOOKS_PER_S = 4
_MIB = 1 << 20


@dataclass
class Memory:
    """Contains the memory of several processes at one time, in bytes."""

    pss: int = 0
    rss: int = 0
    private: list[int] = field(default_factory=list)  # private memory of each process


@dataclass(frozen=True)
class Result:
    ranks: int
    first_step_s: float
    start_cpu_s: float  # processor time of all processes until the first step, divided by the number of ranks
    total_s: float
    cpu_s: float
    reports: int  # number of ranks with a timeline in the replay
    running_pss_mib: int
    exit_pss_mib: int | None  # None if the ranks ended before they were sampled
    rss_mib: int
    private_most_mib: int


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # the process has ended
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def memory_of(processes: list[int]) -> Memory:
    """Return the memory of processes from the kernel's file smaps_rollup."""
    memory = Memory()
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue  # the process has ended
        size_bytes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line}
        if not size_bytes:
            continue
        memory.pss += size_bytes["Pss"]
        memory.rss += size_bytes["Rss"]
        memory.private.append(size_bytes["Private_Clean"] + size_bytes["Private_Dirty"])
    return memory


def processor_time_s(processes: list[int]) -> float:
    """Return the processor time that processes have used."""
    ticks = 0
    for process in processes:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            continue  # the process has ended
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(ranks: int, script: list[str]) -> Result:
    """Run a replay with many ranks, and return its times and memory. Raises RuntimeError with the output if the command
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        return _measured(ranks, script, Path(folder) / "replay.msgpack")


def _measured(ranks: int, script: list[str], timeline: Path) -> Result:
    options = ["--trace", "p100-no-cudnn", "--nproc", str(ranks), "--clock", "virtual", "-o", str(timeline)]
    command = [sys.executable, "-m", "tui.cli", "replay", *options]
    steps = int(script[script.index("--steps") + 1])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    run = subprocess.Popen([*command, *script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None and run.stderr is not None
    start_cpu_s = 0.0
    peaks, first_step_s, said = {False: Memory(), True: Memory()}, 0.0, [""]  # the key is True after the last step has ended
    reader = threading.Thread(target=lambda: said.append(run.stderr.read() if run.stderr else ""))
    reader.start()
    ended, trained, look_now = threading.Event(), threading.Event(), threading.Event()

    def watch() -> None:
        pause_s = 1 / _LOOKS_PER_S
        while not ended.is_set():
            look_now.wait(pause_s)
            look_now.clear()
            looked, at_exit = time.perf_counter(), trained.is_set()
            memory = memory_of(descendants(run.pid))
            peaks[at_exit] = max(peaks[at_exit], memory, key=lambda memory: memory.pss)
            pause_s = max(1 / _LOOKS_PER_S, 4 * (time.perf_counter() - looked))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for line in run.stdout:
        found = re.match(r"step +(\d+)", line)
        if found and not first_step_s:
            first_step_s = time.perf_counter() - began
            start_cpu_s = processor_time_s([run.pid, *descendants(run.pid)]) / ranks
        if found and int(found[1]) == steps:
            trained.set()
            look_now.set()
    code = run.wait()
    total_s = time.perf_counter() - began
    ended.set()
    look_now.set()
    watcher.join()
    reader.join()
    if code:
        raise RuntimeError(f"{ranks} ranks ended with {code}:\n{said[-1][-2_000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Result(
        ranks=ranks,
        first_step_s=round(first_step_s, 1),
        start_cpu_s=round(start_cpu_s, 2),
        total_s=round(total_s, 1),
        cpu_s=round(cpu_s, 1),
        reports=len(load(timeline).ranks),
        running_pss_mib=peaks[False].pss // _MIB,
        exit_pss_mib=peaks[True].pss // _MIB or None,
        rss_mib=max(memory.rss for memory in peaks.values()) // _MIB,
        private_most_mib=max(max(memory.private, default=0) for memory in peaks.values()) // _MIB,
    )


def picture_times(recording: Path, ranks: int) -> list[str]:
    """Return rows with the processor time of a screenshot, a report and an export of many ranks."""
    rows = []
    trace = load(recording)
    parts = [trace_of_ranks(trace, [rank]) for rank in trace.ranks]
    with tempfile.TemporaryDirectory() as folder:
        merged, one = Path(folder) / "ranks.msgpack", Path(folder) / "one.msgpack"
        save(merge_ranks([parts[number % len(parts)] for number in range(ranks)], [*range(ranks)]), merged)
        save(parts[0], one)
        for what in ("view --screenshot {0}.svg {0}", "report {0} -o {0}.html", "export {0} -o {0}.json.gz"):
            one_s, all_s = (min(_processor_s(what.format(path), folder) for _ in range(3)) for path in (one, merged))
            rows.append(f"| `trace {what.partition(' {0}')[0]}` | {ranks} | {all_s:.1f} | {one_s:.1f} |")
            print(rows[-1], flush=True)
    return rows


def _processor_s(words: str, folder: str) -> float:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tui.cli", *words.split()]
    subprocess.run(command, cwd=ROOT, check=True, stderr=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--write", type=Path, help="write the table to this page")
    parser.add_argument("script", nargs="*", default=SCRIPT, help="prints `step ...` after the first step of all ranks")
    parser.add_argument("--pictures", type=Path, metavar="REPLAY", help="measure pictures of copies of this trace instead")
    args = parser.parse_args()
    page, _, pictures = args.write.read_text().partition(_PICTURES) if args.write and args.write.exists() else ("", "", "")
    if args.pictures:
        rows = [row for ranks in args.ranks for row in picture_times(args.pictures, ranks)]
        if args.write:
            args.write.write_text(page + _PICTURES + "\n".join(rows) + "\n")
        return
    print(_HEAD, flush=True)
    results, lines = [], [_HEAD]
    for ranks in args.ranks:
        one = measure(ranks, args.script)
        results.append(asdict(one))
        lines.append("| " + " | ".join("-" if value is None else str(value) for value in asdict(one).values()) + " |")
        print(lines[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.write:
        args.write.write_text(_PAGE + "\n".join(lines) + "\n" + (_PICTURES + pictures if pictures else ""))


if __name__ == "__main__":
    main()
