"""Emulates the memory snapshots and the allocation history of torch.cuda.memory.

    torch.cuda.memory._record_memory_history()
    train()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")    # for pytorch.org/memory_viz, or torch/cuda/_memory_viz.py
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType

from replayer.errors import NotEmulated, require
from replayer.memory.device.history import ACTIONS, History, StackFrame
from replayer.memory.device.settings import VARIABLES
from replayer.memory.device.snapshot import settings_dict
from replayer.state import gpu
from replayer.torch_types import TorchAny
from traces.script.patching import patch


def record_history(
    enabled: str | None,
    context: str | None,
    stacks: str,
    max_entries: int,
    clear_history: bool,
    compile_context: bool,
    global_record_annotations: bool,
    skip_actions: Sequence[str] = (),
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """Start to record memory events, or stop if `enabled` is None. Raise PyTorch's RuntimeError for invalid arguments."""
    if record_pinned_host_memory:
        raise NotEmulated("_record_memory_history(record_pinned_host_memory=True)", "leave out this argument")
    _expect("enabled", enabled, (None, "state", "all"))
    _expect("context", context, (None, "state", "alloc", "all"))
    _expect("stacks", stacks, ("python", "all"))
    for action in skip_actions:
        _expect("skip_actions", action, tuple(sorted(ACTIONS)))
    most = max(max_entries, 1) if enabled == "all" else 1
    for device in gpu().devices:
        memory = device.memory
        if enabled is None or not record_cuda:
            memory.history = None
            device.allocator.report_frees(None)
            continue
        made = History(context, most, frozenset(skip_actions))
        if memory.history is not None:
            made.carry_on(memory.history, with_entries=not clear_history)
        memory.history = made
        device.allocator.report_frees(made.free_queued if context == "all" else None)


def record_history_legacy(
    enabled: bool,
    record_context: bool,
    trace_alloc_max_entries: int,
    trace_alloc_record_context: bool,
    record_context_cpp: bool,
    clear_history: bool,
    compile_context: bool,
    global_record_annotations: bool,
    skip_actions: Sequence[str] = (),
    *recorded: bool,
) -> None:
    context = ("alloc" if trace_alloc_record_context else "state") if record_context else None
    most = trace_alloc_max_entries
    record_history("all" if enabled else None, context, "python", most, clear_history, False, False, skip_actions, *recorded)


def _expect(name: str, value: object, words: tuple[object, ...]) -> None:
    require(value in words, f"expected {name} to be {', '.join(map(repr, words))}; got {value!r}")


def snapshot(wanted: tuple[TorchAny, ...] | None = None) -> dict[str, TorchAny]:
    devices = gpu().devices
    for device in devices:
        if device.memory.history is not None:
            device.memory.history.snapshot()
    histories = [device.memory.history for device in devices] if wanted is None or wanted[-1] else []
    pool = (0, 0) if wanted is None else tuple(wanted[:2])
    text = next((os.environ[name] for name in VARIABLES if name in os.environ), "")
    return {
        "segments": [
            segment
            for device in devices
            for segment in device.memory.snapshot()
            if pool in ((0, 0), segment["segment_pool_id"])
        ],
        "device_traces": [list(history.entries) if history is not None else [] for history in histories],
        "allocator_settings": settings_dict(devices[0].memory.settings, text),
        "external_annotations": [],
    }


def allocation_traceback(address: int) -> list[StackFrame] | None:
    for device in gpu().devices:
        if device.memory.history is not None and (frames := device.memory.history.frames_at(address)):
            return frames
    return None


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], None]) -> None:
    for device in gpu().devices:
        device.memory.oom_observers.append(observer)


def set_metadata(text: str) -> None:
    for device in gpu().devices:
        if device.memory.history is not None:
            device.memory.history.metadata = text


def get_metadata() -> str:
    history = gpu().devices[gpu().current.device()].memory.history
    return history.metadata if history is not None else ""


def install(torch_module: ModuleType) -> None:
    patch(
        torch_module._C,
        _cuda_memorySnapshot=snapshot,
        _cuda_record_memory_history=record_history,
        _cuda_record_memory_history_legacy=record_history_legacy,
        _cuda_allocationTraceback=allocation_traceback,
        _cuda_attach_out_of_memory_observer=attach_out_of_memory_observer,
        _cuda_setMemoryMetadata=set_metadata,
        _cuda_getMemoryMetadata=get_metadata,
    )
