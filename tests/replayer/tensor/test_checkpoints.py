# mypy: allow-untyped-calls
"""Tests that checkpoints are as large as real ones, contain plain tensors, and can be loaded with and without trace."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from replayer.tensor.tensor import VirtualTensor
from tests.replayer.fake_gpu import use


def _saved(value: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def _train() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(4, 32, device="cuda")).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_checkpoint_is_as_large_as_a_real_one_and_can_be_loaded() -> None:
    use()
    model, optimizer = _train()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    file = _saved(state)
    host = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64))
    assert len(_saved(model.state_dict()).getbuffer()) == pytest.approx(len(_saved(host.state_dict()).getbuffer()), rel=0.02)
    for where in (None, "cuda", "cuda:0", torch.device("cuda")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert all(type(x) is VirtualTensor for x in loaded["model"].values())
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    file.seek(0)
    plain = torch.load(file, map_location="cpu")
    assert all(type(x) is torch.Tensor for x in plain["model"].values()) and plain["epoch"] == 3
    host.load_state_dict(plain["model"])
    model.load_state_dict(plain["model"])
    assert next(model.parameters()).is_cuda


def test_checkpoints_of_the_virtual_gpu_can_be_loaded_without_trace() -> None:
    """The test uses the zip format and the old format."""
    use()
    model, _ = _train()
    saved = {"state": model.state_dict(), "parameter": nn.Parameter(torch.zeros(2, device="cuda"))}
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{name}.pt" for name in ("new", "old")]
        for path, zipped in zip(paths, (True, False), strict=True):
            torch.save(saved, path, _use_new_zipfile_serialization=zipped)
        code = (
            "import sys, torch\nfor path in sys.argv[1:]:\n"
            "    c = torch.load(path, map_location='cpu')\n"
            "    of = sum(x.nbytes for x in c['state'].values()), c['state']['0.weight'].shape, type(c['parameter']).__name__\n"
            "    print(*of, 'replayer' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    size_bytes = sum(x.nbytes for x in model.state_dict().values())
    assert done.stdout.splitlines() == [f"{size_bytes} torch.Size([64, 32]) Parameter False"] * 2


def test_a_checkpoint_made_without_trace_is_loaded_with_its_values() -> None:
    gpu = use()
    file = _saved({"weight": torch.arange(6.0).view(2, 3)})
    loaded = torch.load(file, map_location="cuda")["weight"]
    assert type(loaded) is VirtualTensor and loaded.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert ("h2d", 24) in [(kind, size_bytes) for _, kind, size_bytes, _, _ in gpu.copies]


def test_map_location_can_be_a_function_that_moves_storages() -> None:
    gpu = use(devices=2)
    file = _saved({"weight": torch.arange(6.0).view(2, 3)})
    there: dict[str, Any] = {
        "cuda:1": lambda storage, location: storage.cuda(1),
        "cuda:0": lambda storage, location: storage.cuda(),
        "cpu": lambda storage, location: storage,
    }
    for device, move in there.items():
        file.seek(0)
        weight = torch.load(file, map_location=move)["weight"]
        assert str(weight.device) == device and weight.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert ("h2d", 24, 1) in [(kind, size_bytes, device) for _, kind, size_bytes, device, _ in gpu.copies]
    storage = torch.ones(4, device="cuda").untyped_storage()
    assert storage.cuda(0) is storage
    assert storage.cuda(1).device == torch.device("cuda", 1) and storage.to(device="cpu").nbytes() == 16
    assert storage.to(device="cuda") is storage and storage.to(device="cpu").device.type == "cpu"
    assert storage.to(device="cuda:1").device == torch.device("cuda", 1)


def test_checkpoints_in_the_old_format_without_zip_can_be_saved_and_loaded() -> None:
    use()
    model, _ = _train()
    host = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64))
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Path(folder) / "ours.pt", Path(folder) / "plain.pt"
        torch.save(model.state_dict(), ours, _use_new_zipfile_serialization=False)
        torch.save(host.state_dict(), plain, _use_new_zipfile_serialization=False)
        assert ours.stat().st_size == pytest.approx(plain.stat().st_size, rel=0.02)
        assert sum(x.nbytes for x in model.state_dict().values()) == sum(x.nbytes for x in host.state_dict().values())
        loaded = torch.load(plain, map_location="cuda")
        bias = loaded["0.bias"]
        assert type(bias) is VirtualTensor and bias.tolist() == host.state_dict()["0.bias"].tolist()
        model.load_state_dict(loaded)
        host.load_state_dict(torch.load(ours))


def test_tensors_that_share_memory_still_share_it_after_loading() -> None:
    gpu = use()
    x: Any = torch.zeros(4, 6, device="cuda")
    file = _saved([x, x[1:], x.t()])
    loaded = torch.load(file)
    assert loaded[0].allocation is loaded[1].allocation is loaded[2].allocation
    assert (loaded[1].storage_offset(), loaded[2].stride()) == (6, (1, 6))
    copied = copy.deepcopy([x, x[1:]])
    assert copied[0].allocation is copied[1].allocation is not x.allocation
    storage, view = copy.deepcopy([x.untyped_storage(), x[1:]])
    assert storage == view.untyped_storage() != x.untyped_storage()
    assert [kind for _, kind, *_ in gpu.copies] == ["d2h", "h2d"]


def test_loading_onto_a_missing_device_raises_the_torch_error() -> None:
    use(devices=2)
    file = _saved(torch.zeros(2, device="cuda:1"))
    use(devices=1)
    torch.cuda.device_count = lambda: 1
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on CUDA device 1"):
        torch.load(file)


def test_models_and_tensors_can_be_deep_copied_and_pickled() -> None:
    use()
    model, _ = _train()
    twin: Any = copy.deepcopy(model)
    a: Any
    b: Any
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert b.allocation is not a.allocation and a.grad is not None and b.grad is None
        assert type(b).__name__ == "Parameter" and isinstance(b, nn.Parameter) and b.requires_grad
    x = torch.full((2, 2), 3.0, device="cuda", requires_grad=True)
    back = pickle.loads(pickle.dumps(x))
    assert type(back) is VirtualTensor and back.requires_grad and back.shape == x.shape
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


def test_a_deep_copy_of_a_parameter_is_a_clone_without_the_gradient() -> None:
    gpu = use()
    parameter: Any = nn.Parameter(torch.zeros(2, 3, device="cuda"))
    leaf: Any = torch.zeros(2, 3, device="cuda", requires_grad=True)
    for tensor in (parameter, leaf):
        tensor.sum().backward()
        tensor.mark = "set by the script"
    gpu.launched_ops.clear()
    copied: Any = copy.deepcopy(parameter)
    assert (copied.grad, hasattr(copied, "mark"), copied.requires_grad, gpu.launched) == (None, False, True, ["clone"])
    gpu.launched_ops.clear()
    copied = copy.deepcopy(leaf)
    assert (copied.grad.shape, copied.mark, gpu.launched) == ((2, 3), "set by the script", ["copy_", "copy_"])


def test_a_module_with_uninitialized_parameters_can_be_saved_and_loaded() -> None:
    use()
    loaded = torch.load(_saved(nn.LazyLinear(3).cuda()), weights_only=False).cuda()
    assert loaded(torch.ones(2, 5, device="cuda")).shape == (2, 3) and loaded.weight.is_cuda


def test_the_class_of_a_parameter_can_be_called_to_create_parameters() -> None:
    use()
    weight: Any = nn.Linear(2, 3).cuda().weight
    again = type(weight)(weight.detach(), requires_grad=False)
    assert isinstance(again, nn.Parameter) and again.is_cuda and not again.requires_grad
    assert type(again) in {nn.Parameter} and type(again) not in {torch.Tensor} and type(again).__name__ == "Parameter"
    plain: Any = type(weight.detach())
    assert plain(2, 3).shape == (2, 3)


def test_a_saved_conjugate_view_keeps_its_conjugate_bit() -> None:
    use()
    file = _saved(torch.tensor([1 + 2j, 3 + 4j], device="cuda").conj())
    for where in ("cuda", "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        assert loaded.is_conj() and (loaded * 1).tolist() == [1 - 2j, 3 - 4j]
