"""Tests that a number of ranks that cannot run is rejected before anything starts."""

from __future__ import annotations

import resource

import pytest

from traces.model.trace import TraceError
from traces.script.launch import ranks_per_machine
from tui.running.ranks import require_ranks, started_script

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(("ranks", "local"), [(0, 0), (1, 1), (128, 128), (136, 8), (256, 8), (1024, 8)])
def test_more_ranks_than_torch_supports_devices_are_split_into_machines(ranks: int, local: int) -> None:
    assert ranks_per_machine(ranks) == local


@pytest.mark.parametrize("ranks", [129, 250, 257])
def test_ranks_that_do_not_fill_machines_are_rejected(ranks: int) -> None:
    with pytest.raises(TraceError, match=rf"^{ranks} ranks: PyTorch numbers at most 128 GPUs .* use a multiple of 8$"):
        require_ranks(ranks, None, [])


def test_ranks_that_do_not_fit_in_memory_are_rejected() -> None:
    """Each rank needs 46 MiB, and 400 MiB are needed in addition. Therefore 64 ranks need 3344 MiB."""
    require_ranks(64, 3344 * MIB, [])
    with pytest.raises(TraceError) as caught:
        require_ranks(64, 3344 * MIB - 1, [])
    assert str(caught.value) == (
        "64 ranks need about 3.3 GiB of memory, but only 3.3 GiB are available; use at most 63 ranks"
    )  # 63 x 46 MiB + 400 MiB fit into memory
    require_ranks(0, 0, [])  # a run without ranks
    require_ranks(64, None, [])


def test_the_limit_of_open_files_is_raised_for_the_connections_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 needs one connection per rank and 16 other open files. With gloo groups, rank 0 needs at most twice as many open
    files."""
    limits = [64, 100]
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, both: limits.__setitem__(slice(None), both))
    for ranks, now in ((16, 64), (24, 80), (84, 100)):
        require_ranks(ranks, None, [])
        assert limits == [now, 100]
    with pytest.raises(TraceError, match=r"^85 ranks need 101 open files, but this process may open only 100 "):
        require_ranks(85, None, [])
    limits[:] = [64, resource.RLIM_INFINITY]
    require_ranks(85, None, [])
    assert limits == [202, resource.RLIM_INFINITY]


def test_a_message_says_how_ranks_are_split_into_machines(capsys: pytest.CaptureFixture[str]) -> None:
    require_ranks(256, None, [])
    assert capsys.readouterr().err == "trace: 256 ranks run as 32 machines of 8 GPUs (PyTorch supports at most 128)\n"
    require_ranks(128, None, [])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [
        "-m torch.distributed.run --nproc-per-node=200 train.py",
        "-m torch.distributed.run --standalone --nproc_per_node 200 train.py",
        "-m torch.distributed.run --nproc 200 train.py",
        "-m torch.distributed.launch --nproc_per_node=200 train.py",
        "-m accelerate.commands.launch --num_processes 200 train.py",
        "-m deepspeed.launcher.runner --num_gpus 200 train.py",
    ],
)
def test_launchers_with_too_many_ranks_for_a_machine_are_rejected(words: str) -> None:
    with pytest.raises(TraceError, match=r"^200 ranks: PyTorch supports at most 128 GPUs per machine"):
        require_ranks(0, None, words.split())
    require_ranks(0, None, words.replace("200", "128").split())
    with pytest.raises(TraceError, match=r"^64 ranks need about 3.3 GiB of memory, but only 1.0 GiB are available"):
        require_ranks(0, GIB, words.replace("200", "64").split())


def test_torchrun_reads_the_number_of_ranks_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "200")
    require_ranks(0, None, ["train.py"])
    require_ranks(0, None, ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"])
    with pytest.raises(TraceError, match=r"^200 ranks: "):
        require_ranks(0, None, ["-m", "torch.distributed.run", "train.py"])


def test_accelerate_processes_are_divided_among_its_machines() -> None:
    words = "-m accelerate.commands.launch --num_processes 16 --num_machines 2 train.py".split()
    require_ranks(0, None, words, gpus=8)
    with pytest.raises(TraceError, match=r"^8 ranks need 8 GPUs"):
        require_ranks(0, None, words, gpus=4)


def test_options_of_the_script_are_not_read_as_options_of_the_launcher() -> None:
    require_ranks(0, None, ["-m", "torch.distributed.run", "train.py", "--nproc-per-node", "200"])
    for option in ("-m", "--module"):
        require_ranks(0, None, ["-m", "torch.distributed.run", "--nproc", "2", option, "train", "--num_gpus", "200"])
    require_ranks(0, None, ["train.py", "--num_gpus", "200"])


@pytest.mark.parametrize("count", [0, 4])
def test_more_ranks_than_gpus_are_rejected(count: int) -> None:
    launched = ["-m", "torch.distributed.run", "--nproc-per-node=4", "train.py"]
    for words in [[]] if count else [launched, ["-u", "-W", "error", *launched]]:
        with pytest.raises(TraceError, match=r"^4 ranks need 4 GPUs, but --gpus 2 gives them only 2$"):
            require_ranks(count, None, words, gpus=2)
        require_ranks(count, None, words, gpus=4)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "other.py"], ["train.py", "other.py"]),
        (["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"], ["train.py"]),
        (["-m", "torch.distributed.run", "train.py"], ["train.py"]),
        (["-m", "package.train", "config.py"], ["-m", "package.train", "config.py"]),
        (["torchrun", "-m", "package.train"], ["torchrun", "-m", "package.train"]),
    ],
)
def test_the_script_of_a_launcher_is_the_python_file_among_its_arguments(words: list[str], expected: list[str]) -> None:
    assert started_script(words) == expected


@pytest.mark.parametrize("options", [["-u"], ["-W", "error", "-Xdev", "-B"], ["-Wd", "-X", "importtime"]])
def test_the_script_comes_after_the_options_of_python(options: list[str]) -> None:
    assert started_script([*options, "train.py", "-u", "1"]) == ["train.py", "-u", "1"]
    assert started_script([*options, "-m", "package.train", "-u"]) == ["-m", "package.train", "-u"]
    assert started_script([*options, "-m", "torch.distributed.run", "train.py", "-u"]) == ["train.py"]
    assert started_script([*options, "-c", "import torch"]) == ["-c", "import torch"]
