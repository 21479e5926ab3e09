"""Creates the result tensors of an op.

    plan_results(plan, func, workspaces)
    plan.results(gpu, caller, args, kwargs)     # [VirtualTensor, VirtualTensor, None]: `convolution_backward`

Note [Sums of gradients]
    Since PyTorch 2.0, autograd adds gradients in place if nothing else owns the first gradient (input_buffer.cpp in
    torch/csrc/autograd). For tensor subclasses, autograd calls `add` instead. The result of this `add` therefore takes over the
    memory of the first gradient, unless the recording was made with an older release.
    The backward functions of `var_mean` and `std_mean` add two temporary tensors. The sum of these gets memory of its own. When
    autograd adds the function's result to another gradient, it has released the tensors that the function saved. With
    `retain_graph=True`, autograd keeps the saved tensors, so the replay's memory peak may be too high. Rare backward functions,
    for example those of matrix decompositions, also add temporary tensors. There, the replay's memory peak is too low.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import getrefcount

import torch
from torch.autograd.graph import increment_version

from replayer.gpu.virtual_gpu import VirtualGpu
from replayer.memory.scratch_memory import ScratchScope, use_scratch
from replayer.state import STATE
from replayer.tensor.allocation import (
    Allocation,
    allocate,
    allocation_of,
    assign_data,
    make,
    make_view,
    new_tensor,
    set_attributes,
    wrapper,
)
from replayer.tensor.device_args import report_failed_assert
from replayer.tensor.generators import is_random, numbers_drawn, philox_of
from replayer.tensor.plan import Constant, New, Outcome, OutcomeKind, Plan, Reshaped, Same, Several, View, argument_at
from replayer.tensor.planning.mixed_dtypes import Overlap, require_apart
from replayer.tensor.values.kernel_asserts import can_fail, failed_assert
from replayer.tensor.values.known_values import values_not_assumed
from replayer.tensor.values.value_rules import forget_written, value_rule
from replayer.timing.host_threads import Caller
from replayer.torch_types import Op, TorchAny
from traces.model.machine import DeviceProperties

Results = Callable[[TorchAny, TorchAny, TorchAny, TorchAny], TorchAny]
Workspaces = tuple[tuple[int, ...], ...]

_WITH_OWN_SUM = frozenset({"VarMeanBackward0", "StdMeanBackward0"})


def plan_results(
    plan: Plan,
    func: Op,
    workspaces: Workspaces,
    overlaps: tuple[Overlap, ...] = (),
    *,
    calls_product: bool = False,
    adds_in_place: bool = True,
) -> None:
    rule = value_rule(func, plan)
    written = tuple(at for at, listed in plan.writes if isinstance(at, int) and not listed)
    if rule is not None or len(written) < len(plan.writes):
        plan.written = ()
        plan.set_values = rule or (lambda made, args, kwargs: forget_written(plan, args, kwargs))
    elif written and torch.Tag.inplace_view not in func.tags:  # ops such as `t_` change only the shape
        plan.written = written
    _choose_results(plan, workspaces)
    if adds_in_place and func is torch.ops.aten.add.Tensor and plan.kind == OutcomeKind.NEW:
        plan.make_by(_sum(plan))
    before: list[Results] = [_advance_philox(plan.device, func)] if is_random(func) else []
    before += [_check_asserts(plan, func)] if can_fail(func) else []
    before += [lambda _gpu, _caller, args, kwargs: require_apart(overlaps, args, kwargs)] if overlaps else []
    before += [lambda _gpu, _caller, args, _kwargs: count_changes(args[0])] if counts_changes(func) else []
    before += [lambda gpu, caller, *_: gpu.blas.use(gpu.devices[plan.device].allocator, caller.stream)] if calls_product else []
    for prepare in before:  # the last function of this list runs first
        plan.make_by(_after(prepare, plan.results or _general(plan, workspaces)))


def _sum(plan: Plan) -> Results:
    meta, cls, current_node = plan.tensor_meta, plan.tensor_meta.wrapping[0], torch._C._current_autograd_node

    def results(gpu: VirtualGpu, caller: Caller, args: TorchAny, kwargs: TorchAny) -> TorchAny:
        node = current_node()
        if node is not None and type(args[0]) is type(args[1]) is cls and not torch.is_grad_enabled():
            owners = getrefcount(args[0]), args[0]._use_count(), getrefcount(args[0].allocation)
            # only autograd owns the tensor and its memory
            if owners == (3, 4, 2) and args[0].tensor_meta is meta and not _is_own_sum(node):
                block, args[0].allocation.block = args[0].allocation.block, None
                return make(meta, allocation_of(block))
        return new_tensor(meta, plan.size_bytes, gpu.devices[plan.device].allocator, caller.stream.number)

    return results


def _is_own_sum(node: TorchAny) -> bool:
    # see Note [Sums of gradients]
    try:
        return node.name() in _WITH_OWN_SUM and node._saved_self is not None
    except RuntimeError:  # the saved tensors are released
        return False


def counts_changes(func: Op) -> bool:
    """Return True if the in-place foreach op increments the tensors' version counters."""
    name, uncounted = func._schema.name, ("aten::_foreach_lerp_", "aten::_foreach_zero_")
    return name.startswith("aten::_foreach_") and name.endswith("_") and name not in uncounted


def count_changes(tensors: list[torch.Tensor]) -> None:
    require_writable(tensors)
    increment_version(tensors)


def require_writable(tensors: list[torch.Tensor]) -> None:
    """Raise PyTorch's error for an inference tensor outside inference mode (`VersionCounter::bump` in c10)."""
    if STATE.inference_mode_used and not torch.is_inference_mode_enabled():
        try:
            [tensor._version for tensor in tensors]
        except RuntimeError:
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone to get a normal"
                " tensor before doing inplace update.See https://github.com/pytorch/rfcs/pull/17 for more details."
            ) from None


def _after(prepare: Results, make_results: Results) -> Results:
    def results(gpu: VirtualGpu, caller: Caller, args: TorchAny, kwargs: TorchAny) -> TorchAny:
        prepare(gpu, caller, args, kwargs)
        return make_results(gpu, caller, args, kwargs)

    return results


def _choose_results(plan: Plan, workspaces: Workspaces) -> None:
    if plan.kind != OutcomeKind.OTHER and not workspaces:
        return
    outputs = _new_tensors(plan.outcome)
    if outputs is None or plan.reshaped or not all(map(_freed_at_once, workspaces)):
        plan.make_by(_general(plan, workspaces))
    elif workspaces:
        plan.make_by(_new_with_workspaces(plan, outputs, workspaces))
    else:
        plan.make_by(_several_new(plan.device, outputs))


def _advance_philox(device: int, func: Op) -> Results:
    known: tuple[DeviceProperties | None, int] = None, 0

    def advance(gpu: VirtualGpu, caller: Caller, args: TorchAny, kwargs: TorchAny) -> None:
        nonlocal known
        properties = gpu.devices[device].properties
        if known[0] is not properties:
            known = properties, numbers_drawn(func, args, properties)
        philox, numbers = philox_of(args, kwargs, device), known[1]
        capture = gpu.launches.capture_of(caller.stream) if STATE.capturing else None
        if capture is None:
            philox.advance(numbers)
        else:
            philox.use_in(capture)
            capture.add_computation(partial(philox.advance, numbers))

    return advance


def _check_asserts(plan: Plan, func: Op) -> Results:
    set_values, failed_now = plan.set_values, [False]

    def set_values_unless_failed(made: TorchAny, args: TorchAny, kwargs: TorchAny) -> None:
        if failed_now[0]:
            forget_written(plan, args, kwargs)
        elif set_values is not None:
            set_values(made, args, kwargs)

    if set_values is not None:
        plan.set_values = set_values_unless_failed

    def check(_gpu: VirtualGpu, _caller: Caller, args: TorchAny, _kwargs: TorchAny) -> None:
        failed = failed_assert(func, args, values_not_assumed)
        failed_now[0] = failed is not None
        if failed is not None:
            report_failed_assert(failed[1])

    return check


def _new_tensors(outcome: Outcome) -> tuple[New | None, ...] | None:
    if isinstance(outcome, New):
        return (outcome,)
    if not isinstance(outcome, Several):
        return None
    if not all(isinstance(part, New) or (isinstance(part, Constant) and part.value is None) for part in outcome.parts):
        return None
    return tuple(part if isinstance(part, New) else None for part in outcome.parts)


def _freed_at_once(sizes: tuple[int, ...]) -> bool:
    return len(sizes) % 2 == 0 and all(taken == -freed for taken, freed in zip(sizes[::2], sizes[1::2], strict=True))


def _several_new(device: int, outputs: tuple[New | None, ...]) -> Results:
    new = [one for one in outputs if one is not None]
    metas, sizes_bytes = [one.tensor_meta for one in new], [one.size_bytes for one in new]
    none_at = [at for at, one in enumerate(outputs) if one is None]

    def results(gpu: VirtualGpu, caller: Caller, args: TorchAny, kwargs: TorchAny) -> list[TorchAny]:
        blocks = gpu.devices[device].allocator.malloc_several(sizes_bytes, caller.stream.number)
        made: list[TorchAny] = []
        for block in blocks:
            meta = metas[len(made)]
            allocation = Allocation()
            allocation.block = block
            allocation.known = None
            tensor = wrapper(*meta.wrapping)
            set_attributes(tensor, {"tensor_meta": meta, "allocation": allocation})
            made.append(tensor)
        for at in none_at:
            made.insert(at, None)
        return made

    return results


def _new_with_workspaces(plan: Plan, outputs: tuple[New | None, ...], workspaces: Workspaces) -> Results:
    device, op, only_one = plan.device, plan.signature.op, isinstance(plan.outcome, New)
    sizes = (taken[::2] for taken in workspaces)
    before = [next(sizes, ()), *[() if new is None else next(sizes, ()) for new in outputs]]
    *between, after = before
    steps = tuple(zip(between, outputs, strict=True))
    last = (*after, *(size for rest in sizes for size in rest))

    def results(gpu: VirtualGpu, caller: Caller, args: TorchAny, kwargs: TorchAny) -> TorchAny:
        allocator, stream = gpu.devices[device].allocator, caller.stream.number
        made: list[TorchAny] = []
        for needed, new in steps:
            for size_bytes in needed:
                use_scratch(allocator, stream, op, size_bytes)
            made.append(None if new is None else new_tensor(new[0], new[1], allocator, stream))
        for size_bytes in last:
            use_scratch(allocator, stream, op, size_bytes)
        return made[0] if only_one else made

    return results


def _general(plan: Plan, workspaces: Workspaces) -> Results:
    device, outcome, op = plan.device, plan.outcome, plan.signature.op

    def results(gpu: VirtualGpu, caller: Caller, args: TorchAny, kwargs: TorchAny) -> TorchAny:
        for change in plan.reshaped:
            _reshape(gpu, change, args, kwargs)
        if not workspaces:
            return _build(outcome, gpu, device, args, kwargs, None)
        scratch = ScratchScope(gpu.devices[device].allocator, caller.stream.number, op, workspaces)
        try:
            scratch.after_output()
            result = _build(outcome, gpu, device, args, kwargs, scratch)
            scratch.end()
        finally:
            scratch.close()
        return result

    return results


def _build(
    outcome: TorchAny, gpu: VirtualGpu, device: int, args: TorchAny, kwargs: TorchAny, scratch: ScratchScope | None
) -> TorchAny:
    kind = type(outcome)
    if kind is New:
        made = make(outcome.tensor_meta, allocate(gpu, device, outcome.size_bytes))
        if scratch is not None:
            scratch.after_output()
        return made
    if kind is View:
        return make_view(outcome.tensor_meta, argument_at(outcome.of, args, kwargs))
    if kind is Same:
        return argument_at(outcome.of, args, kwargs)
    if kind is Constant:
        return outcome.value
    return [_build(part, gpu, device, args, kwargs, scratch) for part in outcome.parts]


def _reshape(gpu: VirtualGpu, change: Reshaped, args: TorchAny, kwargs: TorchAny) -> None:
    tensor = argument_at(change.of, args, kwargs)
    if change.rebound is not None:
        allocation = argument_at(change.rebound, args, kwargs).allocation
    elif change.size_bytes > tensor.allocation.size_bytes:
        allocation = allocate(gpu, change.tensor_meta.index, change.size_bytes)
    else:
        allocation = tensor.allocation
    assign_data(tensor, change.tensor_meta, allocation)
