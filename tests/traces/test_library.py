"""The library: each entry of the index is a file that loads and says where it came from; a name finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.sound_traces import differences
from traces.file import load
from traces.library import entries, find
from traces.library.build_p100 import build
from traces.model import Origin, StepKind, Trace, TraceLibraryError


def test_the_index_and_the_folder_agree() -> None:
    folder = entries()[0].path.parent
    assert sorted(entry.path.name for entry in entries()) == sorted(path.name for path in folder.glob("*.msgpack"))

    for entry in entries():
        trace = load(entry.path)
        assert (trace.grain, trace.devices[0].name) == (entry.grain, entry.device)
        assert trace.provenance["study"] in entry.source and not trace.problems


def test_a_name_finds_an_entry_and_a_path_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.msgpack").write_bytes(b"")
    (tmp_path / "p100").mkdir()
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)

    assert find("mine.msgpack") == Path("mine.msgpack")
    assert find("p100") == find("p100.msgpack") == entries()[0].path  # not the folder of that name
    assert find("runs") == Path("runs")  # whoever opens it says that it is a folder
    (tmp_path / "p100.msgpack").write_bytes(b"")
    assert find("p100.msgpack") == Path("p100.msgpack")

    for name in ("k80", "runs/p100", "../p100", ""):
        with pytest.raises(TraceLibraryError, match=r"no such file, nor a trace of the library, which has: p100$"):
            find(name)


@pytest.fixture(scope="module")
def p100() -> Trace:
    return load(find("p100"))


def test_p100_is_what_its_script_builds(p100: Trace) -> None:
    assert differences(p100, build()) == []


def test_p100_has_the_published_figures(p100: Trace) -> None:
    ms = {
        (int(step), p100.strings[name]): duration / 1e6
        for step, name, duration in zip(p100.phases.step, p100.phases.name, p100.phases.duration_ns, strict=True)
    }

    assert p100.steps.kind.tolist() == [StepKind.WARMUP, StepKind.STEADY]
    assert (p100.steps.duration_ns / 1e6).tolist() == [1213.0, 759.7]
    steady = {name: duration for (step, name), duration in ms.items() if step == 1}
    assert steady == {"h2d": 6.5, "forward": 254.7, "loss": 0.3, "backward": 495.1, "optimizer": 3.1}
    warmup = {name: duration for (step, name), duration in ms.items() if step == 0}
    assert warmup == steady | {"forward": 708.0}
    assert set(p100.phases.origin) == {Origin.PUBLISHED}


def test_the_phases_of_p100_tile_its_steps_on_host_and_device(p100: Trace) -> None:
    phases, steps = p100.phases, p100.steps

    assert (phases.start_ns[1:] == phases.end_ns[:-1]).all()
    for step in range(len(steps)):
        assert phases.start_ns[phases.step == step].min() == steps.start_ns[step]
        assert phases.end_ns[phases.step == step].max() == steps.end_ns[step]
    assert (phases.device_start_ns == phases.start_ns).all() and (phases.device_end_ns == phases.end_ns).all()
    assert set(phases.device) == {0}
