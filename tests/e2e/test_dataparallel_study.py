"""Tests examples/dataparallel_study.py as a user runs it without a GPU: its networks, table, picture and cells."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import study_tables
from dataparallel_study import freeze, main
from study_digits import digits, resized
from study_models import MODELS
from study_parallel import PARTS
from tests.e2e.tables import unsigned
from tests.replayer.recordings import Op, make_recording
from traces.figures.measure import launch_steps, work_rows
from traces.format.trace_file import load, save

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "examples" / "dataparallel_study.py"

# This script runs several configurations in one process, as a notebook does. Each line of sys.argv[1] is a command.
SEVERAL = f"""
import sys
sys.path.insert(0, {str(STUDY.parent)!r})
from dataparallel_study import main
for line in sys.argv[1].splitlines():
    sys.argv = ["dataparallel_study.py", *line.split()]
    main()
"""


def study(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(STUDY), *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def replayed(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tui.cli", "replay", "--clock", "virtual", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def cells(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "study.jsonl").read_text().splitlines()]


@pytest.fixture
def one_gpu(tmp_path: Path) -> Path:
    """Return a recording of one GPU with kernels. It is a recording of a different program."""
    phases = [("forward", 0, 2_000), ("backward", 2_000, 3_000), ("optimizer", 3_000, 4_000)]
    save(make_recording(phases, [Op("aten::mul", 100, 50, kernel=(160, 500))], steps=2), tmp_path / "one.msgpack")
    return tmp_path / "one.msgpack"


# -- networks and images ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "convolutions", "here"),
    [
        ("alexnet", 61_100_840, 5, 57_029_322),
        ("vgg16", 138_357_544, 13, 134_300_362),
        ("resnet18", 11_689_512, 20, 11_175_370),
        ("squeezenet1_0", 1_248_424, 26, 731_146),
        ("densenet121", 7_978_856, 120, 6_957_834),
    ],
)
def test_the_networks_have_the_published_numbers_of_parameters(
    name: str, parameters: int, convolutions: int, here: int
) -> None:
    with torch.device("meta"):
        net, small = MODELS[name](), MODELS[name](classes=10, channels=1)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == convolutions
    assert net(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)
    assert small(torch.empty(2, 1, 64, 64, device="meta")).shape == (2, 10)
    assert sum(p.numel() for p in small.parameters()) == here


def test_digit_images_are_the_same_on_every_machine_and_can_be_enlarged() -> None:
    images, labels = digits(200, seed=3)
    assert images.shape == (200, 1, 28, 28) and set(labels.tolist()) == set(range(10))
    assert float(images.min()) >= 0 and 0.5 < float(images.max()) <= 1
    assert torch.equal(images, digits(200, seed=3)[0]) and not torch.equal(images, digits(200, seed=4)[0])
    means = torch.stack([images[labels == digit].mean(0) for digit in range(10)]).flatten(1)
    nearest = torch.cdist(images.flatten(1), means).argmin(1)
    assert float((nearest == labels).float().mean()) > 0.6  # most digits have recognizable outlines, but not all
    assert resized(images, 64).shape == (200, 1, 64, 64) and resized(images, 28) is images


def test_after_freezing_only_the_last_layers_can_be_trained() -> None:
    net = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False), nn.Linear(10, 2, bias=False))
    assert freeze(net, 1.0) == 220 and all(p.requires_grad for p in net.parameters())
    assert freeze(net, 0.1) == 120 and [p.requires_grad for p in net.parameters()] == [False, True, True]
    assert freeze(net, 0.09) == 20


# -- cells -----------------------------------------------------------------------------------------------------------------


def test_reported_bytes_equal_the_bytes_copied_between_the_virtual_gpus(tmp_path: Path, one_gpu: Path) -> None:
    """GIVEN cells of both versions on 1 to 3 virtual GPUs THEN each row has the number of bytes that are copied on the
    timeline. One cell has frozen layers, and in one the batch cannot be split evenly."""
    (tmp_path / "several.py").write_text(SEVERAL)
    small = "cell --image-size 32 --warmup 1 --steps 1"
    words = [
        f"{small} --model squeezenet1_0 --batch-size 6 --gpus 2 --parallel plain",
        f"{small} --model squeezenet1_0 --batch-size 6 --gpus 2 --parallel nn",
        f"{small} --model resnet18 --batch-size 4 --gpus 3 --parallel nn",
        f"{small} --model resnet18 --batch-size 4 --gpus 3 --parallel nn --trainable 0.3",
        f"{small} --model squeezenet1_0 --batch-size 6 --gpus 1 --parallel plain",
    ]
    options = ("--gpus", "3", "-o", "out.msgpack", "--trace", one_gpu)
    replayed(*options, "several.py", "\n".join(words), cwd=tmp_path)
    plain, by_nn, three, frozen, alone = cells(tmp_path)

    timeline = load(tmp_path / "out.msgpack")
    rows = work_rows(timeline)
    work, step = timeline.device.take(rows), launch_steps(timeline)[rows]
    copied = {}
    for kind, pattern in (("host_bytes", "HtoD"), ("peer_bytes", "PtoP")):
        of_kind = [pattern in timeline.strings[name] for name in work.name.tolist()]
        copied[kind] = [int(work.bytes[of_kind & (step == number)].sum()) for number in range(15)]
    # Each configuration runs three steps: a warm-up step, a step without synchronization, and a step with synchronized stages.
    # The first step of a configuration also copies the network to the GPU.
    for number, cell in enumerate((plain, by_nn, three, frozen, alone)):
        for kind, counted in copied.items():
            assert counted[3 * number + 1 : 3 * number + 3] == [cell[kind]] * 2, (number, kind)

    weights = plain["parameter_bytes"]
    assert plain["parts_bytes"] == by_nn["parts_bytes"] == {
        "labels": 6 * 8, "scatter": 6 * 32 * 32 * 4, "replicate": weights, "gather": 3 * 10 * 4,
        "gather_backward": 3 * 10 * 4, "broadcast_backward": weights,
    }  # fmt: skip
    # Four images are split into two for each of two GPUs. The gradients of frozen layers are zeros, and they are summed, too.
    assert three["parts_bytes"] == frozen["parts_bytes"]
    assert three["parts_bytes"]["replicate"] == three["parameter_bytes"] + three["buffer_bytes"]
    assert frozen["trained_parameters"] < three["trained_parameters"] == three["parameters"]
    assert set(alone["parts_ms"]) == {"labels", "scatter"} and alone["peer_bytes"] == 0
    for cell in (plain, by_nn, three):
        assert set(cell["parts_ms"]) == set(PARTS) and min(cell["parts_ms"].values()) > 0
        assert cell["communication_ms"] == pytest.approx(sum(cell["parts_ms"].values())) and cell["computation_ms"] > 0
        assert len(cell["peak_memory_bytes"]) == cell["gpus"] and cell["device"] == "Tesla P100-PCIE-16GB"


def test_a_replay_of_published_step_times_reports_the_time_of_each_stage(tmp_path: Path) -> None:
    """GIVEN the published times of ResNet-18 on two P100 THEN the stages of both versions of the script take these times."""
    (tmp_path / "several.py").write_text(SEVERAL)
    small = "cell --model resnet18 --batch-size 256 --gpus 2 --image-size 28 --warmup 2 --steps 2"
    on, words = unsigned("p100x2-no-cudnn", tmp_path), f"{small} --parallel nn\n{small} --parallel plain"
    replayed("--clock", "recorded", "--trace", on, "several.py", words, cwd=tmp_path)
    published_ms = {"scatter": 6.7, "replicate": 6.2, "gather_backward": 2.2, "broadcast_backward": 5.7}
    for cell in cells(tmp_path):
        assert 0.99 * 776 < cell["step_ms"] < 1_500
        for name, part_ms in published_ms.items():
            assert part_ms - 1.0 < cell["parts_ms"][name] < part_ms + 100, name
        assert 0.95 * 750 < cell["computation_ms"] < 1_500


def test_both_versions_of_the_script_have_equal_losses_if_values_are_computed(tmp_path: Path, one_gpu: Path) -> None:
    (tmp_path / "several.py").write_text(SEVERAL)
    small = "cell --model resnet18 --image-size 16 --batch-size 16 --gpus 2 --steps 0 --images 32"
    words = f"{small} --parallel plain --epochs 2\n{small} --parallel nn --epochs 9 --loss-target 1.0"
    done = replayed("--gpus", "2", "--values", "compute", "--trace", one_gpu, "several.py", words, cwd=tmp_path)
    plain, by_nn = cells(tmp_path)
    losses = [float(loss) for loss in re.findall(r"epoch +\d+  loss ([\d.]+)", done.stdout)]
    assert losses[:2] == losses[2:4] and losses[0] > losses[1] > 0.04
    assert (plain["epochs_to_target"], plain["epochs"], "step_ms" in plain) == (None, 2, False)
    assert f"more than 2 ({plain['last_loss']:.2f})" in done.stdout
    assert 2 <= by_nn["epochs_to_target"] == by_nn["epochs"] == len(losses) - 2 < 9 and by_nn["last_loss"] < 1.0


def test_a_network_that_exceeds_the_memory_is_reported_in_its_table_row(tmp_path: Path, one_gpu: Path) -> None:
    """GIVEN a network whose weights do not fit, and one whose optimizer does not fit THEN each row contains only the
    failure."""
    (tmp_path / "several.py").write_text(SEVERAL)
    words = "cell --model alexnet --image-size 64\ncell --model resnet18 --image-size 32 --batch-size 2"
    replayed("--gpu-memory", "128MiB", "--trace", one_gpu, "several.py", words, cwd=tmp_path)
    rows = cells(tmp_path)
    assert [(cell["model"], cell["failed"], "step_ms" in cell) for cell in rows] == [
        ("alexnet", "out of memory", False), ("resnet18", "out of memory", False)
    ]  # fmt: skip
    assert "| resnet18 | 11.18 M | 32 | 1 | 2 | nn | out of memory |" in study_tables.table(rows)


def test_a_grid_runs_one_command_per_configuration_and_skips_measured_ones(
    tmp_path: Path, one_gpu: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GIVEN a grid with a measured cell and a cell that cannot run THEN only the third cell is measured, and the failure is
    reported."""
    known = row(1, 5.0, model="squeezenet1_0", batch_size=4, image_size=32)
    (tmp_path / "study.jsonl").write_text(json.dumps(known) + "\n")
    start = f"{sys.executable} -m tui.cli replay --clock virtual --gpus 2 --trace {one_gpu}"
    words = "grid --models squeezenet1_0 --parallels nn --gpu-counts 1,2,3 --batch-sizes 4 --image-size 32 --steps 1".split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dataparallel_study.py", *words, "--warmup", "0", "--start", start])
    with pytest.raises(SystemExit, match=r"^dataparallel_study: 1 of 2 cells failed$"):
        main()
    said = capsys.readouterr()
    assert "--gpus 3 needs 3 CUDA devices, but this machine has 2" in said.err
    assert "1 of 2: " in said.out and " min left: --model squeezenet1_0" in said.out
    assert said.out.count("| squeezenet1_0 | 0.73 M | 2 | 4 | nn |") == said.out.count("| squeezenet1_0 |") == 1
    first, second = cells(tmp_path)
    assert first == known and (second["model"], second["gpus"], second["batch_size"]) == ("squeezenet1_0", 2, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("cell --gpus 1", "dataparallel_study: --gpus 1 needs 1 CUDA devices, but this machine has 0"),
        ("cell --gpus 3 --batch-size 2", "--gpus 3: give at least 1 and at most the batch size (2)"),
        ("cell --trainable 0", "--trainable is a share of the parameters: more than 0, at most 1"),
        ("cell --epochs 1 --images 8 --batch-size 9", "--images 8 are fewer than one batch of 9"),
        ("cell --steps 0", "--steps 0 and --epochs 0: nothing to measure"),
        ("table --results none.jsonl", "dataparallel_study: none.jsonl: No such file or directory"),
    ],
)
def test_options_that_cannot_be_measured_are_rejected_in_one_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dataparallel_study.py", *words.split()])
    with pytest.raises(SystemExit) as refused:
        main()
    found = capsys.readouterr().err.splitlines()[-1:] if refused.value.code == 2 else [str(refused.value.code)]
    assert said in found[0] and not list(tmp_path.iterdir())


# -- table and picture -----------------------------------------------------------------------------------------------------


def row(gpus: int, step_ms: float = 0.0, **facts: Any) -> dict[str, Any]:
    made = {
        "model": "vgg16", "parallel": "nn", "gpus": gpus, "batch_size": 64, "image_size": 224, "trainable": 1.0,
        "pin_memory": False, "loss_target": 0.04, "device": "Tesla V100", "torch": "2.13.0", "parameters": 134_300_362,
        "trained_parameters": 134_300_362,
    }  # fmt: skip
    if step_ms:
        parts = {"scatter": 2.0} if gpus == 1 else {name: 2.0 for name in PARTS}
        made |= {
            "step_ms": step_ms, "images_per_s": 64e3 / step_ms, "computation_ms": step_ms - 1, "peer_bytes": 1_074_400_000,
            "communication_ms": 2.0 * len(parts), "parts_ms": parts, "host_bytes": 12_845_568,
        }  # fmt: skip
    return made | facts


ROWS = [
    row(2, 250.0),
    row(1, 400.0),
    row(2, 260.0, trainable=0.5, trained_parameters=70_000_000),
    row(4, failed="out of memory"),
    row(1, model="alexnet", epochs=20, epochs_to_target=None, last_loss=0.31),
    row(2, model="alexnet", epochs=7, epochs_to_target=7, last_loss=0.03),
    row(2, 240.0),  # this row replaces the first row of the same cell
]


def results(folder: Path) -> Path:
    path = folder / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_the_table_contains_all_measurements_and_has_no_empty_column(tmp_path: Path) -> None:
    assert study_tables.table(study_tables.rows_of(results(tmp_path))).splitlines() == [
        "The GPU is a Tesla V100, and the PyTorch release is 2.13.0. Images have 224 x 224 pixels."
        " Times and bytes are per training step.",
        "",
        "| network | parameters | trained | GPUs | batch | version | step ms | images/s | × one GPU | computation ms"
        " | communication ms | share | GPU to GPU MB | host to GPU MB | epochs to loss < 0.04 |",
        "| --- | ---: | ---: | ---: | ---: | --- |" + " ---: |" * 9,
        "| alexnet | 134.30 M |  | 1 | 64 | nn |  |  |  |  |  |  |  |  | more than 20 (0.31) |",
        "| alexnet | 134.30 M |  | 2 | 64 | nn |  |  |  |  |  |  |  |  | 7 |",
        "| vgg16 | 134.30 M | 70.00 M | 2 | 64 | nn | 260.0 | 246 |  | 259.0 | 12.0 | 4 % | 1074.4 | 12.8 |  |",
        "| vgg16 | 134.30 M |  | 1 | 64 | nn | 400.0 | 160 | 1.00 | 399.0 | 2.0 | 0 % | 1074.4 | 12.8 |  |",
        "| vgg16 | 134.30 M |  | 2 | 64 | nn | 240.0 | 267 | 1.67 | 239.0 | 12.0 | 5 % | 1074.4 | 12.8 |  |",
        "| vgg16 | 134.30 M |  | 4 | 64 | nn | out of memory |  |  |  |  |  |  |  |  |",
    ]
    assert "trained" not in study_tables.table(ROWS[:2])
    larger = study_tables.table([row(1, 400.0), row(1, 900.0, image_size=448)])
    assert "Images have 224 x 224 or 448 x 448 pixels" in larger and "| vgg16 | 134.30 M | 448 | 1 |" in larger


def test_the_picture_shows_each_network_and_each_part_of_a_step(tmp_path: Path) -> None:
    done = study("table", "--results", results(tmp_path), "--picture", "p.svg", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == study_tables.table(study_tables.rows_of(results(tmp_path))) + "\n"
    picture = (tmp_path / "p.svg").read_text()
    texts = re.findall(r">([^<>]+)</text>", picture)
    assert {"vgg16, 134.30 M", "ms per image", "times as fast as one GPU", "computation", "batch 64", "at best"} <= set(texts)
    assert {name.replace("_", " ") for name in PARTS} <= set(texts)
    assert not any("alexnet" in text for text in texts)  # the results of alexnet contain no step times
    study_tables.draw(study_tables.rows_of(results(tmp_path)), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == picture  # the picture is always the same, so it can be kept in a repository


def test_a_picture_needs_matplotlib_and_something_to_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="the results contain no measurements"):
        study_tables.draw([row(4, failed="out of memory")], tmp_path / "p.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="install it with `pip install matplotlib`"):
        study_tables.draw(ROWS, tmp_path / "p.svg")


def test_an_invalid_line_of_results_is_named_in_the_error(tmp_path: Path) -> None:
    path = results(tmp_path)
    path.write_text(path.read_text() + '{"model": "vgg1')
    with pytest.raises(SystemExit, match=r"r\.jsonl, line 8: not a measurement"):
        study_tables.rows_of(path)
