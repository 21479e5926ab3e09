"""Tests benchmarks/on_gpu.sh on a virtual GPU."""

from __future__ import annotations

import _thread
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.replayer.recordings import phase_recording
from traces.format.trace_file import load, save

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

DRY_PROGRAMS = {f"{name}-{grain}.msgpack" for name in ("raises", "amp") for grain in ("kernel", "phase")}


@pytest.fixture(scope="module")
def on_gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("on_gpu", BENCHMARKS / "on_gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_gpu"] = module  # dataclasses look up their module by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of phases with steps of 20 ms, for the virtual GPU of the dry run."""
    path = tmp_path_factory.mktemp("traces") / "phases.msgpack"
    save(phase_recording({"h2d": 1, "forward": 8, "backward": 9, "optimizer": 2}), path)
    return path


def on_gpu_sh(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(BENCHMARKS / "on_gpu.sh"), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "PYTHON": sys.executable, **environment},
    )


@pytest.mark.waits
def test_a_dry_run_runs_only_the_chosen_stages(tmp_path: Path, gpu: Path) -> None:
    """The chosen stages are a recording with kernels, a recording of phases, the allocator, and a stage that a virtual GPU
    skips."""
    stages = ["gpt-kernel", "programs", "allocator", "after_profile", "workload-lstm-kernel", "ddp-phase"]
    out = tmp_path / "results"
    done = on_gpu_sh("--dry-run", "--on", gpu, "--out", out, "--only", ",".join(stages))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    entries = {entry["stage"]: entry for entry in json.loads((out / "summary.json").read_text())["stages"]}
    assert {name: entry["status"] for name, entry in entries.items()} == {
        **dict.fromkeys(stages, "ok"),
        "after_profile": "skipped",
    }
    assert entries["after_profile"]["why"].startswith("the virtual GPU does not use CUPTI")
    programs = {(row["program"], row["run"]): (row["status"], row["steps"]) for row in entries["programs"]["programs"]}
    assert programs == {
        ("raises", "bare"): ("ok", 0),
        ("raises", "kernel"): ("ok", 30),
        ("raises", "phase"): ("ok", 30),
        ("amp", "bare"): ("ok", 0),
        ("amp", "kernel"): ("ok", 24),
        ("amp", "phase"): ("ok", 24),
    }
    assert entries["allocator"]["agrees"] and entries["allocator"]["segments"] > 5
    counts = {
        name: {kind: of["count"] for kind, of in entry["step_kinds"].items()}
        for name, entry in entries.items()
        if "step_kinds" in entry
    }
    in_depth = {"warmup": 2, "steady": 3, "profiled": 2}
    assert counts == {
        "gpt-kernel": in_depth,
        "workload-lstm-kernel": in_depth,
        "ddp-phase": {"warmup": 1, "steady": 6},
    }
    with tarfile.open(out / "recordings-1.tar") as archive:
        names = {"gpt_kernel.msgpack", "ddp_phase.msgpack", "workload_lstm_kernel.msgpack", "allocator_events.json"}
        assert set(archive.getnames()) == names | DRY_PROGRAMS


@pytest.mark.slow
@pytest.mark.waits
def test_a_dry_run_records_measures_checks_and_packs(tmp_path: Path, gpu: Path, on_gpu: ModuleType) -> None:
    """The dry run runs every stage on the virtual GPU."""
    out = tmp_path / "results"
    done = on_gpu_sh("--dry-run", "--on", gpu, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert sorted(path.name for path in out.iterdir()) == ["programs.json", "recordings-1.tar", "summary.json"]

    summary = json.loads((out / "summary.json").read_text())
    stages = {entry["stage"]: entry for entry in summary["stages"]}
    assert {name: entry["status"] for name, entry in stages.items()} == {
        **dict.fromkeys(on_gpu.stages(), "ok"),
        "after_profile": "skipped",
        **{f"workload-{name}-kernel": "skipped" for name, words in on_gpu.WORKLOADS.items() if "--compile" in words},
    }
    assert summary["dry_run"] and summary["packed"]["left_out"] == []

    parallel = stages["dataparallel-kernel"]
    parts = {part["name"] for part in parallel["parts"]}
    assert parts == {"scatter", "replicate", "parallel_apply", "gather", "gather_backward", "broadcast_backward"}
    checked = stages["allocator"]
    assert checked["agrees"] and checked["placed"] == checked["allocations"] > 500 and checked["segments"] > 5
    assert [row["over"] for row in stages["overhead"]["rows"]] == ["bare", "bare", "bare", "profiler"]
    # The recorded steps take 20 ms.
    assert all(row["step_ns"] >= 20e6 * 0.9 and row["ratio"] > 0 for row in stages["overhead"]["rows"])
    assert stages["overhead"]["kernel_file"]["profiled_steps"] == 5
    costs = stages["cost"]["steps"]
    assert list(costs) == ["one linear layer", "ResNet-50"]
    found = [cost["paired"] for cost in costs.values()]
    assert all(paired["turns"] >= 6 and paired["bare_us"] > 0 and paired["reported_us"] > 0 for paired in found)
    recorded = {name: entry["step_kinds"] for name, entry in stages.items() if "step_kinds" in entry}
    kinds = {name: {kind: of["count"] for kind, of in told.items()} for name, told in recorded.items()}
    in_depth = {"warmup": 2, "steady": 3, "profiled": 2}
    workloads = {name for name, words in on_gpu.WORKLOADS.items() if "--compile" not in words}
    trainings = {f"workload-{name}-kernel" for name in workloads - {"inference"}}
    assert {name for name, told in kinds.items() if told == in_depth} == {
        f"{name}-kernel" for name in on_gpu.SCRIPTS
    } | trainings
    assert kinds["workload-inference-kernel"] == {"evaluation": 7}
    in_phases = {"warmup": 1, "steady": 6}
    assert {name for name, told in kinds.items() if told == in_phases} == {f"{name}-phase" for name in on_gpu.SCRIPTS}

    with tarfile.open(out / "recordings-1.tar") as archive:
        names = {f"{name}_{grain}.msgpack" for name in on_gpu.SCRIPTS for grain in ("kernel", "phase")}
        names |= {f"workload_{name}_kernel.msgpack" for name in workloads}
        assert set(archive.getnames()) == names | DRY_PROGRAMS | {"allocator_events.json"}
        archive.extract("dataparallel_kernel.msgpack", tmp_path, filter="data")
    assert len(load(tmp_path / "dataparallel_kernel.msgpack").steps) == parallel["counts"]["steps"] == 7


def test_the_gpu_script_says_that_it_needs_a_gpu(tmp_path: Path) -> None:
    done = on_gpu_sh("--out", tmp_path)
    assert done.returncode == 2 and "torch sees no GPU here; --dry-run" in done.stderr


def test_stages_are_chosen_by_name_and_unknown_names_are_rejected(tmp_path: Path) -> None:
    done = on_gpu_sh("--dry-run", "--out", tmp_path, "--only", "resnet18_b32-phase,lunch")
    assert done.returncode == 2 and "there is no stage lunch" in done.stderr
    names = "resnet18_b32 resnet18_b128 resnet50_b32 resnet50_b128 gpt dataparallel ddp"
    for name in (
        *(f"{script}-{grain}" for script in names.split() for grain in ("kernel", "phase")),
        "programs",
        "overhead",
        "allocator",
        "after_profile",
        "cost",
        "workload-unet_compiled-kernel",
    ):
        assert name in done.stderr


def test_packages_can_be_imported_from_a_folder_of_wheels(tmp_path: Path) -> None:
    """GIVEN a folder with a wheel THEN the run can import the package of the wheel."""
    import zipfile

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "orjson-9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("orjson.py", "raise SystemExit('orjson of the wheel')")
    done = on_gpu_sh("--wheels", wheels, "--dry-run", "--only", "resnet18_b32-phase", "--out", tmp_path / "out")
    assert done.returncode == 1 and "orjson of the wheel" in done.stderr
    done = on_gpu_sh("--wheels", tmp_path / "nothing", "--dry-run", "--out", tmp_path / "out")
    assert done.returncode == 2 and "there are no wheels" in done.stderr


def test_a_failed_or_timed_out_check_does_not_affect_the_other_checks(on_gpu: Any, tmp_path: Path) -> None:
    def failing(run: Any) -> dict[str, Any]:
        on_gpu.call(run, [sys.executable, "-c", "print('bad luck'); raise SystemExit(3)"])
        return {}

    def hanging(run: Any) -> dict[str, Any]:
        on_gpu.call(run, [sys.executable, "-c", "input()" if sys.stdin.isatty() else "import time; time.sleep(60)"])
        return {}

    def fine(run: Any) -> dict[str, Any]:
        return {"found": "well"}

    import time

    run = on_gpu.Run(tmp_path, tmp_path, True, "p100-no-cudnn", time.monotonic() + 2.5)
    entries = on_gpu.perform(run, {"a": failing, "b": fine, "c": hanging, "d": fine})
    assert [(entry["status"], entry.get("why")) for entry in entries] == [
        ("failed", "exit code 3: bad luck"),
        ("ok", None),
        ("failed", "the time was up"),
        ("skipped", "the time limit was reached"),
    ]
    assert json.loads((tmp_path / "summary.json").read_text())["stages"] == entries


def test_a_run_stopped_by_sigterm_keeps_its_results(tmp_path: Path) -> None:
    """GIVEN a running stage WHEN on_gpu.py receives SIGTERM THEN it exits with 143 and keeps its results."""
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
import on_gpu
def stage(run):
    (run.work / "a.msgpack").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
on_gpu.stages = lambda: {{"only": stage}}
sys.argv = ["on_gpu.py", "--dry-run", "--out", {str(tmp_path / "out")!r}]
on_gpu.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 143, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["stages"] == [{"stage": "only", "status": "failed", "why": "ended by SIGTERM"}]
    assert summary["packed"] == {"recordings-1.tar": ["a.msgpack"], "left_out": []}


MIB = 1 << 20
HIGH, LOW = 0x7F00_0800_0000, 0x7F00_0000_0000


def history(torch_version: str) -> dict[str, Any]:
    """Return an allocator history of `torch_version`. Its last request gets the lower one of two free segments of 32 MiB."""
    taken = [("segment_alloc", HIGH), ("alloc", HIGH), ("segment_alloc", LOW), ("alloc", LOW)]
    freed = [("free_requested", LOW), ("free_completed", LOW), ("free_requested", HIGH), ("free_completed", HIGH)]
    events = [
        {"action": action, "addr": address, "size": 32 * MIB, "stream": 0}
        for action, address in [*taken, *freed, ("alloc", LOW)]
    ]
    statistics = {"allocation.all.allocated": 3, "reserved_bytes.all.peak": 64 * MIB, "num_ooms": 0}
    return {"torch": torch_version, "settings": "", "capacity_bytes": 1 << 30, "statistics": statistics, "events": events}


def test_the_allocator_check_uses_recorded_addresses_and_the_rules_of_the_pytorch_release() -> None:
    from benchmarks.allocator_check import compare, summary_line

    result = compare(history("2.11.0+cu130"))
    assert result["agrees"] and result["own_addresses"]["placed"] == 3
    line = "3 of 3 blocks at the recorded address, 0 of 3 statistics differ; 3 with addresses of our allocator"
    assert summary_line(result) == line
    result = compare(history("2.13.0+cu130"))  # this release takes the older segment
    assert not result["agrees"]
    assert summary_line(result) == (
        "2 of 3 blocks at the recorded address, 0 of 3 statistics differ; 2 with addresses of our allocator, first difference"
        " at event 8: 33,554,432 bytes recorded at (1, 0), placed at (0, 0)"
    )


def test_a_failed_comparison_prints_one_line_and_writes_details_to_the_summary(
    on_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    def recorded(run: Any, command: list[str]) -> None:
        events = history("2.13.0")
        events["statistics"]["reserved_bytes.all.peak"] = 1
        Path(command[3]).write_text(json.dumps(events))

    monkeypatch.setattr(on_gpu, "call", recorded)
    [entry] = on_gpu.perform(on_gpu.Run(tmp_path, tmp_path, False, "", time.monotonic() + 60), {"allocator": on_gpu.allocator})
    assert entry["status"] == "failed"
    assert entry["why"].startswith("our allocator differs: 2 of 3 blocks at the recorded address, 1 of 3 statistics differ")
    assert len(on_gpu.line_of(entry)) < 300
    assert entry["comparison"]["statistics_that_differ"] == {"reserved_bytes.all.peak": {"theirs": 1, "ours": 64 * MIB}}


def test_the_table_shows_the_median_of_several_processes() -> None:
    from benchmarks.after_profile import TIMES, table

    processes = [{"us": {"add_": dict.fromkeys(TIMES, us) | {"after": 2 * us}}} for us in (7.0, 30.0, 8.0)]
    assert [line.split() for line in table({"unset": processes})[1:]] == [["unset", "add_", "8.0", "8.0", "16.0", "8.0", "8.0"]]


def test_recording_cost_is_the_difference_to_unrecorded_steps_before_and_after() -> None:
    """GIVEN a machine that becomes slower, and a recorder that adds 12 µs to each step THEN the measured cost is 12 µs. It has
    9 µs of processor time and 3 µs in the recorder's thread. A reported cost counts as near if it differs by at most a third of
    the cost, or by 0.2 % of the step."""
    from benchmarks.paired_processes import Added, Calls, Paired, Turn, _alternate, _summary
    from benchmarks.recording_cost import Cost, table

    turns: list[int] = []  # the numbers of steps of each turn

    def bare(steps: int, added_us: float = 0.0, processor_us: float = 0.0) -> Turn:
        turns.append(steps)
        now_us = 5000.0 + 20 * len(turns)
        low_us = 4000.0 + added_us / 12 * 11 + len(turns) // 6
        return Turn(now_us + added_us, 50.0 + processor_us, now_us + added_us, low_us, processor_us / 3)

    with_recorder, bares = _alternate(bare, lambda steps: bare(steps, 12.0, 9.0), seconds=0.0)
    assert (len(with_recorder), len(bares)) == (6, 7)
    assert (turns[0], set(turns[1:])) == (6, {100})  # a turn of 100 steps takes half a second
    added = _summary(with_recorder, bares)
    assert added == Added(12.0, 11.0, 9.0, 3.0)

    cost = Cost("a layer", 50.5, Paired(6, 1100.0, 1100.0, added, 16.0, Calls(42, 75, 6)))
    assert table([cost])[1].split() == "a layer 6 1100.0 12.0 11.0 9.0 50.5 met 3.0 16.0 near 42/75/6".split()
    slower = replace(cost, paired=replace(cost.paired, reported_us=16.1))
    assert not slower.is_near and replace(slower, paired=replace(slower.paired, whole_us=2100.0)).is_near
    assert replace(cost, bound_us=12.0).is_cheap and not replace(cost, bound_us=11.9).is_cheap


def test_the_time_of_a_fast_step_excludes_interruptions_by_other_programs() -> None:
    """GIVEN steps of 2 ms WHEN every third step is interrupted for 10 ms THEN the time of a fast step is about 2 ms."""
    from benchmarks.paired_processes import _turn

    number = 0

    def step() -> tuple[int, int]:
        nonlocal number
        number += 1
        time.sleep(0.012 if number % 3 == 0 else 0.002)
        return 0, 0

    turn = _turn(step, 12)
    assert turn.clock_us == turn.whole_us > 5000 > turn.low_us >= 2000


def test_the_time_of_the_recorders_threads_is_measured() -> None:
    """GIVEN a thread of this project and another thread THEN only the processor time of the first one counts."""
    from benchmarks.paired_processes import _writer_ns
    from traces.script.patching import around

    until = threading.Event()

    def work(*_: object) -> None:
        while not until.is_set():
            pass

    threading.Thread(target=work).start()
    before_ns = _writer_ns()
    ours = around(work, lambda original: original())
    _thread.start_new_thread(ours, ())
    time.sleep(0.1)
    during_ns = _writer_ns()
    until.set()
    assert before_ns == 0 < during_ns


def test_the_recorders_calls_in_a_step_are_counted() -> None:
    """GIVEN a step that adds a known and a new text to a string table THEN two Python calls and four C calls are counted. The C
    calls are `get` twice, `len` and `append`."""
    from benchmarks.paired_processes import Calls, _calls
    from traces.model.trace import Strings

    strings = Strings(["known"])

    def step() -> tuple[int, int]:
        return strings.add("known"), strings.add("new")

    assert _calls(step) == Calls(2, 4, 0)


def test_programs_that_would_exceed_the_limit_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN programs that take 4 s each and a limit of 9 s THEN only the first two are measured."""
    from benchmarks import recording_cost
    from benchmarks.paired_processes import Added, Calls, Paired

    now_s = [100.0]

    def measure(words: list[str], seconds: float, on: str) -> Paired:
        now_s[0] += 4.0
        return Paired(6, 1100.0, 1100.0, Added(12.0, 11.0, 9.0, 0.0), 12.0, Calls(42, 75, 6))

    monkeypatch.setattr(recording_cost, "measure", measure)
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    facts = tmp_path / "cost.json"
    chosen = ["--only", "1 ms", "--only", "5 ms", "--only", "30 ms"]
    monkeypatch.setattr(sys, "argv", ["recording_cost.py", "--limit", "9", "--json", str(facts), *chosen])
    assert recording_cost.main() == 0
    assert list(json.loads(facts.read_text())["steps"]) == ["1 ms", "5 ms"]


def test_recordings_are_packed_into_tar_files_within_the_size_limits(
    on_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN more files than fit THEN no tar file is too large, and the omitted files are reported."""
    monkeypatch.setattr(on_gpu, "MAX_FILES", 3)
    monkeypatch.setattr(on_gpu, "MAX_FILE_BYTES", 40_000)
    sizes = {"a": 20_000, "b": 12_000, "c": 7_000, "d": 50_000, "e": 26_000, "f": 300}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    out = tmp_path / "out"
    out.mkdir()
    packed = on_gpu.pack([tmp_path / name for name in sizes], out)
    assert packed == {"recordings-1.tar": ["a", "c", "f"], "recordings-2.tar": ["b"], "left_out": ["d", "e"]}
    for tar in out.iterdir():
        assert tar.stat().st_size <= 40_000
        with tarfile.open(tar) as archive:
            assert archive.getnames() == packed[tar.name]
