"""Tests the `trace` command: its imports and output, and that an error becomes one line and an exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

import trace_replay
from tests.tui.view.scenes import crowd
from traces.chrome.export import export_chrome
from traces.combining.merge import merge_ranks
from traces.figures.problems import problems_of
from traces.format.trace_file import load, save
from traces.model.trace import Device, DeviceKind, DeviceSpans, Origin, Steps, Trace, TraceWriteError
from traces.script.configuration import ReplaySession
from traces.script.launch import ROOT, ChildResult
from tui.cli import app, run
from tui.commands import replay as replay_command
from tui.commands.import_ import default_name
from tui.help import Commands


def small_trace(kind: DeviceKind = DeviceKind.KERNEL) -> Trace:
    trace = Trace(devices=[Device(rank=0, index=0, name="Tesla T1000")])
    name = trace.strings.add("relu_kernel")
    trace.device = DeviceSpans.of(device=[0], stream=[7], kind=[kind], name=[name], start_ns=[1_000], duration_ns=[5_000])
    trace.steps = Steps.of(rank=[0], number=[0], start_ns=[0], duration_ns=[10_000])
    return trace


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder that contains only t.msgpack, a small trace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACE_DEBUG", raising=False)
    save(small_trace(), tmp_path / "t.msgpack")
    return tmp_path


# --- imports of a command ---


@pytest.mark.parametrize("words", [["--help"], ["replay", "--help"], ["import", "-h"], ["nonsense"], []])
def test_help_and_argument_errors_import_no_heavy_packages(words: list[str]) -> None:
    program = f"""
import sys
from tui.cli import app, run
code = run({words})
heavy = {{"torch", "numpy", "textual", "rich", "orjson", "msgpack"}} & sys.modules.keys()
sys.exit(f"heavy: {{heavy}}" if heavy else code)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    if words == ["nonsense"]:
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "trace: No such command 'nonsense'; see trace --help\n"
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: trace")


def test_parsing_a_command_line_loads_only_the_requested_command() -> None:
    def names(of: Commands) -> list[str]:
        command = typer.main.get_command(of)
        assert isinstance(command, TyperGroup)
        return list(command.commands)

    every = names(app)
    own = {name: names(app.with_command(name)) for name in every}
    assert own == {name: every if name in ("gate", "library") else [name] for name in every}
    assert names(app.with_command("nonsense")) == every


def test_a_trace_file_is_read_without_the_importer(folder: Path) -> None:
    program = "import sys\nfrom tui.cli import run\nprint(run(['info', 't.msgpack']), 'traces.kineto' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("\n0 False\n")


# --- errors ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("info", "Missing argument 'TRACE'; see trace info --help"),
        ("info nope", "nope"),
        ("info .", ""),
        ("info p100x1", "did you mean p100x2-no-cudnn?"),
        ("info empty", "empty: not a readable trace"),
        ("info t.msgpack --frob", "No such option: --frob; see trace info --help"),
        ("diff t.msgpack", "Missing argument 'B'; see trace diff --help"),
        ("diff t.msgpack t.msgpack --gate b.toml", "b.toml: no such file; run `trace gate init RECORDING -o b.toml`"),
        ("gate init", "Missing argument 'RECORDING'; see trace gate init --help"),
        ("library shw", "No such command 'shw'"),
        ("replay --gpu nosuch --estimate script.py", "unknown GPU: nosuch; give a name such as V100, T4"),
        ("diff t.msgpack nope", "nope"),
        ("diff t.msgpack t.msgpack --tolerance -1", "--tolerance"),
        ("diff t.msgpack t.msgpack --tolerance 5", "5 has no unit; write 5%, or a fraction such as 0.05"),
        ("export t.msgpack -o nowhere/x.json", "nowhere: no such folder; create it first"),
        ("export t.msgpack", "Missing option"),
        ("replay --trace t.msgpack --nproc 0 train.py", "Invalid value for '--nproc'"),
        ("replay --trace t.msgpack --gpus 0 train.py", "Invalid value for '--gpus'"),
        ("fit --gpus l4 --nproc 0 train.py", "Invalid value for '--nproc'"),
        ("fit train.py", "name the GPUs to try, or use --all"),
        ("fit --gpus l4 --all train.py", "name the GPUs to try, or use --all"),
        ("import nope.json", "nope.json: cannot be read: No such file or directory"),
        ("import empty", "empty"),
        ("import t.json", "t.msgpack already exists; replace it with `-o t.msgpack`, or give another file name with `-o`"),
        ("import t.msgpack -o t.msgpack", "is the recording itself"),
        ("replay script.py --gpu v100", "--gpu was passed to the script; put options of trace replay before the script"),
        ("replay script.py", "Missing option '--trace' T (the recording to replay) or '--gpu' NAME"),
        ("replay script.py --trace", "needs a FILE"),
        ("replay --trace t.msgpack", "Missing argument 'SCRIPT'"),
        ("replay", "Missing SCRIPT and --trace T; see trace replay --help"),
        ("replay --gpu v100", "Missing argument 'SCRIPT'; see trace replay --help"),
        ("-q info t.msgpack", "-q goes after the command's name, as in trace info -q"),
        ("replay --gpu-memory 16 --trace t.msgpack script.py", "16 has no unit; write 16GiB or 16GB"),
        ("replay --trace t.msgpack -m", "needs a MODULE"),
        ("replay --loader fast --trace t.msgpack script.py", "'fast' is not one of 'real', 'recorded'"),
        ("replay --trace nope script.py", "nope"),
        ("replay --trace idle.msgpack script.py", "no GPU work to replay"),
        ("record --on idle.msgpack script.py", "no GPU work to replay"),
        ("record --on empty script.py", "empty: not a readable trace"),
        ("stalls --trace empty script.py", "empty: not a readable trace"),
        ("replay --report nowhere/r.json --trace t.msgpack script.py", "nowhere: no such folder"),
        ("replay -o . --trace t.msgpack script.py", "is a folder"),
    ],
)
def test_an_error_prints_one_line_and_exits_with_code_2(
    folder: Path, words: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").touch()
    (folder / "script.py").write_text("print('not reached')")
    save(small_trace(DeviceKind.SYNC), folder / "idle.msgpack")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    # WHEN a command fails
    code = run(words.split())
    # THEN stderr has one line, and no file has changed
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("trace: ") and err.count("\n") == 1 and said in err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_errors_show_a_traceback_if_trace_debug_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_DEBUG", "1")
    with pytest.raises(Exception, match="nope"):
        run(["info", "nope"])


def test_an_internal_error_shows_its_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.commands.info.summarize", lambda trace, details: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["info", "t.msgpack"])


def test_ctrl_c_exits_with_code_130(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(trace: Trace, details: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tui.commands.info.summarize", interrupted)
    assert run(["info", "t.msgpack"]) == 130
    # WHEN Ctrl-C arrives during an import THEN the exit code is also 130
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("tui.cli.main", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit, match="130"):
        trace_replay.main()


def test_a_command_prints_no_traceback_if_its_output_pipe_is_closed(folder: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tui.cli import main; main()"
    command = [sys.executable, "-c", program, "info", "t.msgpack", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


# --- results on stdout, messages on stderr ---


def test_import_info_export_and_diff_work_on_a_real_recording(
    folder: Path, shared_traces: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = str(shared_traces / "mi250_minitoy.json.gz")
    assert run(["import", recording]) == 0
    out, err = capfd.readouterr()
    assert out == "" and "14 kernels" in err and "AMD Radeon Graphics" in err
    assert "next: trace info mi250_minitoy.msgpack, or trace replay SCRIPT --trace mi250_minitoy.msgpack" in err

    assert run(["import", recording, "-o", "named.msgpack", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["counts"]["kernels"] == 14 and err == ""

    assert run(["info", "named.msgpack", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["counts"]["steps"] == 2
    assert run(["info", "named.msgpack"]) == 0
    assert "named.msgpack" in capfd.readouterr().out

    assert run(["export", "named.msgpack", "-o", "x.json.gz", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"files": ["x.json.gz"], "similar_ranks": []}

    assert run(["diff", "named.msgpack", "mi250_minitoy.msgpack", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["same_program"] is True
    assert run(["diff", "named.msgpack", "mi250_minitoy.msgpack"]) == 0
    assert "named.msgpack" in capfd.readouterr().out


def test_export_writes_one_of_many_similar_ranks_unless_asked_for_all(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # GIVEN a trace of 12 ranks that differ only by chance
    save(crowd(devices=12, streams=1, kernels=2), folder / "many.msgpack")
    # WHEN the trace is exported
    assert run(["export", "many.msgpack", "-o", "x.json"]) == 0
    # THEN the first rank and one similar rank are written, and the message names the ranks that were not written
    assert sorted(path.name for path in folder.glob("x_*")) == ["x_rank0.json", "x_rank1.json"]
    assert "ranks 2-11 were not written, because they are similar to rank 1; --all-ranks" in capfd.readouterr().err
    assert run(["export", "many.msgpack", "-o", "x.json", "--all-ranks"]) == 0
    assert len([*folder.glob("x_*")]) == 12


def test_import_lists_the_problems_of_a_damaged_recording_by_kind(
    folder: Path, shared_traces: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for broken in sorted((shared_traces / "broken").iterdir()):
        code = run(["import", str(broken), "-o", "b.msgpack"])
        err = capfd.readouterr().err
        if code == 0:
            trace = load("b.msgpack")
            texts = [
                problem.text for problem in problems_of(trace.problems, int((trace.device.kind == DeviceKind.KERNEL).sum()))
            ]
            assert all(f"trace: {text}" in err for text in texts) and bool(texts) == bool(trace.problems), broken.name
            assert "counted while reading" not in err, broken.name
        else:
            assert code == 2 and err.count("\n") == 1, broken.name


def test_import_writes_no_trace_of_a_recording_without_events(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("empty.json", "rank0.json", "rank1.json"):
        Path(name).write_text('{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}]}')
    for names, read in ((["empty.json"], "empty.json"), (["rank0.json", "rank1.json"], "2 files")):
        assert run(["import", *names]) == 2
        assert f"no ops, kernels or memory events in {read}. torch.profiler writes" in capfd.readouterr().err
    assert [file.name for file in Path().glob("*.msgpack")] == ["t.msgpack"]


def test_the_files_of_several_ranks_are_imported_as_one_trace(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [str(file) for file in export_chrome(merge_ranks([small_trace(), small_trace()], [0, 1]), Path("x.json"))]
    assert run(["import", *files]) == 0
    assert "of 2 ranks" in capfd.readouterr().err
    assert load(Path(default_name(Path(files[0])))).ranks == [0, 1]


def test_an_exported_recording_without_ops_can_be_imported(tmp_path: Path) -> None:
    exported, imported = str(tmp_path / "p100.json"), str(tmp_path / "p100.msgpack")
    assert run(["export", "p100-no-cudnn", "-o", exported]) == 0
    assert run(["import", exported, "-o", imported]) == 0


@pytest.mark.parametrize(
    ("recording", "name"),
    [
        ("a/worker0.pt.trace.json.gz", "worker0.msgpack"),
        ("trace.json", "trace.msgpack"),
        ("v1.2.json", "v1.2.msgpack"),
        ("rank0.1623.pt.trace.json", "rank0.1623.msgpack"),
        (".json", "trace.msgpack"),
    ],
)
def test_an_imported_recording_has_a_default_file_name(recording: str, name: str) -> None:
    assert default_name(Path(recording)) == name


# --- `trace replay`, with a fake child process ---

PID = 4711


@pytest.fixture
def child(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings of a fake child process of `trace replay`. The child process returns `code` and leaves `timelines`.
    Its arguments are stored in `words` and `session`."""
    made_up: dict[str, Any] = {"code": 0, "stopped_by": 0, "timelines": [PID], "booted": [PID], "started": [PID]}
    made_up["failed"] = frozenset[int]()  # processes that printed a traceback

    def run_child(
        options_of_package: dict[str, ReplaySession], words: list[str], *, ranks: int, meanwhile: Callable[[Any], None]
    ) -> ChildResult:
        meanwhile(SimpleNamespace(pid=PID))
        session = options_of_package["replayer"]
        made_up.update(session=session, words=words, ranks=ranks)
        for pid in made_up["timelines"]:
            save(small_trace(), session.out / f"replay-{pid}.msgpack")
        booted, started = frozenset(made_up["booted"]), frozenset(made_up["started"])
        return ChildResult(made_up["code"], PID, booted, started, started, made_up["stopped_by"], made_up["failed"])

    monkeypatch.setattr(replay_command, "run_child", run_child)
    return made_up


def test_a_replay_ends_with_a_report(folder: Path, child: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    words = "replay -o r.msgpack --report r.json --loader recorded train.py --trace t.msgpack --lr 0.1 -o x"
    assert run(words.split()) == 0
    out, err = capfd.readouterr()
    assert out == "" and "this replay" in err
    assert child["words"] == ["train.py", "--lr", "0.1", "-o", "x"]
    assert (child["session"].trace, child["session"].config.loader) == (folder / "t.msgpack", "recorded")
    assert child["session"].config.strict is False and child["ranks"] == 0
    assert json.loads(Path("r.json").read_text())["version"] == 1
    assert len(load("r.msgpack").device) == 1
    assert not child["session"].out.exists()
    assert sorted(path.name for path in folder.iterdir()) == ["r.json", "r.msgpack", "t.msgpack"]


def test_all_ranks_run_the_script_with_the_same_arguments(child: dict[str, Any]) -> None:
    assert run("replay --nproc 3 --trace t.msgpack -m train --lr 1".split()) == 0
    assert (child["ranks"], child["words"]) == (3, ["-m", "train", "--lr", "1"])


def test_the_report_of_a_replay_under_torchrun_names_the_script(
    child: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    for words in ("torchrun --nproc-per-node 2 runs/train.py --lr 1", "-m torch.distributed.run train.py", "runs/train.py"):
        assert run(["replay", "--trace", "t.msgpack", *words.split()]) == 0
        assert "this replay of train.py" in capfd.readouterr().err
    assert run("replay --trace t.msgpack -m train --lr 1".split()) == 0
    assert "this replay of -m train" in capfd.readouterr().err


def test_replay_returns_the_exit_code_of_the_script(child: dict[str, Any]) -> None:
    for child["code"] in (0, 1, 3, 143):
        assert run("replay train.py --trace t.msgpack".split()) == child["code"]


@pytest.mark.parametrize(("code", "expected"), [(0, 2), (1, 1)])
def test_a_result_that_cannot_be_written_exits_with_an_error_code(
    child: dict[str, Any], code: int, expected: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, facts: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(replay_command, "write_json", full)
    child.update(code=code, failed=frozenset({PID}))
    assert run("replay --report r.json train.py --trace t.msgpack".split()) == expected
    # THEN the measured figures are printed before the error
    found, _, trouble = capfd.readouterr().err.rstrip("\n").rpartition("\n")
    assert trouble == "trace: r.json: No space left on device"
    assert found.startswith("PASS: ") if code == 0 else not found


def test_a_timeline_that_cannot_be_written_is_not_suggested(
    child: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(trace: Trace, path: Path) -> None:
        raise TraceWriteError(path, "No space left on device")

    monkeypatch.setattr(replay_command, "save", full)
    assert run("replay -o r.msgpack train.py --trace t.msgpack".split()) == 2
    found, _, trouble = capfd.readouterr().err.rstrip("\n").rpartition("\n")
    assert trouble == "trace: r.msgpack: not written: No space left on device"
    assert found.startswith("PASS: ") and "r.msgpack" not in found


@pytest.mark.parametrize(
    ("made_up", "said"),
    [
        ({"booted": [], "started": []}, "trace: nothing was replayed: the script's interpreter ignores PYTHONPATH"),
        ({"started": []}, "trace: nothing was replayed: the script did not import torch"),
        ({}, "trace: nothing was replayed: the script did not use the GPU"),
    ],
)
def test_a_script_that_never_uses_the_gpu_gets_a_message(
    folder: Path, child: dict[str, Any], made_up: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    child.update(made_up, timelines=[])
    assert run("replay -o r.msgpack train.py --trace t.msgpack".split()) == 0
    err = capfd.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1
    assert not (folder / "r.msgpack").exists()


@pytest.mark.parametrize(
    ("code", "said", "without_steps"),
    [
        (1, "", ""),
        (137, "trace: SIGKILL ended the script, after 1 step.\n", "trace: nothing was replayed: SIGKILL ended the script\n"),
    ],
)
def test_no_report_follows_the_error_of_a_failed_script(
    folder: Path, child: dict[str, Any], code: int, said: str, without_steps: str, capfd: pytest.CaptureFixture[str]
) -> None:
    child.update(code=code, failed=frozenset({PID} if code == 1 else ()))
    assert run("replay --report r.json train.py --trace t.msgpack".split()) == code
    assert capfd.readouterr().err == said
    assert json.loads((folder / "r.json").read_text())["version"] == 1  # the requested report was written nevertheless
    # WHEN the script fails before it uses the GPU THEN only its own error or its signal is printed
    child.update(timelines=[])
    assert run("replay train.py --trace t.msgpack".split()) == code
    assert capfd.readouterr().err == without_steps


@pytest.mark.parametrize(
    ("code", "stopped_by", "name"), [(130, 0, "SIGINT"), (143, 0, "SIGTERM"), (143, 15, "SIGTERM"), (1, 15, "SIGTERM")]
)
def test_steps_before_a_signal_are_compared(
    child: dict[str, Any], code: int, stopped_by: int, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """torchrun ends with exit code 1 after a signal."""
    child.update(code=code, stopped_by=stopped_by)
    assert run("replay train.py --trace t.msgpack".split()) == code
    ending, compared = capfd.readouterr().err.split("\n", 1)
    assert ending == f"trace: {name} ended the script, after 1 step." and compared.startswith("PASS: ")


@pytest.mark.parametrize("code", [1, 3])
def test_the_steps_of_a_script_that_chooses_its_exit_code_are_compared(
    code: int, child: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    child.update(code=code)
    assert run("replay train.py --trace t.msgpack".split()) == code
    ending, compared = capfd.readouterr().err.split("\n", 1)
    assert ending == f"trace: the script ended with exit code {code}, after 1 step." and compared.startswith("PASS: ")


def test_a_script_without_gpu_work_gets_no_report(
    child: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    idle = small_trace()
    idle.device.origin[:] = Origin.PHASE  # the GPU time is the recorded time of a phase
    monkeypatch.setattr(replay_command, "one_replay", lambda *_: (idle, []))
    assert run("replay train.py --trace t.msgpack".split()) == 0
    assert capfd.readouterr().err == "trace: nothing was replayed: the script did no work on the GPU\n"


def test_if_several_processes_use_the_gpu_the_report_covers_the_main_script(
    child: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    child["timelines"] = [1, PID, 99999]
    assert run("replay train.py --trace t.msgpack".split()) == 0
    assert f"3 processes used the GPU; the figures are those of process {PID}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train.py --trace t.msgpack --report=r.json", "--report"),
        ("train.py --trace t.msgpack -o r", "-o"),
        ("-m train --trace t.msgpack --strict", "--strict"),
        ("train.py --trace t.msgpack --steps 3", None),
    ],
)
def test_a_hint_is_printed_if_the_script_rejects_an_option_of_trace(
    child: dict[str, Any], words: str, told: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    child.update(code=2, timelines=[])
    assert run(["replay", *words.split()]) == 2
    err = capfd.readouterr().err
    assert (f"trace: {told} was passed to the script" in err) if told else ("was passed to" not in err)


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        ("-o r.msgpack", True),
        ("--output=r.msgpack", True),
        ("-o model.pt", False),
        ("--details", True),  # the source of the script does not contain this option
        ("--gpu-memory 4GiB", False),
    ],
)
def test_options_after_the_script_name_are_passed_to_the_script_with_a_note(
    child: dict[str, Any], words: str, is_told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("parser.add_argument('--gpu_memory')\n", encoding="utf-8")
    assert run(["replay", "train.py", "--trace", "t.msgpack", *words.split()]) == 0
    assert ("was passed to the script; put" in capfd.readouterr().err) is is_told
    assert child["words"] == ["train.py", *words.split()]


def test_quiet_prints_only_results_and_errors(child: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert run("replay -q --report r.json train.py --trace t.msgpack".split()) == 0
    assert capfd.readouterr() == ("", "") and Path("r.json").exists()


def test_verbose_prints_all_sections_and_the_time_taken(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("export -v t.msgpack -o t.json".split()) == 0
    assert "trace: writing t.json took " in capfd.readouterr().err
    assert run("info t.msgpack".split()) == 0
    brief = capfd.readouterr().out
    assert run("info -v t.msgpack".split()) == 0
    assert "Contents" in capfd.readouterr().out and "Contents" not in brief


def test_the_option_color_switches_colours_on_and_off(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    coloured = {when: run(f"info t.msgpack --color {when}".split()) or capfd.readouterr().out for when in ("always", "never")}
    assert "\x1b[1m" in str(coloured["always"]) and "\x1b" not in str(coloured["never"])


def test_help_fits_the_terminal_and_groups_the_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for width in (60, 80, 130):
        monkeypatch.setenv("COLUMNS", str(width))
        for words in (["--help"], ["replay", "-h"], ["record", "-h"], ["diff", "-h"]):
            assert run(words) == 0
            lines = capfd.readouterr().out.splitlines()
            prose = [line for line in lines if not line.startswith("  trace ")]  # users copy examples, so these may be wider
            assert max(map(len, prose)) <= width, (words, width)
            assert "Examples:" in lines and ("Record and replay:" in lines or "Options of every command:" in lines)


LIBRARY = "p100-no-cudnn\np100x2-no-cudnn"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        *((f"trace {command} p100", LIBRARY) for command in ("info", "diff", "explain", "gate init", "export")),
        ("trace replay --trace t.", "t.msgpack"),
        ("trace replay train.py --trace ", LIBRARY),
        ("trace replay --cl", "--clock"),
        ("trace replay --clock ", "wall\nvirtual\nrecorded"),
        ("trace record --st", "--stacks"),
    ],
)
def test_shell_completion_offers_options_and_trace_names(
    line: str, offered: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        run([])
    said = capfd.readouterr()
    assert offered in said.out and said.err == ""


def test_old_names_of_library_entries_still_work_and_print_a_note(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "p100"]) == 0
    out, err = capfd.readouterr()
    assert "Tesla P100" in out and err.startswith("trace: p100 is now called p100-no-cudnn: it was measured without cuDNN")
    # WHEN a file has the former library name THEN the file is used
    (folder / "p100.msgpack").write_bytes(Path("t.msgpack").read_bytes())
    assert run(["info", "p100.msgpack"]) == 0
    assert capfd.readouterr().err == ""
