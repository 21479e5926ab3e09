"""Tests that torch.jit.script compiles the same scripts as without a replay, although some functions are replaced."""

from __future__ import annotations

import subprocess
import sys
import zipfile
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
    """GIVEN a module whose parameters are constants of its graph WHEN it is saved on the GPU THEN it runs on both devices."""
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
        self.scale, self.sums = torch.ones(1, device="cuda"), [torch.ones(1), torch.zeros(1, device="cuda")]
    sums: list[torch.Tensor]
    def forward(self, x):
        return self.linear(x) * self.scale.to(x.device) + self.shift.to(x.device) + self.sums[1].to(x.device)
net = torch.jit.script(Net())
torch.nn.init.constant_(net.linear.weight, 2.0)
net.linear.cuda()
weight = net.linear.weight
torch.jit.save(net, "net.pt", _extra_files={"note": "7"})
print(net.linear.weight is weight, weight.device, net.shift.device)
for module in (net, torch.jit.load("net.pt"), torch.jit.load("net.pt", map_location="cpu")):
    print(module.scale.device, [each.device.type for each in module.sums])
files = {"note": ""}
loaded = torch.jit.load("net.pt", _extra_files=files)
print(loaded.linear.weight.device, loaded.linear.weight.requires_grad, loaded.shift.device, files)
for device in ("cuda", "cpu"):
    print(torch.jit.load("net.pt", map_location=device)(torch.ones(1, 2, device=device)).tolist())
print(loaded(torch.ones(1, 2, device="cuda")).tolist())
"""


def test_a_saved_module_stays_on_its_devices_and_is_loaded_onto_them(tmp_path: Path) -> None:
    """Some attributes of the module are tensors that are neither parameters nor buffers. The weights are 2, the scale is 1, and
    the shift is 1, so the result of two ones is 2 + 2 + 1 = 5."""
    (tmp_path / "saved.py").write_text(SAVED)
    command = ["replay", "--trace", "p100-no-cudnn", "--values", "compute", "--", "-W", "ignore", "saved.py"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == [
        "True cuda:0 cpu",
        *["cuda:0 ['cpu', 'cuda']"] * 2,
        "cpu ['cpu', 'cpu']",
        "cuda:0 True cpu {'note': b'7'}",
        *["[[5.0]]"] * 3,
    ]


TIED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, tokens):
        return self.head(self.embedding(tokens))
net = torch.jit.script(Net()).cuda()
net.save("tied.pt")
for module in (net, torch.jit.load("tied.pt"), torch.jit.load("tied.pt", map_location="cuda"), torch.jit.load("tied.pt").cpu()):
    print(len(list(module.parameters())))
"""


def test_tied_parameters_of_a_scripted_module_remain_one_parameter_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "tied.py").write_text(TIED)
    command = ["replay", "--trace", "p100-no-cudnn", "--", "-W", "ignore", "tied.py"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == ["1"] * 4


SEVERAL = """
import torch
x = torch.ones(1, 2, device="cuda")
for made in (torch.nn.Linear(2, 1), torch.nn.Linear(2, 3)):
    module = torch.nn.Sequential(made).cuda()
    traced = torch.jit.trace(module, x)
    print(*(node.kind() for node in traced.inlined_graph.nodes() if "GetAttr" not in node.kind()), *traced(x).shape)
"""


def test_several_modules_are_traced_in_one_script(tmp_path: Path) -> None:
    """The observer of the workload reads the parameters of all modules, but a traced graph knows only those of its module."""
    (tmp_path / "several.py").write_text(SEVERAL)
    command = ["replay", "--trace", "p100-no-cudnn", "--", "-W", "ignore", "several.py"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == ["aten::linear 1 1", "aten::linear 1 3"]


OF_CUDA = """
import io
import zipfile
import torch
net = torch.jit.script(torch.nn.Linear(2, 1, bias=False))
torch.nn.init.constant_(net.weight, 2.0)
net.save("cpu.pt")
with zipfile.ZipFile("cpu.pt") as of_cpu, zipfile.ZipFile("cuda.pt", "w") as of_cuda:
    for name in of_cpu.namelist():
        contents = of_cpu.read(name)
        if name.endswith("/data.pkl"):  # the name of a device follows its length
            contents = contents.replace(b"\\x03\\0\\0\\0cpu", b"\\x06\\0\\0\\0cuda:0")
        of_cuda.writestr(name, contents)
for file in ("cuda.pt", open("cuda.pt", "rb")):
    loaded = torch.jit.load(file)
    print(loaded.weight.device, loaded(torch.ones(1, 2, device="cuda")).item())
"""


def test_a_module_saved_by_pytorch_with_cuda_is_loaded_onto_its_gpu(tmp_path: Path) -> None:
    """Both weights are 2, so the result of two ones is 2 + 2 = 4."""
    (tmp_path / "of_cuda.py").write_text(OF_CUDA)
    command = ["replay", "--trace", "p100-no-cudnn", "--values", "compute", "--", "-W", "ignore", "of_cuda.py"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == ["cuda:0 4.0"] * 2


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


DEVICES = """
import torch
@torch.jit.script
def place(x: torch.Tensor):
    return x.device.type
class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        y = x.cuda()
        return x.is_cuda, place(x), str(y.device), y.device == torch.device("cuda:0"), y.device
net = torch.jit.script(Net())
net.save("net.pt")
print(torch.jit.export_opnames(net))
for module in (net, torch.jit.load("net.pt")):
    print(*module(torch.ones(1, device="cuda")), *module(torch.ones(1)))
    print("virtual_gpu" in module.code + str(module.graph))
"""


def test_compiled_code_reads_the_device_cuda(tmp_path: Path) -> None:
    """The saved file contains PyTorch's own ops, so it can be loaded without the virtual GPU."""
    (tmp_path / "devices.py").write_text(DEVICES)
    command = ["replay", "--trace", "p100-no-cudnn", "--", "-W", "ignore", "devices.py"]
    of_gpu, of_cpu = ("True cuda cuda:0 True cuda:0", "False cpu cuda:0 True cuda:0")
    names = "['aten::cuda', 'aten::eq.device', 'aten::str', 'prim::type']"
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == [names, *[f"{of_gpu} {of_cpu}", "False"] * 2]
    with zipfile.ZipFile(tmp_path / "net.pt") as saved:
        code = b"".join(saved.read(name) for name in saved.namelist() if name.endswith(".py"))
    assert b"ops.prim.is_cuda(x)" in code and b"virtual_gpu" not in code


COMPILED = """
import torch
def called(x: torch.Tensor):
    return x.device.type
class Reader:
    def __init__(self, x: torch.Tensor):
        self.on_gpu = x.is_cuda
    def read(self, x: torch.Tensor):
        return self.on_gpu, called(x)
@torch.jit.script
def reads(x: torch.Tensor):
    return Reader(x).read(x)
class Older(torch.jit.ScriptModule):
    @torch.jit.script_method
    def forward(self, x):
        return x.is_cuda, called(x)
class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return x
def hook(module, x: tuple[torch.Tensor], y: torch.Tensor):
    return x[0].is_cuda, called(y)
def from_text():
    read = torch.jit.script(called)
    return torch.jit.CompilationUnit("def f(x):\\n    return x.is_cuda, read(x)\\n").f
try:
    torch.jit.script(lambda x: missing)
except RuntimeError:
    pass
net = Net()
net.register_forward_hook(hook)
reads.save("reads.pt")
for compiled in (reads, Older(), torch.jit.script(net), from_text(), torch.jit.load("reads.pt")):
    print(*compiled(torch.ones(1, device="cuda")), *compiled(torch.ones(1)))
plus = torch.ones(1, device="cuda")
torch.jit.trace(lambda x: x + plus, torch.ones(1, device="cuda")).save("plus.pt")
print(torch.jit.load("plus.pt")(plus).device)
"""


def test_scripted_methods_and_saved_scripted_functions_read_the_device_cuda(tmp_path: Path) -> None:
    (tmp_path / "compiled.py").write_text(COMPILED)
    command = ["replay", "--trace", "p100-no-cudnn", "--", "-W", "ignore", "compiled.py"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == [*["True cuda False cpu"] * 5, "cuda:0"]
    with zipfile.ZipFile(tmp_path / "reads.pt") as saved:
        assert not [name for name in saved.namelist() if name.endswith(".py") and b"virtual_gpu" in saved.read(name)]


AUTOCAST = """
import torch
@torch.jit.script
def product(x: torch.Tensor):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = x @ x
    return y
x = torch.ones(2, 2)
print(product(x.cuda()).dtype, product(x).dtype)
with torch.inference_mode():
    print(product(torch.ones(2, 2, device="cuda")).dtype)
"""


def test_autocast_in_compiled_code_casts_tensors_of_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "autocast.py").write_text(AUTOCAST)
    command = ["replay", "--trace", "p100-no-cudnn", "--", "-W", "ignore", "autocast.py"]
    expected = ["torch.bfloat16 torch.float32", "torch.bfloat16"]
    assert printed("-m", "tui.cli", *command, cwd=tmp_path).splitlines() == expected
