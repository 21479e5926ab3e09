"""Compares `trace import` of a large recording with json.load of the same file, in CPU time and peak memory.

    python benchmarks/import_speed.py RECORDING.json.gz [--copies 9] [--keep big.json]

The large file contains the events of a recording many times. The events of each copy are later than those of the previous copy,
and have their own ids and step numbers. The two kinds of child processes alternate, and the results are medians of five
processes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RUNS = 5
_IDS = ("correlation", "External id", "external id", "Ev Idx", "Sequence number")
_STEP = re.compile(r"^(ProfilerStep#)(\d+)$")
_CHILD = """
import resource, sys, time
{what}
spent = resource.getrusage(resource.RUSAGE_SELF)
print(spent.ru_utime + spent.ru_stime, spent.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""
_LOAD = "import json\nwith open({path!r}) as file: held = json.load(file)"
_READ = "from pathlib import Path\nfrom traces.kineto import read_kineto\nheld = read_kineto(Path({path!r}))"
_SAVE = _READ + "\nfrom traces.format.trace_file import save\nsave(held, Path({path!r} + '.msgpack'))"

_KINDS = {"json.load": _LOAD, "read": _READ, "trace import": _SAVE}


def repeated(document: dict[str, Any], copies: int) -> dict[str, Any]:
    """Return the document with `copies` copies of its events, one after the other."""
    events = document["traceEvents"]
    timed = [event for event in events if "ts" in event and event.get("ph") != "M"]
    length = max(event["ts"] + event.get("dur", 0) for event in timed) - min(event["ts"] for event in timed)
    most = {key: max((_number(event, key) for event in timed), default=0) + 1 for key in _IDS}
    flows = max((event["id"] for event in timed if isinstance(event.get("id"), int)), default=0) + 1
    steps = len({event["name"] for event in timed if _STEP.match(str(event.get("name")))})
    made = [event for event in events if event.get("ph") == "M" or "ts" not in event]
    for copy in range(copies):
        for event in timed:
            new = dict(event, ts=event["ts"] + copy * (length + 1000))
            if isinstance(event.get("id"), int):
                new["id"] = event["id"] + copy * flows
            if "args" in event:
                new["args"] = dict(event["args"])
                for key in _IDS:
                    if _number(event, key):
                        new["args"][key] = event["args"][key] + copy * most[key]
            if found := _STEP.match(str(event.get("name"))):
                new["name"] = f"{found[1]}{int(found[2]) + copy * steps}"
            made.append(new)
    return {**document, "traceEvents": made}


def write(recording: Path, copies: int, path: Path) -> None:
    """Write the large file. `recording` may be compressed."""
    opened = gzip.open if recording.suffix == ".gz" else open
    with opened(recording, "rt") as file:
        document = json.load(file)
    path.write_text(json.dumps(repeated(document, copies)))


def _number(event: dict[str, Any], key: str) -> int:
    value = event.get("args", {}).get(key)
    return value if isinstance(value, int) else 0


def measured(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the CPU seconds and peak bytes of the child processes of each kind."""
    # Let Python write compiled modules, because users also compile our modules only once.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _KINDS}
    for _ in range(RUNS):
        for name, what in _KINDS.items():
            child = [sys.executable, "-c", _CHILD.format(what=what.format(path=str(path)))]
            ran = subprocess.run(child, capture_output=True, text=True, check=True, env=environment)
            seconds, peak_bytes = map(float, ran.stdout.split())
            found[name].append((seconds, peak_bytes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--copies", type=int, default=9)
    parser.add_argument("--keep", type=Path, help="keep the large file under this name")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.keep or Path(folder, "large.json")
        # Linux counts this process's memory in the peak memory of its child processes, so another process writes the file.
        writer = multiprocessing.get_context("spawn").Process(target=write, args=(asked.recording, asked.copies, path))
        writer.start()
        writer.join()
        print(f"{path.stat().st_size / 1e6:.0f} MB, {asked.copies} copies of {asked.recording.name}")
        found = measured(path)
        for name, runs in found.items():
            seconds, peaks = (statistics.median(values) for values in zip(*runs, strict=True))
            ratio = statistics.median(own / load for (own, _), (load, _) in zip(runs, found["json.load"], strict=True))
            print(f"{name:14}{seconds:7.2f} s {ratio:6.2f} times json.load   {peaks / 2**20:7.0f} MiB")


if __name__ == "__main__":
    main()
