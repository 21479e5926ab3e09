"""Runs ops that copy the value of a GPU tensor to the host, such as `item()`. The host waits for the device.

    reads = HostReads(plans)
    reads.item(x.sum())        # aten::_local_scalar_dense: the recorded value, or the known value, or 1.0
    reads.equal(x, y)          # aten::equal

Note [Where values come from]
    A read such as `item()` returns the exact value of the memory (`Allocation.known`) if the value was computed from integers
    and booleans that the script copied to the GPU. A recorded value, such as the number of classes, may differ from the exact
    value, because it was recorded with other data.

    Other reads return the recorded value (`ReadValues.read`). Without a recorded value, a read returns the known value of the
    memory, even if a GPU may round it differently. If the value is unknown, a read returns an assumed value (`AssumedValues`).

Note [Reads in C++]
    PyTorch's C++ code may read a value. For example, a script may pass a GPU tensor as `alpha` of `add_`. The recorder does not
    see these reads, so a replay uses no recorded value for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from replayer.cuda_error import SINCE_2_14
from replayer.op_signature import OpSignature
from replayer.state import STATE, before_sync, gpu
from replayer.tensor.allocation import Doubt
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.tensor_meta import TensorMeta, is_mask, is_virtual
from replayer.tensor.values.known_values import host_values, known_values
from replayer.tensor.values.script_branches import truth_value_without_error
from replayer.tensor.values.value_rules import EXACT_DTYPES, hold_the_same
from replayer.torch_types import Kwargs, Op, TorchAny, TorchFunction

aten = torch.ops.aten
_Reads = Callable[..., bool]


class HostReads:
    def __init__(self, plans: PlanCache) -> None:
        self._plans, self._tensor_class = plans, plans.tensor_class

    def handlers(self) -> dict[TorchAny, TorchFunction]:
        return {
            aten._local_scalar_dense.default: self.item,
            aten.equal.default: self.equal,
            aten.allclose.default: self.allclose,
        }

    def fill_handlers(self, run: TorchFunction) -> dict[TorchAny, TorchFunction]:
        return {op: partial(self._fill, partial(run, op), at) for op, at in _FILL_VALUES.items()} | {
            op: partial(self._wait_and_run, partial(run, op), reads) for op, reads in _READS.items()
        }

    def _fill(self, run: TorchFunction, at: int, *args: TorchAny) -> TorchAny:
        if is_virtual(args[at], self._tensor_class):
            wait_for_device(args[at].tensor_meta.index)
        return run(*args)

    def _wait_and_run(self, run: TorchFunction, reads: _Reads, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        if reads(*args, **kwargs):
            wait_for_device(next(value.tensor_meta.index for value in args if is_virtual(value, self._tensor_class)))
        return run(*args, **kwargs)

    def values_of(self, source: TorchAny, signature: OpSignature) -> torch.Tensor | float | int | bool:
        meta: TensorMeta = source.tensor_meta
        recorded = gpu().values.read(signature, meta.index, meta.numel, is_recorded(signature))
        is_exact = meta.dtype in EXACT_DTYPES and source.allocation.doubt is Doubt.NONE and known_values(source) is not None
        if recorded is not None and not is_exact and (meta.dtype.is_floating_point or all(map(float.is_integer, recorded))):
            return torch.tensor(recorded, dtype=meta.dtype).reshape(meta.shape)
        return known_or_assumed(source)

    def item(self, source: TorchAny) -> TorchAny:
        before_sync()
        meta: TensorMeta = source.tensor_meta
        signature = self._read_signature("aten::_local_scalar_dense", meta)
        values = self.values_of(source, signature)
        return values.item() if isinstance(values, torch.Tensor) else values

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        answer = equal_without_kernel(one, other)
        if answer is not None:
            return answer
        unknown = gpu().values.assumed.improving and truth_value_without_error() is True
        return self._same("aten::equal", one, other, torch.equal, unknown=unknown)

    def allclose(self, one: torch.Tensor, other: torch.Tensor, *tolerances: TorchAny, **options: TorchAny) -> bool:
        """Run `torch.allclose`. Unknown values are assumed to be close."""

        def close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
            return torch.allclose(mine, theirs, *tolerances, **options)

        return self._same("aten::allclose", one, other, close, unknown=gpu().values.assumed.improving)

    def _same(
        self, op: str, one: TorchAny, other: TorchAny, compare: Callable[[torch.Tensor, torch.Tensor], bool], *, unknown: bool
    ) -> bool:
        before_sync()
        meta = one.tensor_meta if is_virtual(one, self._tensor_class) else other.tensor_meta
        signature = self._read_signature(op, meta)
        gpu().launches.launch(signature, meta.index)
        recorded = gpu().values.read(signature, meta.index, 1)
        if recorded is not None:
            return bool(recorded[0])
        if not is_virtual(one, self._tensor_class) or not is_virtual(other, self._tensor_class):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!")
        if hold_the_same(one, other):
            return True
        mine, theirs = host_values(one), host_values(other)
        return unknown and mine is theirs if mine is None or theirs is None else compare(mine, theirs)

    def _read_signature(self, op: str, meta: TensorMeta) -> OpSignature:
        return self._plans.signature_of((op, meta), lambda: OpSignature(op, (meta.shape,), (meta.dtype_name,)))


def is_recorded(signature: OpSignature) -> bool:
    # see Note [Reads in C++]
    return STATE.reading.within or signature.op != "aten::_local_scalar_dense"


# position of the fill value; if the fill value is a GPU tensor, the host reads the value
_FILL_VALUES = {
    aten.masked_fill.Tensor: 2,
    aten.masked_fill_.Tensor: 2,
    aten.index_fill.int_Tensor: 3,
    aten.index_fill_.int_Tensor: 3,
}


def _finds_limits(data: torch.Tensor, _bins: int = 100, low: float = 0, high: float = 0, **_: object) -> bool:
    return low == high and data.numel() > 0


def _has_virtual(*args: TorchAny, **_: object) -> bool:
    return any(hasattr(value, "allocation") for value in args)


def _has_elements(data: torch.Tensor, *_: object, **__: object) -> bool:
    return data.numel() > 0


def _checks_lengths(*_: object, lengths: object = None, unsafe: bool = False, **__: object) -> bool:
    return lengths is not None and not unsafe


def _removes_duplicates(data: torch.Tensor, among: torch.Tensor, *, assume_unique: bool = False, **_: object) -> bool:
    return not assume_unique and among.numel() >= int(10 * data.numel() ** 0.145)


# For each op, a function that returns True if a call makes the host wait for the GPU (tested with PyTorch 2.11 on an H100)
_WITH_TENSORS = ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
_SPACES = [getattr(op, kind) for op in (aten.linspace, aten.logspace) for kind in _WITH_TENSORS]
_TO_SPARSE = (aten._to_sparse, aten._to_sparse_csr, aten._to_sparse_csc, aten._to_sparse_bsr, aten._to_sparse_bsc)
_DECOMPOSED = ("cholesky", "_linalg_eigh", "_linalg_svd", "linalg_matrix_exp")  # this list applies to PyTorch 2.13 and earlier
_STATUS = (aten._linalg_check_errors, aten.linalg_eig, aten._linalg_eigvals)
_READS: dict[Op, _Reads] = {
    aten.histc.default: _finds_limits,
    aten.isin.Tensor_Tensor: _removes_duplicates,
    aten.segment_reduce.default: _checks_lengths,
    # PyTorch 2.14 checks the standard deviations on the GPU (CHECK_NORMAL_TENSOR_STD in ATen/native/DistributionTemplates.h)
    **({} if SINCE_2_14 else dict.fromkeys((aten.normal.Tensor_Tensor, aten.normal.float_Tensor), _has_virtual)),
    **{getattr(aten, name).default: _has_elements for name in _DECOMPOSED if hasattr(aten, name)},
    aten.linalg_pinv.atol_rtol_tensor: _has_elements,
    **dict.fromkeys((op.default for op in _STATUS), _has_virtual),
    **dict.fromkeys(_SPACES, _has_virtual),
    **{getattr(op, kind): _has_virtual for op in _TO_SPARSE for kind in ("default", "sparse_dim") if hasattr(op, kind)},
}
_INDEX_PUT = frozenset({aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default})


def reads_an_argument(func: Op, args: Sequence[TorchAny], kwargs: Kwargs) -> bool:
    """Return True if the op copies an argument's value to the host, as PyTorch's `masked_fill_` does with the fill value."""
    at = _FILL_VALUES.get(func)
    if at is not None:
        return hasattr(args[at], "allocation")
    if func in _READS:
        return _READS[func](*args, **kwargs)
    if func not in _INDEX_PUT or not any(hasattr(index, "allocation") and is_mask(index) for index in args[1]):
        return False
    value = args[2]
    return hasattr(value, "allocation") or value.numel() != 1 or bool(args[3:4] and args[3])


def wait_for_device(index: int) -> None:
    before_sync()
    gpu().streams.synchronize(gpu().current.stream(index))


def equal_without_kernel(one: TorchAny, other: TorchAny) -> bool | None:
    """Return the result of `torch.equal` if no values need to be compared: False for different shapes, True for the same memory
    (ATen/native/cuda/Equal.cpp). Otherwise, return None."""
    if tuple(one.shape) != tuple(other.shape):
        return False
    if not (hasattr(one, "allocation") and hasattr(other, "allocation")):
        return None
    same = one.allocation is other.allocation and one.tensor_meta is other.tensor_meta
    return True if same or not one.numel() else None


def known_or_assumed(tensor: TorchAny) -> torch.Tensor | float | int | bool:
    known = known_values(tensor)
    assumed = gpu().values.assumed
    meta: TensorMeta = tensor.tensor_meta
    if meta.dtype is torch.bool and meta.numel == 1 and (known is None or tensor.allocation.doubt >= Doubt.GUESSED):
        answer = truth_value_without_error() if assumed.improving else None
        if answer is not None:
            assumed.note_scalar()
            return answer
    if known is not None:
        # see Note [Loops with assumed values] in assumed_values.py
        ends = meta.numel == 1 and assumed.decide() and meta.dtype is torch.bool and tensor.allocation.doubt >= Doubt.GUESSED
        return not known if ends else known
    if meta.dtype is torch.bool:
        return assumed.decide() if meta.numel == 1 else False
    return assumed.loss() if meta.dtype.is_floating_point or meta.dtype.is_complex else 0
