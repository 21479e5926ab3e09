# mypy: allow-untyped-calls
"""Tests how `--values compute` chooses the code that computes an op, and which ops make the host wait for a size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from replayer.errors import NotEmulated
from replayer.ops.cpu import cpu_compute
from replayer.ops.cpu.cpu_compute import CpuCompute, _as_it_is, _waits_for_size
from replayer.ops.cpu.cpu_kernels import FORMS
from replayer.tensor.tensor import VirtualTensor
from replayer.tensor.tensor_meta import lazy_conjugation
from tests.replayer.fake_gpu import use
from traces.script.patching import temporarily_set

aten = torch.ops.aten
X = torch.zeros(3)
MASK, INDEX = torch.tensor([True, False, True]), torch.tensor([2, 0])


def test_the_host_waits_for_results_whose_size_depends_on_values() -> None:
    for op, args, options, waits in (
        (aten.index.Tensor, (X, [MASK]), {}, True),
        (aten.index.Tensor, (X, [None, INDEX]), {}, False),
        (aten.index.Tensor, (X, [INDEX, MASK]), {}, True),
        (aten.nonzero.default, (X,), {}, True),
        (aten.equal.default, (X, X), {}, True),
        (aten.repeat_interleave.Tensor, (INDEX,), {}, True),
        (aten.repeat_interleave.Tensor, (INDEX,), {"output_size": 2}, False),
        (aten.neg.default, (X,), {}, False),
    ):
        assert _waits_for_size(op, args, options) is waits, (op, args, options)


def test_a_storage_gets_its_earlier_contents_back_unless_it_was_resized() -> None:
    values = torch.tensor([1.0, 2.0])
    undo = _as_it_is(values.untyped_storage())
    values.fill_(5.0)
    undo()
    assert values.tolist() == [1.0, 2.0]
    values.resize_(3).fill_(7.0)
    undo()
    assert values.tolist() == [7.0] * 3


class _Foreign(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *args: Any) -> Any:
        return NotImplemented


class _Compute(CpuCompute):
    """Returns the arguments of ops that the CPU would compute, instead of computing them."""

    def __init__(self, handlers: dict[Any, Any], specials: dict[Any, Any], composites: dict[Any, Any]) -> None:
        plans: Any = SimpleNamespace(specials=specials, composite=composites.get)
        self._handlers, self._plans, self._tensor_class = handlers, plans, VirtualTensor

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        return "computed", args, kwargs


def _named(name: str) -> Any:
    return lambda *args, **kwargs: (name, args, kwargs)


def test_each_op_has_a_handler_or_is_decomposed_or_runs_on_the_cpu() -> None:
    form, barrier = next(iter(FORMS)), torch.ops.c10d.barrier.default
    compute = _Compute(
        handlers={aten.copy_.default: _named("handler")},
        specials={barrier: _named("special"), aten.neg.default: _named("special")},
        composites={aten.copy_.default: _named("parts"), aten.relu.default: _named("parts"), form: _named("parts")},
    )
    for op, by in (
        (aten.copy_.default, "handler"),
        (barrier, "special"),  # this op runs between processes
        (aten.neg.default, "computed"),
        (aten.relu.default, "parts"),
        (form, "computed"),
    ):
        assert compute.dispatch(op, (VirtualTensor,), (1,), {"alpha": 2}) == (by, (1,), {"alpha": 2})
        assert compute.dispatch(op, (VirtualTensor,), (1,)) == (by, (1,), {})


def test_an_op_on_two_tensor_classes_is_handled_by_the_other_class() -> None:
    compute = _Compute({}, {}, {})
    parameter = VirtualTensor.parameter_class
    for types, by in (
        ((VirtualTensor, _Foreign), NotImplemented),
        ((VirtualTensor, parameter), ("computed", (), {})),
        ((_Foreign,), ("computed", (), {})),
    ):
        assert compute.dispatch(aten.neg.default, types) == by


def test_indices_on_the_cpu_are_copied_to_the_device_and_masks_become_positions() -> None:
    use()
    x, on_device = torch.zeros(3, device="cuda"), torch.tensor([1], device="cuda")
    compute = _Compute({}, {}, {})
    _, (_, (index, positions, none, same)), _ = compute.dispatch(
        aten.index.Tensor, (VirtualTensor,), (x, [INDEX, MASK, None, on_device])
    )
    assert index.is_cuda and index.shape == (2,)
    assert positions.is_cuda and positions.shape == (2,) and none is None and same is on_device
    _, (_, (index,)), _ = compute.dispatch(aten.index.Tensor, (VirtualTensor,), (X, [INDEX]))
    assert index is INDEX
    assert compute.dispatch(aten.neg.default, (VirtualTensor,), (x,))[1] == (x,)


def test_an_op_without_a_cpu_version_raises_an_error_that_names_the_op() -> None:
    use()
    compute: Any = SimpleNamespace()
    clock = SimpleNamespace(pause=lambda: None, resume=lambda: None)
    here = temporarily_set(cpu_compute, gpu=lambda: SimpleNamespace(clock=clock))
    with here, pytest.raises(NotEmulated, match="aten::linalg_lu_factor_ex under --values compute"):
        CpuCompute._on_host(compute, aten.linalg_lu_factor_ex.default, [torch.eye(2)], {"pivot": False})


class _OnHost(TorchDispatchMode):
    """Calls ops as `CpuCompute` does: inside `__torch_dispatch__`, where PyTorch turns lazy conjugation off."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with lazy_conjugation(list(args)):
            return func(*args, **(kwargs or {}))


def test_lazily_conjugating_kernels_give_the_same_values_inside_and_outside_dispatch() -> None:
    for x in (torch.tensor([[1j, 2], [3, 4j]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])):
        with _OnHost():
            inverse = torch.linalg.pinv(x)
        assert torch.allclose(inverse @ x, torch.eye(2, dtype=x.dtype), atol=1e-5)
