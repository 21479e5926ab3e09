"""Tests the behaviour after failures: damaged and malicious files, signals, full disks, few file descriptors, unusual scripts.

The script runs the library and the commands on randomly damaged input with fixed seeds, within limits of memory and time. The
output is the table in docs/reliability.md.

    python benchmarks/reliability.py [--quick] [--seed 1] [--only NAME] [--write docs/reliability.md]

A command behaves correctly if it returns the right data, or rejects the input in one line with exit code 2. If a script was
stopped, the command must end like the script. Every other outcome is a fault. A file under its final name must never be
incomplete. If there are faults, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.hostile_files import amplified, file_of, many_tracks, nested  # noqa: E402
from tests.faults.hostile_recordings import recordings  # noqa: E402
from tests.traces.handmade import training  # noqa: E402
from traces.format.items import number_items, row_counts, text_items  # noqa: E402
from traces.format.trace_file import load, save  # noqa: E402
from traces.model.trace import TraceError  # noqa: E402
from traces.model.typed_json import to_json  # noqa: E402

TRACE = [sys.executable, "-m", "trace_replay"]
_MEMORY_BYTES = 4 << 30  # address space of a process; torch and textual use one gigabyte of it
_TIMEOUT_S = 120

SCRIPT = """
import sys, time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
    loss = model(torch.randn(8, 64, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
print("done")
"""

# Each script first uses the GPU, and then ends in an unusual way.
ENDINGS = {
    "os._exit(3)": "import os; os._exit(3)",
    "sys.exit in a thread": "import threading, sys; threading.Thread(target=sys.exit).start()",
    "os.abort": "import os; os.abort()",
    "execv of another program": "import os; os.execv('/bin/true', ['true'])",
    "all descriptors closed": "import os; os.closerange(3, 1024)",
    "stdout and stderr closed": "import os; os.close(1); os.close(2)",
    "a daemon left behind": "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(2); os._exit(0)",
    "a fork that ends in the same way as the script": "import os\nif os.fork(): os.wait()",
    "an exception": "raise ValueError('of the script')",
    "deep recursion": "def f(): f()\nf()",
    "kill -9 of itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "the current folder is changed and removed": "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
}

_RECORDED_TOO = ("os._exit(3)", "kill -9 of itself")

# These names of kernels and ops have special meanings in terminals, markup or other languages.
NAMES = (
    *("\x1b]0;title\x07", "\x1b[2J\x1b[31mred", "\x9b31m", "\r\x1b[A", "a\nb", "\x00", "\u202eabc", "\ud800", "\u200b"),
    *("[red]bold[/red]", "[/]", "[@click=quit]x[/]", "<script>alert(1)</script>", "&amp;<b>", '"quoted"', "\\"),
    *("%s{0}$(id)`id`", "=cmd()"),
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class Row:
    """Contains the results of one kind of test: how often each outcome occurred, and all faults."""

    what: str
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def note(self, outcome: str, fault: str = "") -> None:
        self.outcomes[outcome] += 1
        if fault:
            self.faults.append(fault)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def outcome(self) -> str:
        return {0: "exit code 0", 2: "one line, exit code 2"}.get(self.code, f"exit code {self.code}")

    def fault(self, what: str, codes: Sequence[int] = (0, 2)) -> str:
        """Return the fault in how a command ended, or "" if there is none."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        if "Traceback" in self.err:
            return f"{what}: a traceback: {lines[-1][:120]}"
        if self.code not in codes:
            return f"{what}: exit code {self.code}: {lines[-1][:120] if lines else ''}"
        if self.code == 2 and not any(line.startswith(("trace: ", "Error")) for line in lines):
            return f"{what}: exit code 2 without a line that says why"
        return ""


def command(words: Sequence[str | Path], folder: Path, **options: Any) -> Done:
    """Run a `trace` command in a folder, within the memory limit."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            [*TRACE, *map(str, words)], cwd=folder, env=_environment(), timeout=_TIMEOUT_S, text=True, errors="replace",
            **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Done(124, "", "", _TIMEOUT_S)
    return Done(done.returncode, done.stdout or "", done.stderr or "", time.monotonic() - start)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("TRACE_")} | {"PYTHONPATH": str(ROOT)}


def limited(kind: int, most: int) -> Callable[[], None]:
    """Return a `preexec_fn` that sets a resource limit."""
    return lambda: resource.setrlimit(kind, (most, most))


# A worker process runs these commands on each file, and prints a line per file.
USES = """
import contextlib, io, resource, signal, sys
from tui.cli import run
def late(*_): raise TimeoutError("longer than 20 s")
signal.signal(signal.SIGALRM, late)
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
for line in sys.stdin:
    path = line.strip()
    export = ["export", path, "-o", path + ".json"]
    for words in (["info", path], ["diff", path, path, "--json"], ["info", path, "--json"], export):
        signal.alarm(20)
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
                code = run(words)
            said = told.getvalue()
            says = "read by every command" if code in (0, 1) else "one line, exit code 2"
            if code not in (0, 1) and (code != 2 or said.count("\\n") != 1):
                says = f"FAULT exit code {code}: {said[:200]!r}"
        except BaseException as error:
            where = error.__traceback__
            while where.tb_next:
                where = where.tb_next
            place = f"{where.tb_frame.f_code.co_filename.split('/')[-1]}:{where.tb_lineno}"
            says = f"FAULT {words[0]}: {type(error).__name__}: {str(error)[:80]} at {place}"
        signal.alarm(0)
        if says != "read by every command":
            break
    print(says.replace("\\n", " "), flush=True)
"""


def used(row: Row, files: Sequence[Path]) -> Row:
    """Run `info`, `diff` and `export` on every file, in a process with at most 4 GB of memory."""
    rest = list(files)
    while rest:
        worker = subprocess.run(
            [sys.executable, "-c", USES, str(_MEMORY_BYTES)], input="\n".join(map(str, rest)), text=True, cwd=ROOT,
            env=_environment(), capture_output=True,
        )  # fmt: skip
        lines = worker.stdout.splitlines()
        for path, line in zip(rest, lines, strict=False):
            fault = line.startswith("FAULT")
            row.note("fault" if fault else line, f"{path.name}: {line}" if fault else "")
        if len(lines) == len(rest):
            break
        row.note("fault", f"{rest[len(lines)].name}: the process died: {worker.stderr[-200:]}")
        rest = rest[len(lines) + 1 :]
    return row


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name.replace(" ", "-").replace("/", "-")
    path.write_bytes(data)
    return path


# The campaigns. Each test function receives an empty folder, a random generator, and a flag for a quick run.


def raw_mutations(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Bytes changed, removed, doubled or swapped anywhere in a file"""
    save(training(steps=3), folder / "sound")
    whole = (folder / "sound").read_bytes()
    files = []
    for number in range(60 if quick else 200):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at, size = chance.randrange(len(data)), chance.randint(1, 30)
            match chance.randrange(4):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    del data[at : at + size]
                case 2:
                    data[at:at] = data[at : at + size]
                case _:
                    data[at : at + size] = chance.randbytes(size)
        files.append(_written(folder, f"raw{number}", bytes(data)))
    return used(Row(""), files)


def sealed_mutations(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Changed content with correct checksums"""
    trace = training(steps=3)
    contents = [*text_items(trace), *number_items(trace)]
    files = []
    for number in range(60 if quick else 200):
        changed = [bytearray(content) for content in contents]
        for _ in range(chance.randint(1, 3)):
            of = chance.choice(changed)
            of[chance.randrange(len(of))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        data = file_of([bytes(content) for content in changed], len(trace.strings), row_counts(trace))
        files.append(_written(folder, f"sealed{number}", data))
    return used(Row(""), files)


_ODD_NUMBERS = (1 - 2**62, -(2**31), -2, -1, 0, 1, 2**15, 2**31 - 1, 2**53 + 1, 2**56 - 1, 2**60, 2**61, 2**62 - 1, 2**63 - 1)


def extreme_numbers(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Numbers of any size in any column and in the header, if the checks allow writing them"""
    row, files = Row(""), []
    for number in range(40 if quick else 200):
        trace = training(steps=3)
        for _ in range(chance.randint(1, 3)):
            table = chance.choice([of for of in vars(trace).values() if hasattr(of, "columns") and len(of)])
            column = chance.choice(list(table.columns().values()))
            value = chance.choice(_ODD_NUMBERS)
            try:
                column[chance.choice([0, slice(None), slice(1, None, 2)])] = value
            except OverflowError:
                column[0] = -1 if column.dtype.kind == "i" else 255
        if chance.random() < 0.3:
            trace.provenance = {key: chance.choice([None, -1, 2**70, "x", [], {}, [1], {"a": 1}, 0.5]) for key in _KEYS}
        try:
            save(trace, folder / f"extreme{number}")
        except TraceError:
            row.note("rejected by the writer because of a value out of range")
        else:
            files.append(folder / f"extreme{number}")
    return used(row, files)


_KEYS = (
    "clock rank ranks loaders ddp replay recorder clean host_scale profiler profile settings source file torch argv distributed"
    " launch cuda_version visible_devices"
).split()


def small_and_costly(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Small trace files that unpack to gigabytes, have a million tracks, or nest a thousand levels"""
    made = [*many_tracks(), *nested(990), *([] if quick else amplified())]
    row = Row("")
    for path in [_written(folder, name, data) for name, data in made]:
        done = command(["info", path], folder)
        slow = f"{path.name}: {done.seconds:.0f} s" if done.seconds > 30 else ""
        row.note(done.outcome, done.fault(path.name, [2]) or slow)
    return row


def hostile_recordings(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Profiler JSON with simultaneous events, many threads, names or steps; nested, truncated, unquoted"""
    row = Row("")
    for number, (name, data) in enumerate(recordings(events=2_000 if quick else 5_000)):
        if quick and number % 5:
            continue
        path = _written(folder, f"{name}.json", data)
        most_s = 5 + int(3 * len(data) / 1e6)  # limit in seconds of CPU time, so that other programs do not matter
        done = command(["import", path, "-o", "out.msgpack"], folder, preexec_fn=limited(resource.RLIMIT_CPU, most_s))
        slow = f"{name}: more than {most_s} s of computing for {len(data) / 1e6:.0f} MB" if done.code < 0 else ""
        row.note(done.outcome, slow or done.fault(name))
        path.unlink()
    return row


def strange_names(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Escape sequences, markup and control characters in every text of a trace, for every output"""
    trace = training(steps=2)
    shapes = set(trace.host.shapes.tolist())
    trace.strings.texts[:] = [
        text if number in shapes else f"{text} {NAMES[number % len(NAMES)]}" for number, text in enumerate(trace.strings.texts)
    ]
    trace.provenance = {"argv": list(NAMES), NAMES[0]: NAMES[1]}
    trace.problems, trace.lacks = {NAMES[0]: 1}, list(NAMES)
    save(trace, folder / "names.msgpack")
    row = Row("")
    outputs: dict[str, list[str]] = {
        "info": ["info", "names.msgpack"],
        "info --json": ["info", "names.msgpack", "--json"],
        "diff": ["diff", "names.msgpack", "names.msgpack"],
        "diff --json": ["diff", "names.msgpack", "names.msgpack", "--json"],
        "view | cat": ["view", "names.msgpack"],
        "view --screenshot": ["view", "names.msgpack", "--screenshot", "x.svg"],
        "export": ["export", "names.msgpack", "-o", "x.json"],
    }
    for name, words in outputs.items():
        done = command(words, folder)
        fault = done.fault(name)
        if found := _CONTROL.search((done.out + done.err).replace("\n", "")):
            fault = fault or f"{name}: prints {found[0]!r}"
        if "json" in name and not fault:
            json.loads(done.out)
        row.note("no control character in it", fault)
    try:
        svg = (folder / "x.svg").read_text(encoding="utf-8")
        xml.etree.ElementTree.fromstring(svg)
        is_active = "<script" in svg or _CONTROL.search(svg)
        row.note("the picture is XML without scripts", "a script in the picture" if is_active else "")
        json.loads((folder / "x.json").read_bytes())
        row.note("the export is JSON")
    except (OSError, ValueError, SyntaxError) as error:
        row.note("fault", f"an output cannot be read: {error}")
    return row


def closed_pipes(folder: Path, chance: random.Random, quick: bool) -> Row:
    """stdout goes to a pipe that nobody reads, to a full device, or is closed; stderr or stdin is closed"""
    save(training(steps=3), folder / "a.msgpack")
    row = Row("")
    for words in (["info", "a.msgpack"], ["diff", "a.msgpack", "a.msgpack", "--json"], ["view", "a.msgpack"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        with open("/dev/full", "w") as full:
            ends: dict[str, dict[str, Any]] = {
                "a pipe that nobody reads": {"stdout": write},
                "a full device": {"stdout": full},
                "stdout closed": {"stdout": None, "preexec_fn": lambda: os.close(1)},
                "stderr closed": {"stderr": None, "preexec_fn": lambda: os.close(2)},
                "stdin closed": {"stdin": None, "preexec_fn": lambda: os.close(0)},
            }
            for name, options in ends.items():
                done = command(words, folder, **options)
                row.note(done.outcome, done.fault(f"{words[0]}: {name}", [0, 1, 2]))
        os.close(write)
    return row


def full_disks(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Output files with a size limit, on a full device, or in a missing folder"""
    save(training(steps=3), folder / "a.msgpack")
    (folder / "r.json").write_bytes(next(data for name, data in recordings(200) if name == "names"))
    row = Row("")
    writes = {
        "import": (["import", "r.json", "-o"], "out.msgpack"),
        "export": (["export", "a.msgpack", "-o"], "out.json"),
        "screenshot": (["view", "a.msgpack", "--screenshot"], "out.svg"),
    }
    for name, (words, output) in writes.items():
        for most in [0, *sorted(chance.randrange(1, 4000) for _ in range(1 if quick else 3))]:
            done = command([*words, output], folder, preexec_fn=limited(resource.RLIMIT_FSIZE, most))
            left = sorted(path.name for path in folder.iterdir() if path.name.startswith("out") and done.code != 0)
            row.note(done.outcome, done.fault(f"{name} of {most} bytes") or (f"{name}: left {left}" if left else ""))
            (folder / output).unlink(missing_ok=True)
        for target in (*_full_device(folder), "nowhere/out"):
            done = command([*words, target], folder)
            row.note(done.outcome, done.fault(f"{name} to {target}", [2]))
    return row


def _full_device(folder: Path) -> list[str]:
    """Return /dev/full. A process of root could replace this device, so for root, create a similar device in the folder, or
    return nothing if that fails."""
    if os.geteuid() != 0:
        return ["/dev/full"]
    made = folder / "full"
    try:
        if not made.exists():
            os.mknod(made, stat.S_IFCHR | 0o666, os.stat("/dev/full").st_rdev)
        made.open("ab").close()
    except OSError:
        return []
    return [made.name]


def few_descriptors(folder: Path, chance: random.Random, quick: bool) -> Row:
    """At most 32 open files"""
    (folder / "s.py").write_text(SCRIPT)
    (folder / "r.json").write_bytes(next(data for name, data in recordings(200) if name == "names"))
    row = Row("")
    commands: list[list[str]] = [["info", "p100"], ["diff", "p100", "p100"], ["import", "r.json", "-o", "r.msgpack"]]
    commands += [["export", "p100", "-o", "x.json.gz"], ["view", "p100", "--screenshot", "x.svg"]]
    if not quick:
        commands += [["replay", "--trace", "p100", "s.py", "5"], ["record", "--on", "p100", "s.py", "5"]]
    for words in commands:
        done = command(words, folder, preexec_fn=limited(resource.RLIMIT_NOFILE, 32))
        row.note(done.outcome, done.fault(words[0]))
    return row


def several_writers(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Several imports or exports that write the same file at once"""
    save(training(steps=3), folder / "a.msgpack")
    (folder / "r.json").write_bytes(next(data for name, data in recordings(2000) if name == "names"))
    row = Row("")
    for words, output in ((["import", "r.json", "-o"], "out.msgpack"), (["export", "a.msgpack", "-o"], "out.json")):
        for _ in range(1 if quick else 2):
            running = [
                subprocess.Popen([*TRACE, *words, output], cwd=folder, env=_environment(), stderr=subprocess.PIPE, text=True)
                for _ in range(4)
            ]
            for process in running:
                done = Done(process.wait(_TIMEOUT_S), "", process.communicate()[1], 0)
                row.note(done.outcome, done.fault(f"{words[0]} beside others"))
            fault = _half_written(folder / output)
            left = [path.name for path in folder.glob("out*part")]
            row.note("the file is whole", fault or (f"left {left}" if left else ""))
    return row


def _half_written(path: Path) -> str:
    """Return the fault of a file under its final name, or "" if the file is complete."""
    if not path.exists():
        return ""
    try:
        load(path) if path.suffix == ".msgpack" else json.loads(path.read_bytes())
    except (TraceError, ValueError) as error:
        return f"half-written: {error}"
    return ""


def signals(folder: Path, chance: random.Random, quick: bool) -> Row:
    """SIGINT, SIGTERM, SIGHUP, SIGKILL, and SIGSTOP with SIGCONT, at random moments of import, replay and record"""
    (folder / "s.py").write_text(SCRIPT)
    (folder / "r.json").write_bytes(next(data for name, data in recordings(8000) if name == "names"))
    row = Row("")
    commands = [(["import", "r.json", "-o", "out.msgpack"], 2.0)] * (1 if quick else 3)
    if not quick:
        commands += [(["replay", "--trace", "p100", "-o", "out.msgpack", "s.py", "20"], 12.0)]
        commands += [(["record", "--on", "p100", "-o", "out.msgpack", "s.py", "20"], 14.0)]
    sent = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSTOP)
    for words, usual_s in commands:
        for number in sent[: 2 if quick else None]:
            row.note(*_ended(words, folder, number, chance.uniform(0.3, usual_s)))
    return row


def _ended(words: list[str], folder: Path, number: signal.Signals, after_s: float) -> tuple[str, str]:
    """Send a signal to a command, and return how the command ended, and the fault if there is one."""
    what = f"{words[0]} with {number.name} after {after_s:.1f} s"
    process = subprocess.Popen(
        [*TRACE, *words], cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    time.sleep(after_s)
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)  # to the whole process group, like a terminal or a scheduler
    if number == signal.SIGSTOP:
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGCONT)
    try:
        _, err = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return "fault", f"{what}: still there after two minutes"
    ours = [line for line in err.splitlines() if re.match(r'  File ".*/(tui|traces|tracer|replayer)/', line)]
    fault = f"{what}: a traceback through {ours[-1].strip()}" if ours and number != signal.SIGINT else ""
    fault = fault or _half_written(folder / "out.msgpack")
    (folder / "out.msgpack").unlink(missing_ok=True)
    if process.returncode == 0:
        return "continued to the end", fault
    return f"{number.name} ended it", fault


def odd_endings(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Replayed and recorded scripts that call os._exit, execv, abort or kill -9, close descriptors, fork, or start daemons"""
    row = Row("")
    for name, ending in list(ENDINGS.items())[: 1 if quick else None]:
        (folder / "s.py").write_text(SCRIPT.replace('print("done")', ending))
        commands = [["replay", "--trace", "p100", "-o"], ["record", "--on", "p100", "-o"]]
        for words in commands if name in _RECORDED_TOO else commands[:1]:
            done = command([*words, "out.msgpack", "s.py", "5"], folder)
            fault = f"{words[0]} of {name}: still there after two minutes" if done.code == 124 else ""
            if re.search(r'  File ".*/(tui|traces|tracer|replayer)/(?!bootstrap|surfaces)', done.err):
                fault = f"{words[0]} of {name}: a traceback of ours: {done.err.splitlines()[-1][:100]}"
            kept = (folder / "out.msgpack").exists()
            outcome = "ended as the script did, with a trace" if kept else "ended as the script did"
            row.note(outcome, fault or _half_written(folder / "out.msgpack"))
            (folder / "out.msgpack").unlink(missing_ok=True)
    return row


def names_like_ours(folder: Path, chance: random.Random, quick: bool) -> Row:
    """Scripts, and modules next to them, with the names of our packages or of packages that we import"""
    row = Row("")
    names = ("traces", "tui", "tracer", "replayer", "trace", "msgpack", "typer")
    for name in names[:1] if quick else names:
        inner = folder / name
        inner.mkdir()
        (inner / f"{name}.py").write_text(SCRIPT)
        done = command(["replay", "--trace", "p100", f"{name}.py", "3"], inner)
        row.note("replayed" if "done" in done.out else done.outcome, done.fault(f"{name}.py", [0]))
    return row


CAMPAIGNS: tuple[Callable[[Path, random.Random, bool], Row], ...] = (
    raw_mutations,
    sealed_mutations,
    extreme_numbers,
    small_and_costly,
    hostile_recordings,
    strange_names,
    closed_pipes,
    full_disks,
    few_descriptors,
    several_writers,
    signals,
    odd_endings,
    names_like_ours,
)


def campaign(run: Callable[[Path, random.Random, bool], Row], seed: int, quick: bool) -> Row:
    """Runs one campaign in a new folder. The campaign's docstring says what it tests."""
    with tempfile.TemporaryDirectory(prefix="trace-reliability-") as folder:
        row = run(Path(folder), random.Random(f"{seed} {run.__name__}"), quick)
    row.what = run.__doc__ or run.__name__
    return row


def revealed() -> list[str]:
    """Return the facts about the user in a recording: the fields of `Run`, and the provenance that `trace record` writes."""
    with tempfile.TemporaryDirectory(prefix="trace-reliability-") as name:
        folder = Path(name)
        (folder / "s.py").write_text(SCRIPT)
        command(["record", "--on", "p100", "-o", "out.msgpack", "s.py", "5"], folder)
        trace = load(folder / "out.msgpack")
    told = {**to_json(trace.run_of(0)), **trace.provenance}
    facts = json.dumps(told)
    secret = [what for what, text in (("home folder", str(Path.home())), ("folder", name), ("host name", os.uname().nodename))
              if text and len(text) > 3 and text in facts]  # fmt: skip
    lines = [f"A recording stores these facts about its run: {', '.join(f'`{key}`' for key in sorted(told))}."]
    lines.append(f"Threads are named {', '.join(sorted({f'`{thread.name}`' for thread in trace.threads}))}.")
    lines.append(
        "The benchmark searches a recording for private data: the home folder, the script's folder and the host name. "
        f"Found: {', '.join(secret) or 'nothing'}."
    )
    return lines


def document(rows: Sequence[Row], told: Sequence[str], seed: int) -> str:
    """docs/reliability.md."""
    lines = ["# Reliability tests and their results", ""]
    tests, found = sum(sum(row.outcomes.values()) for row in rows), sum(len(row.faults) for row in rows)
    lines += [
        "Does `trace` fail safely if a file is damaged, a disk is full, or a process is killed? The benchmark tries these",
        "and other faulty conditions. A command is at fault if it prints a Python traceback, writes an incomplete",
        "file, exits with a wrong code, or needs more time or memory than [Bounds](#bounds) allows.",
        "",
        f"Result: {tests:,} tests, {found} faults. To repeat the tests, run `python benchmarks/reliability.py --seed {seed}"
        " --write docs/reliability.md`.",
        "",
        'In the column "what happened", `one line` means that the command printed an error message of one line.',
        "",
    ]
    lines += ["| tried | times | what happened | faults |", "|---|---|---|---|"]
    for row in rows:
        happened = "; ".join(f"{count} x {outcome}" for outcome, count in row.outcomes.most_common())
        lines.append(f"| {row.what} | {sum(row.outcomes.values())} | {happened} | {len(row.faults)} |")
    faults = [f"* {row.what}: {fault}" for row in rows for fault in sorted(set(row.faults))[:12]]
    lines += ["", "## Remaining faults", "", *(faults or ["None."])]
    if told:
        lines += ["", "## Data about the user in a recording", "", *told]
    lines += ["", "## Bounds", "", *_BOUNDS]
    return "\n".join(lines) + "\n"


_BOUNDS = """\
* A trace file unpacks to at most 64 MiB plus 128 times its size (`traces/format/FORMAT.md`, Limits). The benchmark
    also made files of several hundred kB that unpack to this limit. With these files, `trace info`, `trace diff` and
    `trace view` took up to 35 s and 0.4 GB on two busy cores.
* The import of JSON takes at most 2 s of CPU time and 64 MB of memory per MB of JSON. The slowest import took 1.6 s
    per MB, for a file whose names contain quotation marks. A file of empty lists needed the most memory: 32 MB per MB
    of JSON. The import of a file written by a profiler takes 0.03 s of CPU time and 5 to 10 MB of memory per MB of JSON.
* Compressed JSON may unpack to at most 32 MiB plus 64 times the size of the file.
* `TRACE_UNPACK_LIMIT_MB` raises both size limits.""".splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a part of each campaign, in a minute or two")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="campaigns at a time")
    parser.add_argument("--only", choices=[of.__name__ for of in CAMPAIGNS], action="append")
    parser.add_argument("--write", type=Path, metavar="X.md", help="write the table here")
    parser.add_argument("--json", type=Path, metavar="X.json", help="store rows here; --only keeps the other rows")
    args = parser.parse_args()
    chosen = [run for run in CAMPAIGNS if not args.only or run.__name__ in args.only]

    kept = threading.Lock()

    def timed(run: Callable[[Path, random.Random, bool], Row]) -> Row:
        start = time.monotonic()
        row = campaign(run, args.seed, args.quick)
        happened = ", ".join(f"{count} x {outcome}" for outcome, count in row.outcomes.most_common())
        faults = "".join(f"\n  FAULT {fault}" for fault in sorted(set(row.faults)))
        print(f"{run.__name__} ({time.monotonic() - start:.0f} s): {happened}{faults}", flush=True)
        if args.json:
            with kept:
                of_names = json.loads(args.json.read_text()) if args.json.exists() else {}
                args.json.write_text(json.dumps(of_names | {run.__name__: vars(row)}))
        return row

    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:  # in a background job, the commands would ignore it, too
            signal.signal(number, usual)
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(timed, chosen))
    if args.json:
        of_names = json.loads(args.json.read_text())
        rows = [Row(**row | {"outcomes": Counter(row["outcomes"])}) for run in CAMPAIGNS if (row := of_names.get(run.__name__))]
    if args.write:
        args.write.write_text(document(rows, [] if args.quick else revealed(), args.seed), encoding="utf-8")
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
