"""torch.jit.script compiles the same scripts as without a replay, although some functions are replaced."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("scripts") / "torchscript.py"
WAYS = {
    "recorded": ["record", "-o", "t.msgpack"],
    "replayed": ["replay", "--trace", "p100-no-cudnn"],
    "computed": ["replay", "--trace", "p100-no-cudnn", "--values", "compute"],
    "both": ["record", "--on", "p100-no-cudnn", "-o", "t.msgpack"],
}
PYTHON = ["-W", "ignore::DeprecationWarning", str(SCRIPT)]


def printed(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> str:
    return printed(*PYTHON, cwd=tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("way", WAYS)
def test_a_script_is_compiled_and_gives_the_same_numbers(tmp_path: Path, native: str, way: str) -> None:
    assert "True torch.Size([])" in native
    assert printed("-m", "tui.cli", *WAYS[way], "--", *PYTHON, cwd=tmp_path) == native


FROZEN = """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten()).cuda().eval()
x = torch.ones(1, 1, 4, 4, device="cuda")
for compiled in (torch.jit.script(net), torch.jit.trace(net, x)):
    frozen = torch.jit.freeze(compiled.eval())
    torch.jit.save(frozen, "frozen.pt")
    for module in (frozen, torch.jit.load("frozen.pt", map_location="cuda")):
        print(module(x).device, torch.allclose(module(x), net(x)), module(x).shape)
    print(torch.jit.load("frozen.pt", map_location="cpu")(x.cpu()).shape)
"""


@pytest.mark.parametrize("values", ["recorded", "compute"])
def test_a_frozen_module_is_saved_and_loaded(tmp_path: Path, values: str) -> None:
    """GIVEN a module whose parameters are constants of its graph WHEN saved on the GPU THEN it runs there and on the CPU."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    command = ["replay", "--trace", "p100-no-cudnn", "--values", values, "--", "-W", "ignore", "frozen.py"]
    found = ["cuda:0 True torch.Size([1, 8])", "cuda:0 True torch.Size([1, 8])", "torch.Size([1, 8])"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == found * 2


SAVED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1, bias=False)
        self.register_buffer("shift", torch.ones(1))
    def forward(self, x):
        return self.linear(x) + self.shift.to(x.device)
net = torch.jit.script(Net())
torch.nn.init.constant_(net.linear.weight, 2.0)
net.linear.cuda()
weight = net.linear.weight
torch.jit.save(net, "net.pt", _extra_files={"note": "7"})
print(net.linear.weight is weight, weight.device, net.shift.device)
files = {"note": ""}
loaded = torch.jit.load("net.pt", _extra_files=files)
print(loaded.linear.weight.device, loaded.linear.weight.requires_grad, loaded.shift.device, files)
for device in ("cuda", "cpu"):
    print(torch.jit.load("net.pt", map_location=device)(torch.ones(1, 2, device=device)).tolist())
print(loaded(torch.ones(1, 2, device="cuda")).tolist())
"""


def test_a_saved_module_stays_on_its_devices_and_is_loaded_onto_them(tmp_path: Path) -> None:
    """The weights are 2 and the shift is 1, so the result of two ones is 2 + 2 + 1 = 5."""
    (tmp_path / "saved.py").write_text(SAVED)
    command = ["replay", "--trace", "p100-no-cudnn", "--values", "compute", "--", "-W", "ignore", "saved.py"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == [
        "True cuda:0 cpu",
        "cuda:0 True cpu {'note': b'7'}",
        *["[[5.0]]"] * 3,
    ]


OLDER_EXECUTOR = """
import torch
print(torch._C._jit_set_profiling_executor(False))
double = torch.jit.trace(lambda x: (x + 1) * 2, torch.ones(3, device="cuda"))
print(double(torch.ones(3, device="cuda")).tolist(), torch._C._jit_set_profiling_executor(True))
"""


def test_a_traced_function_runs_if_the_script_selects_the_older_executor(tmp_path: Path) -> None:
    """The function returns (1 + 1) x 2 = 4. PyTorch's setter returns the previous setting."""
    (tmp_path / "older.py").write_text(OLDER_EXECUTOR)
    command = ["replay", "--trace", "p100-no-cudnn", "--values", "compute", "--", "-W", "ignore", "older.py"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == ["True", "[4.0, 4.0, 4.0] False"]
