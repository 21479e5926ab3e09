"""Tests how `trace stalls` reads disks and numbers of cores, and what it prints about given figures."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from traces.model.trace import Trace, TraceError
from traces.stalls.data_stalls import Bottleneck, Modelled, Pace, Stalls
from tui.commands import stalls
from tui.commands.replay_library import ReplaySource
from tui.commands.stalls import counts_of, disk_of, stalls_text
from tui.options import StallsOptions

MS = 1_000_000


@pytest.mark.parametrize(
    ("asked", "bytes_per_s", "latency_ns"),
    [
        ("ssd", 530e6, 0),
        ("hdd", 160e6, 8 * MS),
        ("530MB/s", 530e6, 0),
        ("2.5 GB/s", 2.5e9, 0),
        ("7kB/s", 7e3, 0),
        ("9B/s", 9, 0),
        ("160mb/s, 8ms", 160e6, 8 * MS),
        ("160MB/s,80us", 160e6, 80_000),
    ],
)
def test_the_option_disk_accepts_a_bandwidth_and_a_latency(asked: str, bytes_per_s: float, latency_ns: int) -> None:
    disk = disk_of(asked)
    assert (disk.bytes_per_s, disk.latency_ns) == (bytes_per_s, latency_ns)


@pytest.mark.parametrize("asked", ["0MB/s", "fast", "160", "160MB/s,8", "-1MB/s"])
def test_invalid_values_of_the_option_disk_are_rejected(asked: str) -> None:
    with pytest.raises(TraceError, match="is not a disk"):
        disk_of(asked)


def test_the_option_cores_accepts_a_list_of_numbers() -> None:
    assert (counts_of("1, 2,128"), counts_of("")) == ((1, 2, 128), ())
    for asked in ("0", "129", "1,,2", "two"):
        with pytest.raises(TraceError, match="is not a list of core counts"):
            counts_of(asked)


FOUND = Stalls(
    gpu=Pace(20, 80 * MS, 0, 400.0),
    estimated_share=0.0,
    prepared=Pace(20, 100 * MS, 20 * MS, 320.0),
    fetched=None,
    batch_samples=32.0,
    step_batches=1,
    workers=2,
    batch_cpu_ns=150 * MS,
    batch_blocked_ns=3 * MS,
    batch_wall_ns=160 * MS,
    batch_bytes=3 << 20,
    batch_missed_bytes=None,
    batch_pin_ns=None,
    batch_pin_cpu_ns=None,
    data_set_bytes=None,
    bottleneck=Bottleneck.PREPARATION,
    check=None,
    taken_cores=0.0,
    enough=None,
    by_cores=[],
    disk_bytes_per_s=None,
    notes=["a note"],
)


def said(asked: StallsOptions | None = None, cached: float = 0.0, **changes: Any) -> list[str]:
    return stalls_text(replace(FOUND, **changes), asked or StallsOptions(["train.py"]), cached)


def test_stalls_prints_the_verdict_and_the_speed_with_cached_data() -> None:
    lines = said()
    preparing = "Preparing batches on the CPU is the bottleneck: with batches ready in memory, a step would be 20.0 % shorter"
    assert lines[0] == f"{preparing} (to include a disk, add --disk)."
    assert [line.split() for line in lines[2:5]] == [
        ["measured", "step", "waiting", "samples/s"],
        ["data", "ready", "in", "memory", "(GPU", "speed)", "80.0", "ms", "0.0", "%", "400.0"],
        ["data", "cached", "100.0", "ms", "20.0", "%", "320.0"],
    ]
    assert lines[6:] == [
        "for one batch of 32 samples, a worker needs 150.0 ms of CPU time and reads 3.0 MiB",
        "prediction: no number of workers up to 128 would be fast enough",
        "a note",
    ]


def test_stalls_prints_how_much_shorter_a_step_would_be_with_cached_files() -> None:
    """A step takes 125 ms with the disk, 100 ms with cached files (20 % less), and 80 ms with data in memory (36 % less)."""
    disk = StallsOptions(["train.py"], disk="160MB/s")
    lines = said(disk, 0.35, fetched=Pace(20, 125 * MS, 50 * MS, 256.0), disk_bytes_per_s=212e6, bottleneck=Bottleneck.STORAGE)
    cached = "Storage is the bottleneck: with cached files, a step would be 20.0 % shorter"
    assert lines[0] == f"{cached}; with batches ready in memory, 36.0 % shorter."
    assert lines[5].split() == "data from 160MB/s, 35% cached (lru) 125.0 ms 40.0 % 256.0".split()
    assert "a disk that delivers 212 MB/s, including its latency, would be fast enough" in lines
    own = said(StallsOptions(["train.py"], disk="own"), fetched=Pace(20, 125 * MS, 50 * MS, 256.0))
    assert own[5].startswith("data from this machine's disk, nothing cached")
    assert "(the script read no files from the disk)" in said(disk)[0]


def test_stalls_says_how_long_a_worker_waits_without_using_a_core() -> None:
    lines = said(batch_blocked_ns=4 * MS)
    needs = "for one batch of 32 samples, a worker needs 150.0 ms of CPU time"
    assert f"{needs}, waits 4.0 ms without using a core, and reads 3.0 MiB" in lines
    assert lines[0].startswith("Preparing batches on the CPU is the bottleneck: ")
    waiting = said(batch_blocked_ns=151 * MS)[0]
    assert waiting.startswith("Waiting in the data set, for example for the network, is the bottleneck: ")


def test_stalls_suggests_numbers_of_workers_and_cores_and_a_disk_speed() -> None:
    lines = said(enough=Modelled(1, 1, 400.0, 0.0), step_batches=2, batch_pin_ns=2 * MS)
    assert "prediction: 1 worker with its own core would be fast enough" in lines
    assert "a step uses 2 batches from 2 workers in total" in lines
    assert "for one batch of 32 samples, a worker needs 150.0 ms of CPU time and reads 3.0 MiB; pinning takes 2.0 ms" in lines
    lines = said(
        enough=Modelled(3, 3, 400.0, 0.0), check=Modelled(2, 1, 304.0, 0.2), taken_cores=0.25, estimated_share=0.2,
        by_cores=[Modelled(4, 4, 390.0, 0.025)],
    )  # fmt: skip
    assert "prediction: 3 workers, each with its own core, would be fast enough" in lines
    here = "prediction for this machine (2 workers, 1 core; other programs use 0.25 cores)"
    assert f"{here}: 304.0 samples/s, -5.0 % from the measurement" in lines
    assert lines[-2].split() == ["4", "390.0", "2.5", "%"]
    assert any(line.startswith("ESTIMATE: 20.0 % of GPU time is estimated") for line in lines)
    assert lines[3].startswith("data ready in memory (GPU speed, estimated)")
    assert not any("ESTIMATE" in line for line in said(estimated_share=0.0099))


@pytest.mark.parametrize(
    ("case", "result"),
    [
        ({}, 0),
        ({"disk": "ssd", "cache": "a cache"}, 0),
        ({"cache": "a cache"}, 0),
        ({"code": 3, "timelines": 0}, 3),
        ({"timelines": 0}, "the script did not use the GPU"),
        ({"free_bytes": 16_383, "code": 3}, "No space left on device"),
    ],
)
def test_stalls_runs_the_script_with_simulated_storage_and_keeps_its_timelines(
    case: dict[str, Any], result: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a script that leaves a timeline, and a disk with just enough space for this timeline. Cached files are dropped only
    from this machine's own disk. The path of a socket has at most 103 bytes."""
    seen: list[Any] = []

    @contextmanager
    def server(socket: Path, disk: Any, cache: Any, drop_cached: bool) -> Any:
        socket.touch()
        seen.append((socket, drop_cached))
        yield SimpleNamespace(loadings=["a loading"])

    def run_child(settings: Any, words: Any, stdout: int) -> Any:
        session = settings["replayer"]
        seen.append((session.out, session.storage))
        for number in range(case.get("timelines", 1)):
            (session.out / f"replay-{number}.msgpack").touch()
        return SimpleNamespace(returncode=case.get("code", 0), pid=7)

    monkeypatch.setattr(stalls, "StorageServer", server)
    monkeypatch.setattr(stalls, "run_child", run_child)
    monkeypatch.setattr(stalls, "timelines_in", lambda folder: list(folder.glob("*.msgpack")))
    monkeypatch.setattr(stalls, "one_replay", lambda timelines, pid: [len(timelines)])
    temporary = tmp_path / ("long" * 25)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    usage = SimpleNamespace(free=case.get("free_bytes", 16_384))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)

    def run() -> Any:
        options: Any = SimpleNamespace(steps=3, script=["train.py"])
        source = ReplaySource("card", Trace(), path=tmp_path / "card")
        return stalls._run(tmp_path, options, source, "real", case.get("disk"), case.get("cache"))

    if isinstance(result, str):
        with pytest.raises((TraceError, OSError), match=result):
            run()
        return
    trace, loadings, code = run()
    assert (loadings, code) == (["a loading"], result)
    assert trace == 1 if not result else isinstance(trace, Trace)
    (socket, drops_cached), (out, storage) = seen
    assert drops_cached == (case == {"cache": "a cache"})
    assert (out, storage) == (tmp_path / "out", socket)
    assert len(os.fsencode(socket)) < 104 and not socket.exists()
    assert not list(tmp_path.rglob("*.msgpack"))
