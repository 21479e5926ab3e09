"""Tests that the study pages in docs/ are generated correctly from given measurements."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def study(name: str, folder: Path = DOCS) -> Any:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their types in sys.modules
    spec.loader.exec_module(module)
    return module


def test_modelled_data_stalls_agree_with_the_paper_in_order_and_limits(tmp_path: Path) -> None:
    stalls = study("data_stalls")
    runs = [stalls.Measured(*key, 189.0, 190.0, 0.25, 5_270_000, 12.0) for key in stalls.RUNS]
    cost = stalls.Cost(runs, {batch: 0.1 * batch for batch in stalls.PUBLISHED_PIN})
    model = stalls.Model(cost.cpu_ns_per_sample)
    for network, published in stalls.PUBLISHED_CPU.items():
        rates = [model.rate(network, cores) for cores in stalls.CORES]
        gpu_rate = stalls.BATCH / stalls.gpu_ns(network) * 1e9
        assert rates == sorted(rates) and rates[-1] == pytest.approx(gpu_rate, rel=0.01)
        assert rates[-1] == pytest.approx(published[-1], rel=0.15)  # the paper used a V100 in another server
        assert rates[0] == pytest.approx(1e9 / 5_270_000, rel=0.01)
    ours = [model.preparation_stall(network) for network in stalls.PUBLISHED_PREPARATION]
    paper = list(stalls.PUBLISHED_PREPARATION.values())
    heavy, light = ("resnet50", "vgg11"), ("shufflenet_v2_x1_0", "alexnet")
    assert all(model.preparation_stall(network) < 0.05 for network in heavy)
    assert all(model.preparation_stall(network) > 0.5 for network in light)
    assert all((share > 0.2) == (published > 0.2) for share, published in zip(ours, paper, strict=True))
    fetch = {network: model.fetch_stall(network) for network in stalls.PUBLISHED_FETCH}
    assert fetch["alexnet"] > fetch["resnet18"] > fetch["mobilenet_v2"] > fetch["resnet50"] == pytest.approx(0, abs=0.01)
    lru, minio = stalls.CachePolicy.LRU, stalls.CachePolicy.MINIO
    for disk in (stalls.SSD, stalls.HDD):
        epochs = {policy: [model.epoch_s(disk, cached, policy) for cached in stalls.CACHED] for policy in (lru, minio)}
        assert all(a >= b for a, b in zip(epochs[lru], epochs[minio], strict=True))
        assert epochs[lru] == sorted(epochs[lru], reverse=True) and epochs[lru][-1] == epochs[minio][-1]
    computes, whole = zip(*(model.epoch_by_batch(batch) for batch in (16, 64, 256)), strict=True)
    assert computes[0] > computes[1] > computes[2] and whole[1] == pytest.approx(whole[2], rel=0.01)
    theirs = [stalls.Model(stalls.PUBLISHED_CPU_NS).epoch_by_batch(batch)[1] for batch in stalls.BATCHES]
    assert max(theirs) < 1.02 * min(theirs)  # data loading limits the speed, as in the paper
    text = "\n".join(stalls.page(cost))
    assert "a DataLoader worker needs 5.27 ms of CPU time to load" in text and "nan" not in text
    assert "| 2 (alexnet) | 189.0 | 190.0 | +0.5% | 0.25 |" in text
    assert "| 2 workers | 189.0 | 190.0 | +0.5% | +0.5% |" in text
    assert "| ours, core time | 6.4 | 12.8 |" in text and "Pinning 128 images took 12.0 to 12.0 ms" in text
    assert text.count(" | agrees |") == 7 and text.count(" | does not agree |") == 3  # SqueezeNet and ResNet-18
    stalls.picture(cost, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().count("<svg") == 1


def test_the_ddp_page_shows_networks_that_do_not_fit_or_are_slower(tmp_path: Path) -> None:
    poster = study("ddp_poster")
    times = {poster.ONE: 10.0, poster.NCCL: 7.0, poster.GLOO: 12.0, poster.SPLIT: 11.0}
    found = {run: poster.Cell(times[run.mode], 100, "0.693147", 21_292) for run in poster.wanted()}
    out = poster.Cell(None, None, "", 0, "CUDA out of memory. Tried to allocate 256.00 MiB.")
    found[poster.Run("wide", 12, 8192, poster.ONE)] = found[poster.Run("wide", 12, 8192, poster.NCCL)] = out
    found[poster.Run("wide", 8, 8192, poster.NCCL)] = out
    found[poster.Run("vit", 2, 64, poster.NCCL)] = poster.Cell(11.0, 100, "1.0", 4)
    text = "\n".join(poster.page(found))
    assert "1 of the 16 networks that fit on one GPU and on two GPUs are slower on two GPUs than on one: vit 2 x 64." in text
    assert "gloo takes longer than NCCL for 5 of 5 networks that ran with both backends" in text
    assert "wide 8 x 8192 fit on one GPU, not under DistributedDataParallel" in text
    assert "| 12 | 8192 | out of memory | out of memory | - | 11.0 ms, 100 MiB | 0.0 MiB |" in text
    assert "Networks too large for one GPU were trained with the layers split over two GPUs: wide 12 x 8192." in text
    assert "| 32 | 1875 | 21288 + 4 | 39,915,000 | 39,915,000 | 7,500 | 7,500 |" in text
    assert len({run.file for run in found}) == len(found)
    poster.picture(found, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().count("<svg") == 1


def test_a_page_is_written_only_together_with_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, page = study("pages").write, tmp_path / "x.md"
    write(["# One", ""], lambda path: path.write_text("<svg/>"), page)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {"x.md": "# One\n", "x.svg": "<svg/>"}
    assert capsys.readouterr().err == f"{page} was made in 0.0 min\n"

    def fails(path: Path) -> None:
        path.write_text("<sv")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write(["# Two", ""], fails, page)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == written


def test_the_data_parallel_page_contains_every_table_and_the_library_times(tmp_path: Path) -> None:
    made = study("dataparallel_study")
    page = (DOCS / "dataparallel_study.md").read_text()
    for name in (*made.TABLES, "library"):
        assert "| a |" in made.with_table(page, name, "| a |\n")
    with pytest.raises(SystemExit, match="mark the place of the table none"):
        made.with_table(page, "none", "")
    rows = [
        {"model": "resnet18", "gpus": 1, "batch_size": 128, "computation_ms": 100.0},
        {"model": "resnet18", "gpus": 1, "batch_size": 512, "computation_ms": 400.0},  # nobody measured this batch size
        {"model": "resnet18", "gpus": 2, "batch_size": 128, "computation_ms": 55.0},
        {"model": "vgg16", "gpus": 1, "batch_size": 512, "failed": "out of memory"},
    ]
    (tmp_path / "times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, line = made.beside_the_library(tmp_path / "times.jsonl")
    assert line == "| resnet18 | 128 | 100.0 | 130.5 | -23% |"


def test_an_unknown_table_name_is_rejected_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = study("dataparallel_study")
    monkeypatch.setattr(sys, "argv", ["dataparallel_study.py", "none.json", "--tables", "times,tables"])
    with pytest.raises(SystemExit) as refused:
        made.main()
    assert refused.value.code == 2


def test_the_benchmark_of_locked_pages_explains_why_it_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a system without control groups WHEN a comparison is requested THEN one line explains why it cannot run."""
    pages = study("locked_pages", DOCS.parent / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["locked_pages.py", "--buffers", "1", "--cgroups", str(tmp_path / "none")])
    assert pages.main() == 2
    assert capsys.readouterr() == ("", "this system does not allow a memory cgroup: No such file or directory\n")
    (tmp_path / "data").write_bytes(bytes(2 * pages.BUFFER_BYTES))
    took = list(pages.epochs(tmp_path / "data", 1, locked=False))
    assert len(took) == pages.EPOCHS and min(took) > 0
