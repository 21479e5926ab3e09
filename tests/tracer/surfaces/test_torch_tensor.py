"""Tests which reads of tensors the recorder stores, and which copies it counts as uploads, with a fake torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from torch.utils._device import _device_constructors

from tracer import state
from tracer.repeated_steps import NEW_TENSOR
from tracer.surfaces import torch_tensor
from traces.model.trace import READ_LIMIT
from traces.script.patching import PATCHES
from traces.script.workload_observer import WorkloadObserver


class Tensor:
    def __init__(self, values: list[Any], device: str = "cuda", dtype: str = "torch.float32") -> None:
        self.values, self.type, self.dtype = values, device, dtype

    @property
    def is_cuda(self) -> bool:
        return self.type == "cuda"

    def numel(self) -> int:
        return len(self.values)

    def is_complex(self) -> bool:
        return "complex" in self.dtype

    def item(self) -> Any:
        return self.values[0]

    __bool__ = __float__ = __int__ = __index__ = __complex__ = is_nonzero = item

    def tolist(self) -> list[Any]:
        return [Tensor([value], self.type).item() for value in self.values]  # as in torch, this read calls another read

    def detach(self) -> Self:
        return self

    def to(self, device: Any = None, **others: Any) -> Tensor:
        return Tensor(self.values, getattr(device, "type", None) or self.type, self.dtype)

    def cpu(self) -> Tensor:
        return Tensor(self.values, "cpu", self.dtype)

    def cuda(self) -> Tensor:
        return Tensor(self.values, "cuda", self.dtype)

    def copy_(self, source: Any) -> Self:
        self.values = list(getattr(source, "values", [source]))
        return self

    def __repr__(self) -> str:
        return f"tensor({self.tolist()})"


class Recorder:
    """A fake recorder that stores its calls. The field `phase` contains the current phase of the script."""

    def __init__(self) -> None:
        self.phase = "forward"
        self.workload = WorkloadObserver()
        self.reads: list[tuple[str, str, list[float]]] = []
        self.phases: list[str] = []

    def read_called(self) -> None: ...

    def read(self, op: str, dtype: str, values: list[float]) -> None:
        self.reads.append((op, dtype, values))

    def enter_phase(self, name: str) -> None:
        self.phases.append(f"+{name}")

    def leave_phase(self, name: str, error: BaseException | None = None) -> None:
        self.phases.append(f"-{name}")


class Script:
    """A script with `gpus` GPUs whose recorder has started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
        class ScriptTensor(Tensor): ...

        self.tensor = ScriptTensor
        self.tracing_context = False
        self.recorder = Recorder()
        monkeypatch.setitem(state._STATE, "recorder", self.recorder)

        def equal(input: Any, other: Any) -> bool:
            return bool(input.item() == other.item())

        def create(data: Any, device: str = "cpu") -> Tensor:
            return ScriptTensor(getattr(data, "values", data), device)

        fake: Any = SimpleNamespace(
            Tensor=ScriptTensor,
            tensor=create,
            as_tensor=create,
            asarray=create,
            equal=equal,
            allclose=equal,
            cuda=SimpleNamespace(device_count=lambda: gpus),
            _guards=SimpleNamespace(_TLS=self),
        )
        torch_tensor.install(fake)
        self.torch = fake


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch, gpus=1)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch, gpus=0)


UPLOAD = ["+h2d", "-h2d"]


def test_a_scalar_read_from_a_gpu_is_recorded_once(on_gpu: Script) -> None:
    assert on_gpu.tensor([2.5]).item() == 2.5
    assert on_gpu.recorder.reads == [("aten::_local_scalar_dense", "float32", [2.5])]


def test_a_machine_with_a_gpu_records_no_reads_of_cpu_tensors(on_gpu: Script) -> None:
    on_gpu.tensor([2.5], "cpu").item()
    on_gpu.tensor([2.5], "cpu").tolist()
    assert on_gpu.recorder.reads == []


def test_a_machine_without_a_gpu_records_reads_of_cpu_tensors_outside_the_optimizer(on_cpu: Script) -> None:
    on_cpu.tensor([1.0], "cpu").item()
    on_cpu.recorder.phase = "optimizer"
    on_cpu.tensor([2.0], "cpu").item()
    assert [values for _, _, values in on_cpu.recorder.reads] == [[1.0]]


def test_reading_a_gpu_tensor_during_an_optimizer_step_is_recorded(on_gpu: Script) -> None:
    on_gpu.recorder.phase = "optimizer"
    on_gpu.tensor([2.0]).item()
    assert len(on_gpu.recorder.reads) == 1


def test_reads_by_torch_compile_and_by_the_recorder_are_not_recorded(on_gpu: Script) -> None:
    on_gpu.tracing_context = True
    on_gpu.tensor([1.0]).item()
    on_gpu.tracing_context = False
    with torch_tensor.WithoutReads():
        on_gpu.tensor([1.0]).item()
    assert on_gpu.recorder.reads == []
    on_gpu.tensor([1.0]).item()
    assert len(on_gpu.recorder.reads) == 1


def test_values_that_a_data_set_reads_while_a_batch_is_loaded_are_not_recorded(on_gpu: Script) -> None:
    state.CALLS.now.is_loading = True
    on_gpu.tensor([1.0]).item()
    assert on_gpu.recorder.reads == []
    state.CALLS.now.is_loading = False
    on_gpu.tensor([1.0]).item()
    assert len(on_gpu.recorder.reads) == 1


def test_without_a_recorder_tensors_are_read_as_usual(on_gpu: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(state._STATE, "recorder", None)
    assert on_gpu.tensor([3.0]).item() == 3.0
    assert on_gpu.recorder.reads == []


def test_reading_a_complex_scalar_is_not_recorded(on_gpu: Script) -> None:
    assert on_gpu.tensor([1j], dtype="torch.complex64").item() == 1j
    assert on_gpu.recorder.reads == []


@pytest.mark.parametrize("read", ["tolist", "cpu"])
def test_copying_a_whole_tensor_to_the_host_counts_as_one_read(on_gpu: Script, read: str) -> None:
    getattr(on_gpu.tensor([1.0, 2.0]), read)()
    assert on_gpu.recorder.reads == [("aten::copy_", "float32", [1.0, 2.0])]


@pytest.mark.parametrize(("count", "recorded"), [(0, 0), (1, 1), (READ_LIMIT, 1), (READ_LIMIT + 1, 0)])
def test_tensor_values_are_recorded_up_to_a_maximum_number(on_gpu: Script, count: int, recorded: int) -> None:
    tensor = on_gpu.tensor([1.0] * count)
    tensor.cpu()
    repr(tensor)
    assert len(on_gpu.recorder.reads) == 2 * recorded


def test_printing_a_tensor_copies_it_to_the_host_unless_it_exceeds_the_limit(
    on_gpu: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    cls: Any = type(on_gpu.tensor([1.0]))
    copy = cls.cpu

    def counted(tensor: Any) -> Any:
        copied.append(tensor.numel())
        return copy(tensor)

    monkeypatch.setattr(cls, "cpu", counted)
    for count in (READ_LIMIT, READ_LIMIT + 1):
        repr(on_gpu.tensor([1.0] * count))
    assert copied == [READ_LIMIT]


def test_printing_a_tensor_counts_as_one_read(on_gpu: Script) -> None:
    assert repr(on_gpu.tensor([1.0, 2.0])) == "tensor([1.0, 2.0])"
    assert repr(on_gpu.tensor([1.0, 2.0], "cpu")) == "tensor([1.0, 2.0])"
    assert on_gpu.recorder.reads == [("aten::copy_", "float32", [1.0, 2.0])]


@pytest.mark.parametrize(
    ("device", "target", "phases", "reads"),
    [
        ("cuda", SimpleNamespace(type="cpu"), [], 1),
        ("cuda", "cpu", [], 1),
        ("cpu", SimpleNamespace(type="cuda"), UPLOAD, 0),
        ("cpu", "cuda:1", UPLOAD, 0),
        ("cpu", 0, UPLOAD, 0),
        ("cpu", Tensor([], "cuda"), UPLOAD, 0),
        ("cuda", Tensor([], "cpu"), [], 1),
        ("cpu", "cpu", [], 0),
        ("cuda", "cuda", [], 0),
        ("cpu", None, [], 0),
    ],
)
def test_the_method_tensor_to_is_recorded_as_an_upload_or_a_read(
    on_gpu: Script, device: str, target: Any, phases: list[str], reads: int
) -> None:
    on_gpu.tensor([1.0], device).to(target)
    assert (on_gpu.recorder.phases, len(on_gpu.recorder.reads)) == (phases, reads)


@pytest.mark.parametrize(
    ("into", "source", "phases", "reads"),
    [("cuda", "cpu", UPLOAD, 0), ("cpu", "cuda", [], 1), ("cuda", "cuda", [], 0), ("cpu", "cpu", [], 0)],
)
def test_copying_into_a_tensor_is_recorded_as_an_upload_or_a_read(
    on_gpu: Script, into: str, source: str, phases: list[str], reads: int
) -> None:
    tensor = on_gpu.tensor([0.0], into)
    assert tensor.copy_(on_gpu.tensor([4.0], source)) is tensor
    assert (on_gpu.recorder.phases, len(on_gpu.recorder.reads)) == (phases, reads)


def test_copying_a_number_into_a_tensor_is_not_a_copy_between_devices(on_gpu: Script) -> None:
    on_gpu.tensor([0.0]).copy_(4.0)
    assert (on_gpu.recorder.phases, on_gpu.recorder.reads) == ([], [])


def test_calling_cuda_copies_the_tensor_unless_it_is_on_the_gpu(on_gpu: Script) -> None:
    on_gpu.tensor([1.0], "cuda").cuda()
    assert on_gpu.recorder.phases == []
    on_gpu.tensor([1.0], "cpu").cuda()
    assert on_gpu.recorder.phases == UPLOAD


def test_creating_a_tensor_on_the_gpu_from_data_of_the_host_is_a_copy(on_gpu: Script) -> None:
    for create in (on_gpu.torch.tensor, on_gpu.torch.as_tensor, on_gpu.torch.asarray):
        on_gpu.recorder.phases.clear()
        create([1.0])
        create([1.0], device="cpu")
        create(on_gpu.tensor([1.0], "cuda"), device="cuda")
        assert on_gpu.recorder.phases == []
        assert create([1.0], device="cuda:0").values == [1.0]
        assert on_gpu.recorder.phases == [f"+{NEW_TENSOR}", f"-{NEW_TENSOR}"]


def test_the_default_device_also_applies_to_wrapped_functions_that_create_tensors() -> None:
    """PyTorch applies the default device to the functions in a set. The C++ code of `torch.tensor` looks for the original
    function in this set, and our wrapper looks for itself."""
    original = torch.tensor
    try:
        torch_tensor.install(torch)
        assert torch.tensor is not original
        assert {original, torch.tensor} <= _device_constructors()
        with torch.device("meta"):
            assert torch.tensor([1.0]).is_meta
    finally:
        PATCHES.undo()
    assert torch.tensor is original


def test_torch_equal_of_gpu_tensors_counts_as_one_read_of_a_boolean(on_gpu: Script) -> None:
    assert on_gpu.torch.equal(on_gpu.tensor([1.0]), on_gpu.tensor([1.0])) is True
    on_gpu.torch.equal(on_gpu.tensor([1.0], "cpu"), on_gpu.tensor([1.0], "cpu"))
    assert on_gpu.recorder.reads == [("aten::equal", "bool", [1.0])]


def test_torch_equal_accepts_keyword_arguments(on_gpu: Script) -> None:
    assert on_gpu.torch.equal(other=on_gpu.tensor([1.0]), input=on_gpu.tensor([1.0])) is True
    assert on_gpu.recorder.reads == [("aten::equal", "bool", [1.0])]
