"""The nvidia-smi that a replayed script's subprocesses find."""

from __future__ import annotations

import pytest

from replayer.surfaces.nvidia_smi_command import SmiFacts, answer

TOLD: SmiFacts = {
    "driver": "550.54.15",
    "cuda": "12.4",
    "devices": [
        {"name": "Tesla V100-SXM2-16GB", "total_mib": 16160, "used_mib": 7, "capability": "7.0"},
        {"name": "Tesla V100-SXM2-16GB", "total_mib": 16160, "used_mib": 0, "capability": "7.0"},
    ],
}


def test_queries_return_the_output_of_nvidia_smi() -> None:
    asked = ["--query-gpu=index,name,memory.used,temperature.gpu", "--format=csv,noheader,nounits"]
    assert answer(TOLD, asked) == ["0, Tesla V100-SXM2-16GB, 7, [N/A]", "1, Tesla V100-SXM2-16GB, 0, [N/A]"]
    assert answer(TOLD, ["--query-gpu=memory.free", "--format=csv", "-i", "1"]) == ["memory.free [MiB]", "16160 MiB"]
    assert answer(TOLD, ["-L"])[1] == "GPU 1: Tesla V100-SXM2-16GB (UUID: GPU-00000000-0000-0000-0000-000000000001)"
    assert answer(TOLD, ["-q", "-d", "Memory"])[-1].split() == ["Free", ":", "16160", "MiB"]
    assert answer(TOLD, ["--query-compute-apps=pid,used_memory", "--format=csv,noheader"]) == []
    assert any("16160MiB" in line for line in answer(TOLD, []))


def test_nvidia_smi_rejects_unknown_options_by_name() -> None:
    with pytest.raises(ValueError, match="--gpu-reset"):
        answer(TOLD, ["--gpu-reset"])
