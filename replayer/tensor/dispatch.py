"""Runs PyTorch ops on virtual tensors.

    dispatch, run = dispatcher(plans)
    VirtualTensor.__torch_dispatch__ = staticmethod(dispatch)

`dispatch` is one long function, because calls of smaller functions would slow down each op.

Note [Tensors of a failed op]
    A script may handle an out-of-memory error by running its model with a smaller batch. The traceback of the error contains
    the frames of our functions. PyTorch frees inputs that the script no longer uses, such as gradients. The frames of our
    functions must therefore hold no references to the inputs of the failed op.
"""

from __future__ import annotations

from traceback import clear_frames

import torch

from replayer import state
from replayer.memory.device.oom import OutOfMemory
from replayer.state import STATE
from replayer.tensor.allocation import Allocation, detach, make_view, set_attributes, wrapper
from replayer.tensor.plan import OutcomeKind
from replayer.tensor.planning.plan_cache import PlanCache
from replayer.tensor.planning.shape_inference import run_elsewhere
from replayer.tensor.values.value_rules import forget_at_replays
from replayer.torch_types import TorchAny, TorchFunction

Dispatch = TorchFunction


def dispatcher(plans: PlanCache) -> tuple[Dispatch, Dispatch]:
    routes = plans.routes
    wrap = wrapper
    detach_op = torch.ops.aten.detach.default
    new, same, view = int(OutcomeKind.NEW), int(OutcomeKind.SAME), int(OutcomeKind.VIEW)

    def dispatch(
        func: TorchAny, types: TorchAny, args: TorchAny = (), kwargs: TorchAny = None, ignore_handler: bool = False
    ) -> TorchAny:
        if func is detach_op:  # autograd detaches every saved output and gradient
            source = args[0]
            meta = source.tensor_meta
            if STATE.inference_mode_used:
                return detach(source)
            made: TorchAny = wrap(*meta.wrapping)
            set_attributes(made, {"tensor_meta": meta, "allocation": source.allocation})
            return made
        if STATE.check_inputs is not None:
            STATE.check_inputs(func, args, kwargs)
        try:
            route = routes[id(func)]
        except KeyError:
            route = plans.route(func)
        if route.special is not None and not ignore_handler:
            return route.special(*args, **kwargs)
        gpu = STATE.gpu or state.gpu()
        plan = route.finders[len(args)](args, kwargs)
        if plan is None:
            if len(types) > 1 and not all(issubclass(each, plans.tensor_class) for each in types):
                return NotImplemented
            if kwargs and plans.leaves_device(kwargs):
                return run_elsewhere(plans.tensor_class, route.func, args, kwargs)
            plan = plans.learn(route, args, kwargs, gpu)
        kind = plan.kind
        result: TorchAny
        if kind == view:
            meta = plan.tensor_meta
            if STATE.inference_mode_used:
                return make_view(meta, args[plan.at])
            result = wrap(*meta.wrapping)
            set_attributes(result, {"tensor_meta": meta, "allocation": args[plan.at].allocation})
            return result
        device = plan.device
        try:
            caller = gpu.current.local.callers[device]
        except (AttributeError, KeyError):
            caller = gpu.current.caller(device)
        try:
            if kind == new:
                block = gpu.devices[device].allocator.malloc(plan.size_bytes, caller.stream.number)
                allocation = Allocation()
                allocation.block = block
                allocation.known = None
                meta = plan.tensor_meta
                result = wrap(*meta.wrapping)
                set_attributes(result, {"tensor_meta": meta, "allocation": allocation})
            elif kind == same:
                result = args[plan.at]
            else:
                result = plan.results(gpu, caller, args, kwargs)
        except (OutOfMemory, torch.OutOfMemoryError) as full:  # see Note [Tensors of a failed op]
            clear_frames(full.__traceback__)
            args = kwargs = None
            raise (full.to_torch() if isinstance(full, OutOfMemory) else full) from None
        written = plan.written
        if written is not None:
            if STATE.capturing:
                forget_at_replays(plan, args, kwargs, caller.stream)
            else:
                for at in written:
                    args[at].allocation.known = None
                if plan.set_values is not None:
                    plan.set_values(result, args, kwargs)
        signature = plan.signature
        if signature.launches:
            gpu.launches.launch_by(caller, signature)
        return result

    def run(func: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        return dispatch(func, (), args, kwargs, ignore_handler=True)

    return dispatch, run
