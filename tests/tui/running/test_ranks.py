"""Numbers of ranks that cannot run are rejected before anything starts."""

from __future__ import annotations

import pytest

from traces.model.trace import TraceError
from traces.script.launch import ranks_per_machine
from tui.running.ranks import require_ranks, require_torchrun

GIB, MIB = 1 << 30, 1 << 20


@pytest.mark.parametrize(("ranks", "local"), [(0, 0), (1, 1), (128, 128), (136, 8), (256, 8), (1024, 8)])
def test_more_ranks_than_torch_supports_devices_are_split_into_machines(ranks: int, local: int) -> None:
    assert ranks_per_machine(ranks) == local


@pytest.mark.parametrize("ranks", [129, 250, 257])
def test_ranks_that_do_not_fill_machines_are_rejected(ranks: int) -> None:
    with pytest.raises(TraceError, match=rf"^{ranks} ranks: PyTorch numbers at most 128 GPUs .* use a multiple of 8$"):
        require_ranks(ranks, None)


def test_ranks_that_do_not_fit_in_memory_are_rejected() -> None:
    """64 ranks need 400 MiB and 64 x 46 MiB = 3344 MiB."""
    require_ranks(64, 3344 * MIB)
    with pytest.raises(TraceError) as caught:
        require_ranks(64, 3344 * MIB - 1)
    assert str(caught.value) == (
        "64 ranks need about 3.3 GiB of memory, but only 3.3 GiB are available; use at most 63 ranks"
    )  # 63 x 46 MiB + 400 MiB fit
    require_ranks(0, 0)  # no ranks at all
    require_ranks(64, None)


def test_the_split_into_machines_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    require_ranks(256, None)
    assert capsys.readouterr().err == "trace: 256 ranks run as 32 machines of 8 GPUs (PyTorch supports at most 128)\n"
    require_ranks(128, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", ["--nproc-per-node=200", "--nproc_per_node 200", "--nproc-per-node 129"])
def test_torchrun_with_too_many_ranks_for_a_machine_is_rejected(option: str) -> None:
    with pytest.raises(TraceError, match="PyTorch supports at most 128 GPUs per machine"):
        require_torchrun(["-m", "torch.distributed.run", *option.split(), "train.py"])
    require_torchrun(["-m", "torch.distributed.run", "--nproc-per-node=128", "train.py"])
    require_torchrun(["train.py"])
