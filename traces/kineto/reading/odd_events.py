"""Converts profiler events from other tools to the form that PyTorch's profiler writes.

    with_category({"name": "aten::mm", "args": {}})       # "cpu_op" and the event, as only names of ops begin with "aten::"
    joined_begin_and_end([begin, end], stamps_per_us=1)               # ({"cpu_op": [complete event]}, unpaired events)
"""

from __future__ import annotations

import re
from collections import defaultdict
from operator import itemgetter

from traces.names.profiler_json import ProfilerJson

_CALL = re.compile(r"(?:cuda|hip|cu)[A-Z]\w*$")
_OP = re.compile(r"(?:aten|c10d|c10d_functional|_c10d_functional|torchvision|autograd::engine|torch::autograd)::")
_STEP = re.compile(r"ProfilerStep#\d+$")
_AUTOGRAD = "CPU functions"  # torch.autograd.profiler without Kineto writes no categories
_NPU_STREAMS = ("Physic Stream Id", "Stream Id")
_NPU_CALL = re.compile(r"\w+@\w+")  # such as AscendCL@aclrtMemcpyAsync
_NPU_WAITS, _NPU_COPIES = ("EVENT", "NOTIFY", "WAIT"), ("MEMCPY", "SDMA")
_COPIES = {"Memcpy ": "gpu_memcpy", "Memset ": "gpu_memset"}


def with_category(event: ProfilerJson) -> tuple[str, ProfilerJson]:
    """Guess the category of an event, because the profiler of Huawei's NPUs (torch_npu) writes no categories. The returned
    event has Kineto's argument names. On an NPU, a GPU event and the runtime call that launched it have the same
    "connection_id"."""
    args = args_of(event)
    kind, stream = args.get("Task Type"), next((args[key] for key in _NPU_STREAMS if key in args), None)
    if isinstance(kind, str) and stream is not None:
        words = kind.upper()
        category = "cuda_sync" if any(word in words for word in _NPU_WAITS) else "kernel"
        category = "gpu_memcpy" if any(word in words for word in _NPU_COPIES) else category
        kept = {"device": 0, "stream": stream, "correlation": args.get("connection_id", 0)}
        return category, {**event, "args": kept}
    if "connection_id" in args and isinstance(event.get("name"), str) and _NPU_CALL.match(event["name"]):
        return "cuda_runtime", {**event, "args": {"correlation": args["connection_id"]}}
    return category_of(event), event


def category_of(event: ProfilerJson) -> str:
    """Guess the category of an event from its name and arguments. Return "" if nothing fits."""
    name, args = event.get("name"), args_of(event)
    if not isinstance(name, str):
        return ""
    if event.get("pid") == _AUTOGRAD:
        return "Operator"
    if type(args.get("device")) is int and type(args.get("stream")) is int and "correlation" in args:
        if "grid" in args and "block" in args:
            return "kernel"
        return next((category for begin, category in _COPIES.items() if name.startswith(begin)), "")
    if _CALL.match(name) and "correlation" in args:
        return "cuda_runtime"
    if "Python id" in args:
        return "python_function"
    if _STEP.match(name):
        return "user_annotation"
    return "cpu_op" if _OP.match(name) else ""


def joined_begin_and_end(events: list[ProfilerJson], stamps_per_us: int) -> tuple[dict[str, list[ProfilerJson]], int]:
    """Join begin events ("B") and end events ("E") into complete events ("X")."""
    spans: defaultdict[str, list[ProfilerJson]] = defaultdict(list)
    opened: defaultdict[tuple[str, str], list[ProfilerJson]] = defaultdict(list)
    usable = [event for event in events if type(event.get("ts")) in (int, float)]
    unpaired = len(events) - len(usable)
    for event in sorted(usable, key=itemgetter("ts")):
        thread = opened[repr(event.get("pid")), repr(event.get("tid"))]
        if event["ph"] == "B":
            thread.append(event)
        elif thread:
            begin = thread.pop(_place_of_begin(thread, event))
            span: ProfilerJson = {**event, **begin, "ph": "X", "dur": (event["ts"] - begin["ts"]) / stamps_per_us}
            span["args"] = {**args_of(begin), **args_of(event)}
            category = span.get("cat")
            spans[category if isinstance(category, str) else category_of(span)].append(span)
        else:
            unpaired += 1
    return dict(spans), unpaired + sum(map(len, opened.values()))


def _place_of_begin(opened: list[ProfilerJson], end: ProfilerJson) -> int:
    named = [place for place, begin in enumerate(opened) if begin.get("name") == end.get("name")]
    if named:
        return named[-1]
    last = [place for place, begin in enumerate(opened) if begin["ts"] == opened[-1]["ts"]]
    return next((place for place in last if "correlation" in args_of(opened[place])), last[-1])


def args_of(event: ProfilerJson) -> ProfilerJson:
    args = event.get("args")
    return args if isinstance(args, dict) else {}
