"""Adds the virtual GPU's kernels and memory to profiles of torch.profiler.

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        step()
    prof.key_averages().table(sort_by="cuda_time_total")    # with the kernels of the replay
    prof.export_chrome_trace("step.json")                   # kernels, streams, launches and memory events too

The host waits for the GPU when a profile ends, as in PyTorch.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from types import ModuleType

import numpy as np

from replayer.errors import NotEmulated
from replayer.state import gpu, started
from replayer.timing.clock import machine_unix_ns
from replayer.timing.timeline.profile_window import OUR_DISPATCH, WindowOp, nesting_of, window_ops, with_virtual_gpu
from replayer.torch_types import TorchAny
from traces.kineto.spans.python_calls import scripts_calls
from traces.model.trace import NONE, Column
from traces.script.patching import patch, patch_around, patch_item

_MEMORY_ADVICE = "use torch.cuda.memory._record_memory_history, or trace view of the replay"


def install(torch_module: ModuleType) -> None:
    cls: TorchAny = torch_module.autograd.profiler.profile

    def init_without_device(init: TorchAny, self: TorchAny, enabled: bool = True, **options: TorchAny) -> None:
        uses_cuda = options.pop("use_cuda", False) or options.get("use_device") == "cuda"
        if uses_cuda:
            options |= {"use_device": None, "use_cpu": True}
        init(self, enabled, **options)
        self.waits_for_device = uses_cuda
        self.gpu_window = None
        self.gpu_ends = []

    def start_and_watch(start: TorchAny, self: TorchAny) -> None:
        start(self)
        if self.waits_for_device and self.enabled:
            gpu().profile.watch()
            self.gpu_ends = [(machine_unix_ns(), gpu().streams.host_now_ns())]

    def leave_after_device(leave: TorchAny, self: TorchAny, *error: TorchAny) -> TorchAny:
        if self.waits_for_device and self.enabled:
            torch_module.cuda.synchronize()
            self.gpu_ends.append((machine_unix_ns(), gpu().streams.host_now_ns()))
            self.gpu_window, self.gpu_next_ops = gpu().profile.watched()
            self.gpu_loader_waits = gpu().profile.loader_waits
            self.gpu_shift_ns = time.time_ns() - gpu().clock.now_ns()
        return leave(self, *error)

    def parse_with_device(parse: TorchAny, self: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        events = parse(self, *args, **kwargs)
        if self.gpu_window is not None:
            self.use_device = "cuda"
            events[:] = _scripts_events(events)
            device_events = window_ops(self.gpu_window, self.gpu_next_ops)
            _add_device(torch_module, events, device_events, self.gpu_ends[0][1], profile_memory=self.profile_memory)
        return events

    def export_with_device(export: TorchAny, self: TorchAny, path: TorchAny, *args: TorchAny, **kwargs: TorchAny) -> TorchAny:
        result = export(self, path, *args, **kwargs)
        if self.gpu_window is not None and started() is not None:
            with open(path, encoding="utf-8") as file:
                kineto = json.load(file)
            window = copy.deepcopy(self.gpu_window)
            merged_profile = with_virtual_gpu(kineto, window, self.gpu_shift_ns, self.gpu_ends, self.gpu_loader_waits)
            if not self.record_shapes:
                for event in merged_profile["traceEvents"]:
                    for shown in ("Input Dims", "Input type"):
                        event.get("args", {}).pop(shown, None)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(merged_profile, file)
        return result

    def export_host_memory(export_memory: TorchAny, self: TorchAny, path: TorchAny, device: str | None = None) -> None:
        if getattr(self.profiler, "gpu_window", None) is not None and device != "cpu":
            raise NotEmulated("torch.profiler.profile.export_memory_timeline", _MEMORY_ADVICE)
        export_memory(self, path, device)

    patch_around(torch_module.profiler.profile, export_memory_timeline=export_host_memory)
    activity = torch_module.profiler.ProfilerActivity
    what_is_there = {"supported_activities": lambda: {activity.CPU, activity.CUDA}}
    patch(torch_module.profiler, **what_is_there)
    patch(torch_module.profiler.profiler, **what_is_there)
    # this log level hides an error about the missing CUDA driver
    patch_item(os.environ, "KINETO_LOG_LEVEL", os.environ.get("KINETO_LOG_LEVEL", "5"))
    patch_around(
        cls,
        __init__=init_without_device,
        _start_trace=start_and_watch,
        __exit__=leave_after_device,
        _parse_kineto_results=parse_with_device,
        export_chrome_trace=export_with_device,
    )


def _add_device(
    torch_module: TorchAny, events: list[TorchAny], ops: Iterable[WindowOp], begin_ns: int, *, profile_memory: bool
) -> None:
    """Add the virtual GPU's work to the events of a profile. Ops are matched by name and order."""
    util: TorchAny = torch_module.autograd.profiler_util
    device_type = torch_module._C._autograd.DeviceType
    known, made = defaultdict(list), list[TorchAny]()
    for one in events:
        one.use_device = "cuda"
        known[one.name].append(one)

    def event(name: str, thread: int, start_ns: int, took_ns: int, **of_device: TorchAny) -> TorchAny:
        known = {"input_shapes": [], "stack": [], "concrete_inputs": [], "kwinputs": {}, "use_device": "cuda"}
        times_us = (start_ns - begin_ns) / 1000, (start_ns - begin_ns + took_ns) / 1000
        made.append(util.FunctionEvent(len(events) + len(made), name, thread, *times_us, **known, **of_device))
        return made[-1]

    seen: dict[str, int] = defaultdict(int)
    allocated: dict[int, int] = {}
    kernels_of: dict[int, list[tuple[str, int, int, int, int]]] = {}
    for thread, name, start_ns, kernels, allocated_bytes in ops:
        turn, seen[name] = seen[name], seen[name] + 1
        of_name = known.get(name, [])
        op = of_name[turn] if turn < len(of_name) else None
        if op is None and thread != NONE:
            op = event(name, thread, start_ns, 0)
        if op is not None:
            allocated[id(op)], kernels_of[id(op)] = allocated_bytes, kernels
        elif allocated_bytes and profile_memory:
            allocated[id(event("[memory]", thread, start_ns, 0))] = allocated_bytes
        for kernel, device, _, began_ns, took_ns in kernels:
            if op is not None:
                op.append_kernel(kernel, device, took_ns / 1000)
            event(kernel, device, began_ns, took_ns, device_type=device_type.CUDA, device_index=device)
    calls, parent = _nested([one for one in events if one.device_type == device_type.CPU and not one.is_async])
    ranges: list[TorchAny] = []  # for each call, the innermost enclosing range
    spans_ns: dict[tuple[TorchAny, int, int], list[int]] = defaultdict(list)
    for one, outer in zip(calls, parent.tolist(), strict=True):
        ranges.append(one if one.is_user_annotation or outer == NONE else ranges[outer])
        for _, device, stream, began_ns, took_ns in kernels_of.get(id(one), ()):
            spans_ns[ranges[-1], device, stream] += began_ns, began_ns + took_ns
    for (one, device, _), ns in spans_ns.items():
        if one.is_user_annotation:
            on_gpu = {"device_type": device_type.CUDA, "device_index": device, "is_user_annotation": True}
            event(one.name, device, min(ns), max(ns) - min(ns), **on_gpu)
    events += made
    if profile_memory:
        for one in (*calls, *made):
            one.device_memory_usage = allocated.get(id(one), 0)
        for one, outer in reversed(list(zip(calls, parent.tolist(), strict=True))):
            if outer != NONE and id(calls[outer]) not in allocated:
                calls[outer].device_memory_usage += one.device_memory_usage


def _scripts_events(events: list[TorchAny]) -> list[TorchAny]:
    calls, parent = _nested([one for one in events if not one.is_async])
    goes = ~scripts_calls(parent, np.array(list(map(_is_python_function, calls)), bool), [one.name for one in calls])
    ours = np.zeros(len(calls) + 1, bool)
    for row, outer in enumerate(parent.tolist()):
        ours[row] = ours[outer] or calls[row].name.startswith(OUR_DISPATCH)
    goes |= ours[:-1]
    gone = {id(calls[row]) for row in np.flatnonzero(goes).tolist()}
    return [one for one in events if id(one) not in gone]


def _nested(events: list[TorchAny]) -> tuple[list[TorchAny], Column]:
    start_ns = np.array([round(event.time_range.start * 1000) for event in events])
    took_ns = np.array([round(event.time_range.end * 1000) for event in events]) - start_ns
    is_op = np.array([not _is_python_function(event) for event in events])
    order, parent = nesting_of([event.thread for event in events], start_ns, took_ns, is_op, np.arange(len(events)))
    return [events[row] for row in order.tolist()], parent


def _is_python_function(event: TorchAny) -> bool:
    return bool(getattr(event, "is_python_function", False))
