"""Measures how long a script waits for data, and suggests a fix.

    run(StallsOptions(script=["train.py"], gpu="v100", disk="ssd", cached="35%"))

The script runs first with a single batch that stays in memory, and then with cached files. `--disk` adds a run in which files
are read at the speed of the given disk.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from traces.combining.replayed_ranks import one_replay, timelines_in
from traces.comparison.thresholds import NOTICEABLE_ESTIMATE, NOTICEABLE_WAIT
from traces.model.json_facts import extended
from traces.model.trace import Trace, TraceError
from traces.script.configuration import FAILURE, ReplayConfig, ReplaySession
from traces.script.launch import run_child
from traces.stalls.data_stalls import MOST_WORKERS, Pace, Stalls, stalls_of
from traces.stalls.storage_model import CacheShare, Disk
from traces.stalls.storage_server import Loading, StorageServer
from tui.commands.doctor import usable_cores
from tui.commands.replay_library import ReplaySource, library_messages, source_of
from tui.formatting import count_text, counted, share_text, size_text, table, time_text
from tui.options import StallsOptions, share
from tui.outputs import json_text, show_text
from tui.running.narration import ending_text, hint_misplaced_option, say
from tui.running.progress import working
from tui.terminal import is_verbose

# A SATA SSD has the speed of its interface. A hard disk has 7 200 rpm: half a turn takes 4.2 ms, and a seek takes about as
# long.
DISKS = {"ssd": (530e6, 0), "hdd": (160e6, 8_000_000)}  # bytes per second, and latency in ns
OWN_DISK = "own"  # this machine's disk: each file is dropped from the page cache before reading
# maximum length of TMPDIR's path in bytes; the path of a Unix socket has at most 103 bytes on macOS, and 107 on Linux
_MOST_FOR_SOCKETS = 75
_LEAST_FREE_BYTES = 16_384  # maximum size of the last block of a timeline
_BLOCKED = "Waiting in the data set, for example for the network,"
_RATE = re.compile(
    r"(?P<rate>\d+\.?\d*)\s*(?P<unit>[kMG])?B/s(?:\s*,\s*(?P<latency>\d+\.?\d*)\s*(?P<time>us|ms))?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StallsFacts(Stalls):
    """Contains the time that a script spends waiting for data, as shares of the step time."""

    preparation_share: float  # how much shorter a step with cached files would be with batches in memory, as a fraction
    fetch_share: float | None  # how much shorter a step would be if all files were cached, as a fraction; None without `--disk`


def disk_of(text: str) -> Disk:
    """Parse a disk type such as "ssd", or a speed such as "530MB/s". Raise TraceError for other text."""
    if text in DISKS:
        return Disk(*DISKS[text])
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match["rate"]) <= 0:
        raise TraceError(f"{text!r} is not a disk; write ssd, hdd or own, or a speed such as 530MB/s or 160MB/s,8ms")
    rate = float(match["rate"]) * 1000 ** " kmg".index((match["unit"] or " ").lower())
    latency_ns = float(match["latency"] or 0) * (1_000_000 if (match["time"] or "").lower() == "ms" else 1_000)
    return Disk(rate, round(latency_ns))


def counts_of(text: str) -> tuple[int, ...]:
    """Parse numbers such as "1,2,4". Raise TraceError for invalid text."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and 0 < int(part) <= MOST_WORKERS for part in parts):
        raise TraceError(f"--cores {text!r} is not a list of core counts; write counts up to {MOST_WORKERS}, such as 1,2,4")
    return tuple(map(int, parts))


def run(options: StallsOptions) -> int:
    cached, cores = share(options.cached, "--cached"), counts_of(options.cores)
    if not options.gpu and not options.trace:
        raise TraceError("no GPU given; use `--gpu` with a GPU of the library such as v100, or `--trace` with a recording")
    source = source_of(options.trace, options.gpu, estimate=options.estimate)
    disk = disk_of(options.disk) if options.disk not in ("", OWN_DISK) else None
    if not 0 <= cached <= 1:
        raise TraceError(f"--cached {cached:.0%} is out of range; give a value from 0 to 100 %")
    if cached and not options.disk:
        raise TraceError("`--cached` needs a disk; add, for example, `--disk ssd`")
    runs: list[tuple[str, str, Disk | None, CacheShare | None]] = [
        ("with a batch in memory", "synthetic", None, None),
        ("with cached data", "real", None, None),
    ]
    if options.disk:
        runs.append((f"with data from {_disk_text(options)}", "real", disk, CacheShare(cached, options.policy)))
    done: list[tuple[Trace, list[Loading]]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="trace-stalls-") as folder:
            for number, (words, loader, modelled, cache) in enumerate(runs, start=1):
                with working(f"run {number} of {len(runs)}: the script {words}"):
                    trace, loading, returncode = _run(Path(folder), options, source, loader, modelled, cache)
                if returncode:
                    run_text = f"run {number} of {len(runs)}, {words}"
                    say(f"nothing was compared: in {run_text}, {_failure_reason(Path(folder), returncode)}", is_error=True)
                    hint_misplaced_option(options.script, refused=returncode == 2)
                    return returncode
                done.append((trace, loading))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        full = tempfile.gettempdir()
        raise TraceError(f"{full} has no space left for the files of the runs; set TMPDIR to another folder") from error
    (ready, _), cached_run, *cold = done
    for message in library_messages(ready):
        say(message)
    found = stalls_of(ready, *cached_run, usable_cores(), list(cores), *(cold[0] if cold else (None, None)))
    shares = {"preparation_share": found.preparation_share, "fetch_share": found.fetch_share}
    text = json_text(extended(StallsFacts, found, **shares)) if options.json else "\n".join(stalls_text(found, options, cached))
    show_text(text)
    return 0


def _failure_reason(folder: Path, returncode: int) -> str:
    path = folder / "out" / FAILURE
    if not path.exists():
        return ending_text(returncode)
    line, _, rest = path.read_text(encoding="utf-8").partition("\n")
    if is_verbose():
        print(rest, end="", file=sys.stderr)
    return f"the script failed: {line}{'' if is_verbose() else ' (-v shows where)'}"


def _run(
    folder: Path, options: StallsOptions, source: ReplaySource, loader: str, disk: Disk | None, cache: CacheShare | None
) -> tuple[Trace, list[Loading], int]:
    out = folder / "out"
    out.mkdir(exist_ok=True)
    temporary = None if len(os.fsencode(tempfile.gettempdir())) <= _MOST_FOR_SOCKETS else "/tmp"
    with tempfile.TemporaryDirectory(prefix="trace-", dir=temporary) as socket_folder:
        socket = Path(socket_folder) / "storage"
        with StorageServer(socket, disk, cache, drop_cached=cache is not None and disk is None) as server:
            config = ReplayConfig(loader=loader, steps=options.steps)
            recording = source.file_in(folder)
            session = ReplaySession(recording, out, os.getpid(), config=config, cells=source.choice, storage=socket)
            # stdout is for the results, so the script's output goes to stderr
            result = run_child({"replayer": session}, options.script, stdout=sys.stderr.fileno())
    if shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # raise the error even if the script has handled it
    if result.returncode:
        return Trace(), server.loadings, result.returncode
    timelines = timelines_in(out)
    if not timelines:
        raise TraceError("the script did not use the GPU, so no GPU time can be compared with data loading")
    for file in out.glob("replay-*.msgpack"):
        file.unlink()
    return one_replay(timelines, result.pid)[0], server.loadings, 0


def stalls_text(found: Stalls, options: StallsOptions, cached: float) -> list[str]:
    estimated = found.estimated_share >= NOTICEABLE_ESTIMATE
    own_pace = f"data ready in memory (GPU speed{', estimated' if estimated else ''})"
    rows = [[own_pace, *_pace(found.gpu)], ["data cached", *_pace(found.prepared)]]
    if found.fetched is not None:
        held = f", {cached:.0%} cached ({options.policy})" if cached else ", nothing cached"
        rows.append([f"data from {_disk_text(options)}{held}", *_pace(found.fetched)])
    head = ["measured, with an estimated GPU" if estimated else "measured", "step", "waiting", "samples/s"]
    lines = [_verdict(found, bool(options.disk)), "", *table(head, rows, width=88), ""]
    if estimated:
        share = share_text(found.estimated_share)
        rest = "the other times come from published tables and recordings"
        lines.append(f"ESTIMATE: {share} of GPU time is estimated from other shapes, curves or data sheets; {rest}")
    worker = f"for one batch of {found.batch_samples:.0f} samples, a worker needs {time_text(found.batch_cpu_ns)} of CPU time"
    if found.batch_blocked_ns > NOTICEABLE_WAIT * found.batch_wall_ns:
        worker += f", waits {time_text(found.batch_blocked_ns)} without using a core,"
    if found.step_batches > 1:
        lines.append(f"a step uses {found.step_batches} batches from {found.workers} workers in total")
    pinned = "" if found.batch_pin_ns is None else f"; pinning takes {time_text(found.batch_pin_ns)}"
    lines.append(f"{worker} and reads {size_text(found.batch_bytes)}{pinned}")
    if found.disk_bytes_per_s is not None:
        rate = f"{found.disk_bytes_per_s / 1e6:.0f} MB/s"
        lines.append(f"a disk that delivers {rate}, including its latency, would be fast enough")
    if found.enough is not None:
        count = found.enough.workers
        workers = "1 worker with its own core" if count == 1 else f"{count} workers, each with its own core,"
        lines.append(f"prediction: {workers} would be fast enough")
    else:
        lines.append("prediction: no number of workers up to 128 would be fast enough")
    if found.check is not None:
        off = 100 * (found.check.samples_per_s / found.prepared.samples_per_s - 1)
        workers, cores = counted(found.check.workers, "worker"), counted(found.check.cores, "core")
        here = f"{workers}, {cores}; other programs use {found.taken_cores:.2f} cores"
        predicted = f"{found.check.samples_per_s:.1f} samples/s, {off:+.1f} % from the measurement"
        lines.append(f"prediction for this machine ({here}): {predicted}")
    if found.by_cores:
        head = ["predicted, one worker per core", "samples/s", "waiting"]
        rows = [[count_text(of.cores), f"{of.samples_per_s:.1f}", share_text(of.wait_share)] for of in found.by_cores]
        lines += ["", *table(head, rows, width=88)]
    return [*lines, *found.notes]


def _disk_text(options: StallsOptions) -> str:
    return "this machine's disk" if options.disk == OWN_DISK else options.disk


def _pace(of: Pace) -> list[str]:
    return [time_text(of.step_ns), share_text(of.wait_ns / of.step_ns), f"{of.samples_per_s:.1f}"]


def _verdict(found: Stalls, has_disk: bool) -> str:
    ready = share_text(found.preparation_share)
    if found.fetched is not None:
        cached = f"with cached files, a step would be {share_text(found.fetch_share)} shorter"
        both = share_text(max(1 - found.gpu.step_ns / found.fetched.step_ns, 0))
        effect = f"{cached}; with batches ready in memory, {both} shorter"
    else:
        no_disk = "the script read no files from the disk" if has_disk else "to include a disk, add --disk"
        effect = f"with batches ready in memory, a step would be {ready} shorter ({no_disk})"
    works = found.batch_cpu_ns >= found.batch_blocked_ns
    reasons = {
        "gpu": "The GPU is the bottleneck, not data loading",
        "storage": "Storage is the bottleneck",
        "preparation": f"{'Preparing batches on the CPU' if works else _BLOCKED} is the bottleneck",
        "pinning": "Pinning batches is the bottleneck",
    }
    return f"{reasons[found.bottleneck.value]}: {effect}."
