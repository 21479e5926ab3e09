"""torch.profiler and torch.autograd.profiler under replay: Kineto profiles the host, and the virtual GPU is added to it.

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        step()
    prof.key_averages().table(sort_by="cuda_time_total")    # with the kernels of the replay
    prof.export_chrome_trace("step.json")                   # kernels, streams, launches and memory events too

Both profilers start one class, `torch.autograd.profiler.profile`, which is made to leave the device out; otherwise it
would call into CUPTI or CUDA events that are not there. Leaving it waits for the device, as it does on a GPU.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections import defaultdict
from functools import wraps
from types import ModuleType
from typing import Any

from replayer.state import gpu, started
from replayer.timing.clock import machine_unix_ns
from replayer.timing.profile_window import OUR_DISPATCH, launched, merged
from traces.model import NONE
from traces.patching import patch


def install(torch_module: ModuleType) -> None:
    """Wrap the construction, the start and the end of a profile, and what is made of it."""
    cls: Any = torch_module.autograd.profiler.profile
    init, start, leave, export = cls.__init__, cls._start_trace, cls.__exit__, cls.export_chrome_trace
    parse = cls._parse_kineto_results

    @wraps(init)
    def init_without_device(self: Any, enabled: bool = True, **options: Any) -> None:
        asked = options.pop("use_cuda", False) or options.get("use_device") == "cuda"
        if asked:
            options |= {"use_device": None, "use_cpu": True}
        init(self, enabled, **options)
        self.waits_for_device = asked
        self.gpu_window = None
        self.gpu_ends = []  # of the window: this machine's Unix time and recorded time, ns

    @wraps(start)
    def start_and_watch(self: Any) -> None:
        start(self)
        if self.waits_for_device and self.enabled:
            gpu().watch()
            self.gpu_ends = [(machine_unix_ns(), gpu().host_now_ns())]

    @wraps(leave)
    def leave_after_device(self: Any, *error: Any) -> Any:
        if self.waits_for_device and self.enabled:
            torch_module.cuda.synchronize()
            self.gpu_ends.append((machine_unix_ns(), gpu().host_now_ns()))
            self.gpu_window = gpu().watched()
            self.gpu_shift_ns = time.time_ns() - gpu().clock.now_ns()
        return leave(self, *error)

    @wraps(parse)
    def parse_with_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        events = parse(self, *args, **kwargs)
        if self.gpu_window is not None:
            self.use_device = "cuda"  # of the table that is made of them
            _add_kernels(torch_module, events, self.gpu_window)
        events[:] = [one for one in events if not one.name.startswith(OUR_DISPATCH)]
        return events

    @wraps(export)
    def export_with_device(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = export(self, path, *args, **kwargs)
        if self.gpu_window is not None and started() is not None:
            with open(path, encoding="utf-8") as file:
                kineto = json.load(file)
            told = merged(kineto, copy.deepcopy(self.gpu_window), self.gpu_shift_ns, self.gpu_ends)
            if not self.record_shapes:
                for event in told["traceEvents"]:
                    for shown in ("Input Dims", "Input type"):
                        event.get("args", {}).pop(shown, None)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(told, file)
        return result

    activity = torch_module.profiler.ProfilerActivity
    what_is_there = {"supported_activities": lambda: {activity.CPU, activity.CUDA}}  # what a profile without a choice sees
    patch(torch_module.profiler, **what_is_there)
    patch(torch_module.profiler.profiler, **what_is_there)
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # builds with CUDA tell at each profile that there is no driver
    patch(
        cls,
        __init__=init_without_device,
        _start_trace=start_and_watch,
        __exit__=leave_after_device,
        _parse_kineto_results=parse_with_device,
        export_chrome_trace=export_with_device,
    )


def _add_kernels(torch_module: Any, events: list[Any], window: Any) -> None:
    """Give the ops among torch's function events their kernels, and add these as events of the device.

    Which op is which: the k-th of its name. Ops that Kineto does not know are added too.
    """
    util: Any = torch_module.autograd.profiler_util
    device_type = torch_module._C._autograd.DeviceType
    known, made = defaultdict(list), list[Any]()
    for one in events:
        one.use_device = "cuda"
        known[one.name].append(one)

    def event(name: str, thread: int, start_ns: int, took_ns: int, **of_device: Any) -> Any:
        known = {"input_shapes": [], "stack": [], "concrete_inputs": [], "kwinputs": {}, "use_device": "cuda"}
        times_us = start_ns / 1000, (start_ns + took_ns) / 1000
        made.append(util.FunctionEvent(len(events) + len(made), name, thread, *times_us, **known, **of_device))
        return made[-1]

    seen: dict[str, int] = defaultdict(int)
    for thread, name, start_ns, kernels in launched(window):
        turn, seen[name] = seen[name], seen[name] + 1
        of_name = known.get(name, [])
        op = of_name[turn] if turn < len(of_name) else None
        if op is None and thread != NONE:
            op = event(name, thread, start_ns, 0)
        for kernel, device, began_ns, took_ns in kernels:
            if op is not None:
                op.append_kernel(kernel, device, took_ns / 1000)
            event(kernel, device, began_ns, took_ns, device_type=device_type.CUDA, device_index=device)
    events += made
