"""One op on virtual tensors: look its plan up, allocate what is new, hand its kernels to the virtual GPU.

This is the hot path: it runs some 700 times per training step of a ResNet-50, and every microsecond in it is a
microsecond that the replaying host lags behind. So it is one flat function over local names.

    dispatch, run = dispatcher(plans)
    VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)

Note [A dictionary at once]
    C++ makes a tensor without its dictionary. Setting two attributes would make one that shares its keys with those of other
    tensors, and the interpreter has no short way to read from such a one: 33 ns a look instead of 10, three looks per op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from replayer import state
from replayer.memory.oom import OutOfMemory
from replayer.memory.workspaces import ScratchScope, use_scratch
from replayer.state import _STATE
from replayer.tensor.allocation import Allocation, allocate, hold
from replayer.tensor.known_values import fold
from replayer.tensor.plan import Constant, Kind, New, Plan, Reshaped, Same, View, Where
from replayer.tensor.plan_cache import PlanCache
from replayer.tensor.tensor_meta import TensorMeta

if TYPE_CHECKING:
    from replayer.gpu import VirtualGpu

Dispatch = Callable[..., Any]
Run = Callable[[Any, Any, Any], Any]


def make(meta: TensorMeta, allocation: Allocation) -> Any:
    """A virtual tensor of a look on an allocation."""
    made: Any = torch.Tensor._make_wrapper_subclass(*meta.wrapping)
    # Note [A dictionary at once], here and below
    made.__dict__ = {"meta": meta, "allocation": allocation}
    return made


def dispatcher(plans: PlanCache) -> tuple[Dispatch, Run]:
    """The `__torch_dispatch__` of virtual tensors, and the same for one route without its special handler (`plainly`)."""
    routes = plans.routes
    wrap = torch.Tensor._make_wrapper_subclass
    detach = torch.ops.aten.detach.default
    new, news, same, view, lent = int(Kind.NEW), int(Kind.NEWS), int(Kind.SAME), int(Kind.VIEW), int(Kind.LENT)

    def dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None, plainly: bool = False) -> Any:
        if func is detach:  # autograd detaches each output that it saves, and each gradient
            source = args[0]
            meta = source.meta
            made: Any = wrap(*meta.wrapping)
            made.__dict__ = {"meta": meta, "allocation": source.allocation}
            return made
        route = routes.get(id(func))
        if route is None:
            route = plans.route(func)
        if route.special is not None and not plainly:
            return route.special(*args, **kwargs)
        gpu = _STATE.gpu or state.gpu()
        find = route.finders[len(args)]
        if find is None:
            find = route.finder(len(args))
        plan = find(args, kwargs)
        if plan is None:
            if kwargs and plans.leaves(kwargs):
                return plans.elsewhere(route.func, args, kwargs)
            plan = plans.learn(route, args, kwargs, gpu.current_device())
            plan.borrow(gpu.workspaces_of(plan.signature))
        device = plan.device
        kind = plan.kind
        result: Any
        if kind == new:
            meta = plan.meta
            try:
                block = gpu.devices[device].allocator.malloc(plan.size_bytes, gpu.current_stream(device).number)
            except OutOfMemory as full:
                raise full.to_torch() from None
            result = wrap(*meta.wrapping)
            result.__dict__ = {"meta": meta, "allocation": hold(block)}
        elif kind == same:
            result = args[plan.at]
        elif kind == view:
            meta = plan.meta
            result = wrap(*meta.wrapping)
            result.__dict__ = {"meta": meta, "allocation": args[plan.at].allocation}
        elif kind == news:
            memory = gpu.devices[device].allocator
            stream = gpu.current_stream(device).number
            result = []
            for pair in plan.news:
                if pair is None:
                    result.append(None)
                    continue
                meta, size_bytes = pair
                try:
                    block = memory.malloc(size_bytes, stream)
                except OutOfMemory as full:
                    raise full.to_torch() from None
                made = wrap(*meta.wrapping)
                made.__dict__ = {"meta": meta, "allocation": hold(block)}
                result.append(made)
        elif kind == lent:
            result = lend(gpu, plan)
        else:
            if plan.reshaped:
                reshape(plan.reshaped, args, kwargs)
            result = with_workspaces(plan, args, kwargs) if plan.workspaces else build(plan.outcome, device, args, kwargs)
            if plan.folds:
                fold(route.func, result, args, kwargs)
        for at in plan.written:
            args[at].allocation.known = None
        if plan.writes_otherwise:
            forget(plan, args, kwargs)
        gpu.launch(plan.signature, device)
        return result

    def run(route: Any, args: Any, kwargs: Any) -> Any:
        return dispatch(route.func, (), args, kwargs, plainly=True)

    def lend(gpu: VirtualGpu, plan: Plan) -> Any:
        memory, stream, op = gpu.devices[plan.device].allocator, gpu.current_stream(plan.device).number, plan.signature.op
        results: list[Any] = []
        try:
            for sizes, pair in zip(plan.lends, plan.news, strict=False):
                for size_bytes in sizes:
                    use_scratch(memory, stream, op, size_bytes)
                if pair is None:
                    results.append(None)
                    continue
                meta, size_bytes = pair
                block = memory.malloc(size_bytes, stream)
                made: Any = wrap(*meta.wrapping)
                made.__dict__ = {"meta": meta, "allocation": hold(block)}
                results.append(made)
            for sizes in plan.lends[len(plan.news) :]:
                for size_bytes in sizes:
                    use_scratch(memory, stream, op, size_bytes)
        except OutOfMemory as full:
            raise full.to_torch() from None
        return results if plan.meta is None else results[0]

    def with_workspaces(plan: Plan, args: Any, kwargs: Any) -> Any:
        gpu, device = state.gpu(), plan.device
        scratch = ScratchScope(
            gpu.devices[device].allocator, gpu.current_stream(device).number, plan.signature.op, plan.workspaces
        )
        try:
            scratch.after_output()
            result = build(plan.outcome, device, args, kwargs, scratch)
            scratch.end()
        except OutOfMemory as full:
            raise full.to_torch() from None
        finally:
            scratch.close()
        return result

    def build(outcome: Any, device: int, args: Any, kwargs: Any, scratch: ScratchScope | None = None) -> Any:
        kind = type(outcome)
        if kind is New:
            made = make(outcome.meta, allocate(state.gpu(), device, outcome.size_bytes))
            if scratch is not None:
                scratch.after_output()
            return made
        if kind is View:
            return make(outcome.meta, pick(outcome.of, args, kwargs).allocation)
        if kind is Same:
            return pick(outcome.of, args, kwargs)
        if kind is Constant:
            return outcome.value
        return [build(part, device, args, kwargs, scratch) for part in outcome.parts]

    def reshape(changes: tuple[Reshaped, ...], args: Any, kwargs: Any) -> None:
        for change in changes:
            tensor = pick(change.of, args, kwargs)
            if change.rebound is not None:
                allocation = pick(change.rebound, args, kwargs).allocation
            elif change.size_bytes > tensor.allocation.size_bytes:
                allocation = allocate(state.gpu(), change.meta.index, change.size_bytes)
            else:
                allocation = tensor.allocation
            adopt(tensor, make(change.meta, allocation))

    return dispatch, run


_set_data = torch._C.TensorBase.data.__set__  # type: ignore[attr-defined]


def adopt(tensor: Any, other: Any) -> None:
    """Give `tensor` the look and the memory of `other`, both virtual."""
    _set_data(tensor, other)
    tensor.meta = other.meta
    tensor.allocation = other.allocation


def pick(where: Where, args: Any, kwargs: Any) -> Any:
    """The argument at `where`."""
    name, index = where
    value = kwargs[name] if type(name) is str else args[name]
    return value if index < 0 else value[index]


def forget(plan: Plan, args: Any, kwargs: Any) -> None:
    """What the host knew of the arguments that were written into no longer holds: those in lists or given by name."""
    for name, listed in plan.writes_otherwise:
        value = kwargs[name] if type(name) is str else args[name]
        if listed:
            for tensor in value:
                tensor.allocation.known = None
        else:
            value.allocation.known = None
