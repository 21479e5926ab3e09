"""Checks on a real GPU that recording does not change what a program does. This is the stage "programs" of on_gpu.py.

Each program in tests/cuda/programs runs once without the recorder, and once or twice with it. The recorded run must have the
same exit code, standard output and stderr as the unrecorded run, except for the recorder's own lines. If the script fails, the
recorded run may end at most `EXTRA_S` seconds later than the unrecorded run. All processes must have ended, and the recording
must be readable and contain all training steps.

These runs share the GPU with each other, so their times are meaningless. Afterwards, the programs in `PACED` are recorded
again, one at a time. These recordings have realistic times. The results are written to `programs.json` after each run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS_FOLDER = ROOT / "tests" / "cuda" / "programs"

STAGE_S = 105.0  # the longest time of this stage
RUN_S = 45.0  # the longest time of one run; compiled programs need about 20 s
EXTRA_S = 2.0  # seconds by which a recorded script may end later after an error on a real GPU
PROCESSORS = 16  # number of processors for the limits above; with fewer processors, the limits are proportionally longer
SIDE_BY_SIDE = 0.75  # simultaneous runs per processor
SHARE_SIDE_BY_SIDE = 0.7  # after this share of the stage's time, no more runs begin in parallel
GRACE_S = 1.0  # how long child processes may run after their parent has ended

_FEW_THREADS = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "4"}  # settings for programs that run at the same time
_FAULTY_LAUNCH = str(30 * 17)  # in the last step of ends.py, this launch fails on the simulated device, which checks no indices


@dataclass(frozen=True)
class Case:
    """Describes a program by its script, its arguments, and the expected results."""

    script: str
    arguments: tuple[str, ...] = ()
    steps: int = 24  # training steps
    spare_steps: int = 0  # allowed difference in steps, because the time of the error varies
    exit_code: int = 0  # 128 + N if signal N ends the script
    other_exit_code: int | None = None  # another exit code that is accepted
    grains: tuple[str, ...] = ("kernel",)
    message: str = ""  # text that must be on stderr, which shows that the intended error occurred
    environment: tuple[tuple[str, str], ...] = ()
    is_one_rank: bool = False  # True if the program uses torch.distributed with a single rank

    def has_exit_code(self, ended: Ended) -> bool:
        return ended.exit_code in (self.exit_code, self.other_exit_code)


BOTH = ("kernel", "phase")
CASES = {  # sorted by duration, longest first
    "compiled_graphs": Case("compiled.py", ("reduce-overhead",), grains=BOTH),
    "compiled": Case("compiled.py", ("default",)),
    "compiled_cnn": Case("compiled_cnn.py", ("default",)),
    "compiled_cnn_graphs": Case("compiled_cnn.py", ("reduce-overhead",)),
    "raises": Case("ends.py", ("raise",), 30, exit_code=1, grains=BOTH, message="the script's own error"),
    "interrupt": Case(  # CPython normally ends itself with SIGINT, but on two rented machines, Python exited with code 1
        "ends.py", ("interrupt",), 30, exit_code=130, other_exit_code=1, grains=BOTH, message="KeyboardInterrupt"
    ),
    "terminate": Case("ends.py", ("terminate",), 30, exit_code=143),
    "os_exit": Case("ends.py", ("exit",), 30, exit_code=5),
    "no_memory": Case("ends.py", ("memory",), 30, exit_code=1, grains=BOTH, message="CUDA out of memory"),
    "device_assert": Case(
        "ends.py",
        ("assert",),
        30,
        exit_code=1,
        grains=BOTH,
        message="device-side assert",
        spare_steps=1,
        environment=(("SIMGPU_ERROR_AT_LAUNCH", _FAULTY_LAUNCH),),
    ),
    "out_of_memory": Case("out_of_memory.py", ("360",), 29, message="halved to 4096"),
    "graph_step": Case("graph_step.py", steps=33, grains=BOTH),
    "late_capture": Case("late_capture.py", steps=12, grains=BOTH),
    "profiles_itself": Case("profiles_itself.py", ("16",), 30, message="kernels "),
    "profiles_itself_early": Case("profiles_itself.py", ("8",), 30, grains=BOTH, message="kernels "),
    "observer": Case("faults.py", ("observer",), 40),
    "on_cpu": Case("on_cpu.py", steps=30),
    "graphed_modules": Case("graphed_modules.py", steps=29),
    "data_parallel": Case("data_parallel.py", ("0,0",), 20),
    "ddp": Case("ddp.py", steps=20, is_one_rank=True),
    "fsdp2": Case("fsdp2.py", steps=20, is_one_rank=True),
    "cnn_loader": Case("cnn_loader.py"),
    "gan": Case("gan.py"),
    "evaluation": Case("evaluation.py", steps=36),
    "steps_in_backward": Case("steps_in_backward.py", steps=26),
    "accumulation": Case("accumulation.py", steps=20),
    "amp": Case("amp.py", grains=BOTH),
    "two_streams": Case("two_streams.py"),
}
# programs that are recorded once more, one at a time; the most important ones come first
PACED = (
    "gan", "cnn_loader", "compiled_cnn", "compiled_cnn_graphs", "graphed_modules", "evaluation", "data_parallel",
    "steps_in_backward", "fsdp2", "compiled", "compiled_graphs",
)  # fmt: skip


@dataclass(frozen=True)
class Commands:
    """Contains two functions that return a command line: to run a script without the recorder, and to record it."""

    bare: Callable[[list[str]], list[str]]
    recorded: Callable[[list[str], Path, str], list[str]]  # arguments: script, output, grain
    extra_s: float = EXTRA_S  # how much later a recorded script may end after an error


@dataclass(frozen=True)
class Ended:
    exit_code: int  # 128 + N if signal N ended the script
    output: str
    errors: str
    seconds: float
    end_s: float | None  # seconds from the script's last mark to the end of its process; None without a mark
    left: tuple[str, ...]  # commands of processes that still run afterwards
    is_timed_out: bool = False


@dataclass
class Checked:
    program: str
    run: str  # "bare", a grain, or "pace"
    status: str = "ok"  # or "failed", "skipped", "not provoked"
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    end_s: float | None = None
    file: str = ""
    steps: int = 0


class Programs:
    """Runs programs within a time limit, and stores the results."""

    def __init__(self, folder: Path, out: Path, commands: Commands, seconds_left: float, cases: dict[str, Case]) -> None:
        processors = os.cpu_count() or 1
        self._slower = max(1.0, PROCESSORS / processors)
        self._folder, self._out, self._commands, self._cases = folder, out, commands, cases
        self._began, self._seconds = time.monotonic(), min(STAGE_S * self._slower, seconds_left)
        self._run_s = RUN_S * self._slower
        self._at_a_time = max(2, int(processors * SIDE_BY_SIDE))
        self._lock = Lock()
        self.rows: list[Checked] = []

    def run(self) -> list[Checked]:
        """Run all programs, and return the rows of the table. The recordings are in the stage's folder."""
        with ThreadPoolExecutor(self._at_a_time) as pool:
            try:
                for _ in pool.map(self._check, self._cases):
                    pass
            except BaseException:  # after a signal, for example, the current runs end at once
                self._seconds = 0.0
                raise
        for name in PACED:
            if name in self._cases:
                self._record_pace(name)
        return self.rows

    def _left_s(self, share: float = 1.0) -> float:
        return self._began + share * self._seconds - time.monotonic()

    def _keep(self, row: Checked) -> None:
        with self._lock:
            self.rows.append(row)
            self._write()

    def _write(self) -> None:
        partial = self._out / "programs.json.new"
        partial.write_text(json.dumps([asdict(row) for row in self.rows], indent=1))
        partial.replace(self._out / "programs.json")

    def _check(self, name: str) -> None:
        """Run a program without the recorder, and record it with phases only and with kernels."""
        case = self._cases[name]
        if self._left_s(SHARE_SIDE_BY_SIDE) <= 0:
            self._keep(Checked(name, "bare", "skipped"))
            return
        bare = self._run(name, "bare", self._commands.bare(self._words(case)), **_FEW_THREADS)
        row = Checked(name, "bare", seconds=bare.seconds, end_s=bare.end_s, faults=list(bare.left))
        if bare.is_timed_out or not case.has_exit_code(bare) or case.message not in bare.errors:
            row.status = "not provoked"
            row.faults = [f"exit code {bare.exit_code}, not {case.exit_code}: {_last_line(bare.errors)}"]
        self._keep(row)
        for grain in case.grains:
            if self._left_s(SHARE_SIDE_BY_SIDE) <= 0:
                self._keep(Checked(name, grain, "skipped"))
            elif not bare.is_timed_out:
                self._keep(self._recorded(name, grain, bare))

    def _recorded(self, name: str, grain: str, bare: Ended) -> Checked:
        case, file = self._cases[name], self._folder / f"{name}-{grain}.msgpack"
        ended = self._run(name, grain, self._commands.recorded(self._words(case), file, grain), **_FEW_THREADS)
        row = Checked(name, grain, seconds=ended.seconds, end_s=ended.end_s)
        row.faults = list(differences(bare, ended, self._commands.extra_s * self._slower))
        if case.has_exit_code(bare):
            row.steps, faults = steps_of(file, case)
            row.faults += faults
        row.file = file.name if file.exists() else ""
        row.status = "failed" if row.faults else "ok"
        return row

    def _record_pace(self, name: str) -> None:
        """Record a program while nothing else runs."""
        row = Checked(name, "pace")
        if self._left_s() < 5:
            row.status = "skipped"
        else:
            case, file = self._cases[name], self._folder / f"{name}.msgpack"
            command = self._commands.recorded(self._words(case), file, "kernel")
            ended = self._run(name, "pace", command, str(self._folder / f"{name}-bare" / "cache"))
            row.seconds, row.end_s = ended.seconds, ended.end_s
            row.steps, row.faults = steps_of(file, case)
            row.status, row.file = ("failed" if row.faults else "ok"), file.name if file.exists() else ""
        self._keep(row)

    def _words(self, case: Case) -> list[str]:
        return [str(PROGRAMS_FOLDER / case.script), *case.arguments]

    def _run(self, name: str, run: str, command: list[str], cache: str = "", **more: str) -> Ended:
        """Run a program. The argument `cache` is a folder with code that torch.compile generated in an earlier run, and `more`
        contains environment variables."""
        case, folder = self._cases[name], self._folder / f"{name}-{run}"
        (folder / "marks").mkdir(parents=True)
        environment = dict(os.environ, MARKS=str(folder / "marks"), TORCHINDUCTOR_CACHE_DIR=cache or str(folder / "cache"))
        environment |= dict(case.environment) | more
        if case.is_one_rank:
            environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        deadline = time.monotonic() + self._run_s
        return run_in_session(command, folder, environment, lambda: self._left_s() < 0 or time.monotonic() > deadline)


def run_in_session(command: list[str], folder: Path, environment: dict[str, str], is_time_up: Callable[[], bool]) -> Ended:
    """Run a command in a new session within a time limit, and then end all remaining processes of the session.

    The script's process writes `folder/marks/<pid>.tsv` (tests/cuda/programs/marks.py).
    """
    began = time.monotonic()
    is_timed_out, script_ended_ns = False, 0
    with open(folder / "output", "w") as output, open(folder / "errors", "w") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            while process.poll() is None:
                marks = _marks(folder)
                if marks and not script_ended_ns and _state(int(marks[0].stem)) in ("", "Z"):
                    script_ended_ns = time.time_ns()
                if is_time_up():
                    is_timed_out = True
                    break
                time.sleep(0.02)
            script_ended_ns = script_ended_ns or time.time_ns()
            seconds = time.monotonic() - began
            left = () if is_timed_out else _left_behind(process.pid)
        finally:
            for pid in _session(process.pid):
                _kill(pid)
            process.wait()
    last_ns = max((_last_mark_ns(file) for file in _marks(folder)), default=0)
    code = process.returncode
    return Ended(
        128 - code if code < 0 else code,
        (folder / "output").read_text(errors="replace"),
        (folder / "errors").read_text(errors="replace"),
        round(seconds, 2),
        round((script_ended_ns - last_ns) / 1e9, 3) if last_ns else None,
        left,
        is_timed_out,
    )


def differences(bare: Ended, recorded: Ended, extra_s: float = EXTRA_S) -> Iterator[str]:
    """Yield each difference between a recorded and an unrecorded run as one line."""
    if recorded.is_timed_out:
        yield f"did not end within {recorded.seconds:.0f} s: {_last_line(recorded.errors)}"
        return
    if recorded.exit_code != bare.exit_code:
        yield f"exit code {recorded.exit_code}, without the recorder {bare.exit_code}: {_last_line(recorded.errors)}"
    if recorded.output != bare.output:
        yield f"other output: {_last_line(recorded.output)!r}, without the recorder {_last_line(bare.output)!r}"
    ours, theirs = Counter(comparable(recorded.errors)), Counter(comparable(bare.errors))
    for line in ours - theirs:
        yield f"only with the recorder: {line}"
    for line in theirs - ours:
        yield f"only without the recorder: {line}"
    if bare.exit_code and bare.end_s is not None and recorded.end_s is not None and recorded.end_s - bare.end_s > extra_s:
        yield f"ended {recorded.end_s:.2f} s after its last mark, without the recorder {bare.end_s:.2f} s"
    for command in recorded.left:
        yield f"left a process: {command}"


_OWN_FRAME = re.compile(rf'  File "{re.escape(str(ROOT))}/(?:traces|tracer)/')
_CHANGING = re.compile(
    r"(?: Process \d+ has [^.]*\.\d+ [KMG]iB memory in use\.)+"  # other processes on the GPU, in out-of-memory messages
    r"|0x[0-9a-f]+|\b\d+(?:\.\d+)? (?:[KMGT]iB|bytes)|[Pp]rocess \d+|pid=?\s*\d+|\[[WEIF]?\d{3,}[ \d:.]*|\d\d:\d\d:\d\d[.\d]*"
)


def comparable(errors: str) -> list[str]:
    """Return the lines of stderr without the recorder's lines, and without numbers that differ from run to run.

    The frames of this checkout's packages are removed from tracebacks, because the recorder wraps functions of torch.
    """
    lines, is_own_frame = [], False
    for line in errors.splitlines():
        if not line.startswith("    "):
            is_own_frame = _OWN_FRAME.match(line) is not None
        if line.strip() and not is_own_frame and not line.startswith("trace:"):
            lines.append(_CHANGING.sub("N", line.rstrip()))
    return lines


def steps_of(file: Path, case: Case) -> tuple[int, list[str]]:
    """Return the number of training steps in a recording, and all errors in the file."""
    import numpy as np

    from traces.format.trace_file import load
    from traces.model.trace import StepKind, TraceError

    try:
        steps = load(file).steps
    except (TraceError, OSError) as error:
        return 0, [f"unreadable: {error}"]
    count = int((~np.isin(steps.kind, (StepKind.EVALUATION, StepKind.INCOMPLETE))).sum())
    return count, [] if abs(count - case.steps) <= case.spare_steps else [f"{count} steps, not {case.steps}"]


def lines_of(rows: list[Checked]) -> list[str]:
    """Return a summary in a few lines: the number of runs by result, then each error with the runs that have it."""
    counts = Counter((row.run if row.run in ("bare", "pace") else "recorded", row.status) for row in rows)
    where: dict[str, list[str]] = {}
    for row in rows:
        for fault in row.faults:
            where.setdefault(f"{row.status}: {fault[:300]}", []).append(f"{row.program} {row.run}")
    texts = ", ".join(f"{number} {run} {status}" for (run, status), number in sorted(counts.items()))
    return [texts, *(f"{fault} ({', '.join(runs)})" for fault, runs in where.items())]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2][:200]


def _marks(folder: Path) -> list[Path]:
    return sorted((folder / "marks").glob("*.tsv"))


def _last_mark_ns(file: Path) -> int:
    return max((int(line.split("\t")[2]) for line in file.read_text().splitlines() if line.count("\t") == 3), default=0)


def _state(pid: int) -> str:
    """Return the state of a process, such as "R" or "Z", or "" if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _session(leader: int) -> list[int]:
    """Return the running processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z" and int(fields[3]) == leader:
                found.append(int(folder.name))
    return found


def _left_behind(leader: int) -> tuple[str, ...]:
    """Return the command lines of a session's processes that still run after `GRACE_S` seconds."""
    deadline = time.monotonic() + GRACE_S
    while (pids := _session(leader)) and time.monotonic() < deadline:
        time.sleep(0.05)
    commands = []
    for pid in pids:
        try:
            commands.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[:120])
        except OSError:
            continue
    return tuple(commands)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port
