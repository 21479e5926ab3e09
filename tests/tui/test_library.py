"""Tests `trace library`: its lists, the entries of a user, and the checks of a contributed entry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.traces.library.test_library_cells import GPU, NETWORK, a_cell
from tests.tui.own_library import use_empty_library
from traces.format.trace_file import save
from traces.library import catalogue, find
from traces.library.cell_traces import trace_of
from traces.library.cells import CellSource, read_cells, write_cells
from traces.library.check import check
from traces.model.trace import StepKind, TraceLibraryError
from traces.model.workload import WorkloadSignature
from tui.cli import run
from tui.commands.replay_library import require_phases_enough

SPREAD = {"spread": "1 %", "source": "trace record"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the user's library. The current folder contains a file with two cells, and a recording."""
    use_empty_library(tmp_path, monkeypatch)
    write_cells("two.cells", GPU, [a_cell("net"), a_cell("other", workload=replace(NETWORK, parameters=7))], SPREAD)
    save(trace_of(a_cell(), 2), "run.msgpack")
    return tmp_path / "own"


def told(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["library", *words])
    out, err = capfd.readouterr()
    return code, out, err


def facts(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, _ = told(capfd, *words, "--json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_command_library_list_accepts_filters(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(facts(capfd, "list")["entries"]) >= 216 + 2
    wide = facts(capfd, "list", "--gpu", "k*", "--model", "WIDE*_2")["entries"]
    assert [entry["name"] for entry in wide] == ["k80/wide_resnet101_2", "k80/wide_resnet50_2"]
    vgg = facts(capfd, "list", "--gpu", "v100", "--model", "vgg", "--grain", "phase", "--source", "gpemu")["entries"]
    assert [entry["name"] for entry in vgg][:2] == ["v100/vgg11", "v100/vgg11_bn"] and len(vgg) == 8
    assert vgg[5]["out_of_memory_batch"] and vgg[5]["batches"][0] == 1
    code, out, _ = told(capfd, "list", "--model", "p100")
    assert code == 0 and "216" not in out
    told_all = "; trace library list shows all entries\n"
    assert told(capfd, "list", "--gpu", "p10")[1].startswith("entry")
    meants = {"--gpu v10x": "no gpu v10x (did you mean v100 or", "--model resnt50": "no model resnt50 (did you mean resnet50"}
    for words, meant in meants.items():
        said = told(capfd, "list", *words.split())[2]
        assert said.startswith(f"trace: the library has no such entry: {meant}") and said.endswith(told_all)
    assert told(capfd, "list", "--gpu", "v100", "--grain", "kernel")[2].count("\n") == 1


def test_show_prints_all_facts_of_an_entry(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capfd, "show", "p100/resnet50")
    assert code == 0
    told_of = ("Tesla P100-PCIE-16GB, 15.9 GiB", "27e9534ee0", "1 to 179", "out of memory batch  180", "estimated")
    for text in (*told_of, "50.9 ms", "spread"):
        assert text in out
    shown = facts(capfd, "show", "p100/resnet50")
    # The memory values that the study's authors interpolated, beyond batch size 176, are left out.
    assert shown["phases_ns"]["forward"][31] == 50_919_354 and shown["memory"]["batches"][-1] == 176
    assert facts(capfd, "show", "p100/resnet50@32") == shown
    assert told(capfd, "show", "p100-no-cudnn")[0] == 0
    code, out, said = told(capfd, "show", "p100")
    assert code == 0 and "ResNet-18" in out and "p100 is now called p100-no-cudnn" in said
    assert "v100 is a GPU; name one of its networks, such as v100/alexnet" in told(capfd, "show", "v100")[2]
    assert "did you mean resnet50" in told(capfd, "show", "v100/resnet5")[2]
    assert "did you mean vgg11" in told(capfd, "show", "v100/VGG11")[2]
    assert run(["info", "v100/resnet50@32"]) == 0 and "115.5 ms" in capfd.readouterr().out
    assert run(["info", "v100/resnet50"]) == 2 and "choose one, like v100/resnet50@1" in capfd.readouterr().err


def test_show_reports_that_an_entry_has_no_workload_signature(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_cells("unsigned.cells", GPU, [a_cell("unsigned", workload=WorkloadSignature())], SPREAD)
    assert told(capfd, "add", "unsigned.cells")[0] == 0
    code, out, _ = told(capfd, "show", "g9/unsigned")
    assert code == 0 and "unknown: the entry has no workload signature, so --gpu does not find the entry" in out


def test_a_file_of_step_times_can_be_shown_before_it_is_added(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    noisy = a_cell(spread_ns={"forward": np.array([100, 100, 100])})
    write_cells("one.cells", GPU, [noisy], {"source": "trace record"})
    code, out, _ = told(capfd, "show", "one.cells")
    assert code == 0 and "standard deviation between steps: forward 2.5 to 10.0 %" in out
    # A phase that takes no time at a batch size has no relative deviation at this batch size.
    zero = replace(noisy, phases_ns={"forward": np.array([0, 2000, 4000])})
    write_cells("zero.cells", GPU, [zero], {"source": "trace record"})
    assert "standard deviation between steps: forward 2.5 to 5.0 %" in told(capfd, "show", "zero.cells")[1]
    assert facts(capfd, "show", "one.cells")["spread_ns"] == {"forward": [100, 100, 100]}
    assert told(capfd, "show", "two.cells")[2].startswith("trace: two.cells contains 2 entries (g9/net, g9/other); add")


def test_a_second_library_entry_with_the_same_name_is_rejected(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_cells("one.cells", GPU, [a_cell()], SPREAD)
    assert told(capfd, "add", "one.cells")[0] == 0
    code, out, _ = told(capfd, "check", "one.cells")
    assert code == 0 and "warning: g9/net: your own library already has this entry: " in out
    write_cells("one.cells", GPU, [a_cell(out_of_memory_batch=9)], SPREAD)
    code, out, _ = told(capfd, "check", "one.cells")
    assert code == 1 and "error: g9/net: the library already has an entry with this name: " in out


@pytest.mark.parametrize(("count", "added"), [(3, "g9/n0, g9/n1, g9/n2 ("), (5, "g9/n0, g9/n1, g9/n2 and 2 more (")])
def test_library_add_names_at_most_three_added_entries(
    own: Path, capfd: pytest.CaptureFixture[str], count: int, added: str
) -> None:
    cells = [a_cell(f"n{number}", workload=replace(NETWORK, parameters=7 + number)) for number in range(count)]
    write_cells("several.cells", GPU, cells, SPREAD)
    assert f"trace: added {added}" in told(capfd, "add", "several.cells")[2]


def test_library_add_reports_problems_of_the_new_entry(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_cells("virtual.cells", GPU, [a_cell(source=CellSource(source="x", virtual_gpu="p100"))], {})
    said = "not measured: recorded on a virtual GPU with the times of p100"
    code, _, err = told(capfd, "add", "virtual.cells")
    assert code == 0 and err.endswith(f"\ntrace: fix this before you contribute the file: {said}\n")
    assert facts(capfd, "add", "virtual.cells", "--name", "g9/more")["against_sending_it"] == [said]


def test_a_missing_library_folder_is_reported(
    own: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert facts(capfd, "list", "--gpu", "k80")["faults"] == []  # the folder of the user's library may be missing
    monkeypatch.setenv("TRACE_LIBRARY", str(own / "shared"))
    left_out = f"{own / 'shared'}: No such file or directory: this folder of the library is left out"
    assert facts(capfd, "list", "--gpu", "k80")["faults"] == [left_out]


def test_user_entries_can_be_added_used_and_removed(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert facts(capfd, "add", "two.cells")["added"] == ["g9/net", "g9/other"]
    assert catalogue.find_cell("g9/other").workload.parameters == 7
    code, _, err = told(capfd, "add", "two.cells")
    assert code == 2 and "the library already has g9/net" in err
    assert told(capfd, "add", "two.cells", "--name", "g9/third")[2].startswith("trace: two.cells contains 2 entries; `--name`")
    # A recording of phases is added as a cell. A recording without a workload signature is added as a recording.
    assert facts(capfd, "add", "run.msgpack")["added"] == ["g9/run"]
    assert catalogue.find_cell("g9/run").batches.tolist() == [2]
    blind = trace_of(a_cell(), 2)
    blind.workload = None
    save(blind, "blind.msgpack")
    code, _, err = told(capfd, "add", "blind.msgpack", "--name", "g9/blind")
    assert code == 0 and "no workload signature" in err and find("g9/blind") == own / "g9" / "blind.msgpack"
    assert [entry["name"] for entry in facts(capfd, "list", "--gpu", "g9")["entries"]] == [
        "g9/blind", "g9/net", "g9/other", "g9/run",
    ]  # fmt: skip

    assert facts(capfd, "remove", "g9/net")["removed"] == "g9/net"
    assert catalogue.models("g9") == ["other", "run"]
    for name in ("g9/other", "g9/run", "g9/blind"):
        assert told(capfd, "remove", name)[0] == 0
    assert not [path for path in own.rglob("*") if path.is_file()]
    assert "ships with the tool" in told(capfd, "remove", "v100/resnet50")[2]
    assert told(capfd, "add", "two.cells", "--name", "../x")[0] == 2


def test_library_add_changes_no_files_if_it_fails(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own.write_text("no folder")
    code, _, err = told(capfd, "add", "two.cells")
    assert code == 2 and err.count("\n") == 1 and str(own) in err
    assert own.read_text() == "no folder" and Path("two.cells").exists()


def test_contributed_cells_are_checked(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    batches = np.arange(1, 9)
    wavy = batches * 10_000_000 + np.array([3, 1, 4, 1, 5, 9, 2, 6]) * 100_000
    good = a_cell("good", tuple(batches), phases_ns={"forward": wavy, "rest": wavy * 2})
    write_cells("good.cells", GPU, [good], SPREAD)
    assert told(capfd, "check", "good.cells") == (0, "good.cells: accepted\n", "")

    line = replace(good, model="line", phases_ns={"forward": batches * 10_000_000, "rest": wavy})
    noisy = replace(good, model="noisy", spread_ns={"forward": wavy // 3})
    personal = replace(good, model="personal", provenance={"script": "/home/ada/train.py", "hostname": "x1"})
    large = replace(good, model="large", memory_batches=batches, peak_bytes=batches << 33)
    unsigned = replace(good, model="unsigned", workload=replace(NETWORK, modules=None, optimizer=None))
    write_cells("bad.cells", GPU, [line, noisy, personal, large, unsigned], SPREAD)
    code, out, _ = told(capfd, "check", "bad.cells", "good.cells")
    assert code == 1
    for text in (
        "error: g9/line: the forward times of the last batches lie on one line, so they were extrapolated",
        "warning: g9/noisy: forward at batch 1 varies by more than 10%",
        "error: g9/personal: script contains a path in a home folder: /home/ada/train.py",
        "error: g9/personal: hostname names a person or a machine",
        "error: g9/large: at batch 8 the memory peak exceeds the memory of Test GPU G9",
        "error: g9/unsigned: its workload signature lacks modules, optimizer",
    ):
        assert text in out
    v100 = read_cells(catalogue.BUNDLED / "v100.cells")
    write_cells("again.cells", v100.gpu, [v100.cell("resnet50"), replace(v100.cell("vgg16"), model="mine")], v100.shared)
    again = [finding.text for finding in check(Path("again.cells"))]
    assert again == [
        "the library has the same network on this card as v100/vgg16",
        f"the library already has an entry with this name: {v100.path}",
    ]

    Path("broken.cells").write_bytes(b"no")
    assert told(capfd, "check", "broken.cells")[1].startswith("broken.cells: error: not a readable trace: ")
    assert told(capfd, "check", "absent.cells")[1] == "absent.cells: error: No such file or directory\n"
    code, out, _ = told(capfd, "check", "broken.cells", "absent.cells", "--json")
    assert code == 2 and json.loads(out)["errors"] == 2


def test_contributed_recordings_are_checked(own: Path) -> None:
    fine = trace_of(a_cell(source=CellSource(source="trace record")), 2)
    save(fine, "fine.msgpack")
    assert check(Path("fine.msgpack")) == []
    fine.workload, fine.devices = None, []
    fine.steps.kind[:] = StepKind.WARMUP
    fine.phases.device[:] = -1
    fine.provenance = {"note": "ask ada@example.org"}
    save(fine, "poor.msgpack")
    texts = "; ".join(finding.text for finding in check(Path("poor.msgpack")))
    assert "no workload signature" in texts and "it has no GPU" in texts and "e-mail address: ada@example.org" in texts


def test_trace_library_check_accepts_every_bundled_file() -> None:
    files = sorted(catalogue.BUNDLED.glob("*.cells"))
    assert len(files) >= 6 and [finding for path in files for finding in check(path)] == []
    assert catalogue.faults() == []


def test_measurements_of_one_gpu_cannot_be_replayed_on_several(own: Path) -> None:
    """GIVEN the bundled library, in which only p100x2-no-cudnn is a recording of two GPUs THEN the error for `--gpus 2`
    suggests this recording."""
    require_phases_enough(strict=False, gpus=1)
    with pytest.raises(TraceLibraryError, match=r"`--gpus 2` cannot use .* or `--trace` with the recording p100x2-no-cudnn$"):
        require_phases_enough(strict=False, gpus=2)
    with pytest.raises(TraceLibraryError, match=r"`--gpus 3` cannot use them; use `--estimate` to estimate each op$"):
        require_phases_enough(strict=False, gpus=3)
