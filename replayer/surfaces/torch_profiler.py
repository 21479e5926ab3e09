"""torch.profiler and torch.autograd.profiler under replay: they profile the host, as on a machine without GPU.

    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        step()                  # host ops and ranges; the device's timeline is in the replay's own trace

Both profilers start one class, `torch.autograd.profiler.profile`, which is made to leave the device out; otherwise it
would call into CUPTI or CUDA events that are not there. Leaving it waits for the device, as it does on a GPU.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from traces.patching import patch


def install(torch_module: ModuleType) -> None:
    """Wrap the construction and the end of a profile."""
    cls: Any = torch_module.autograd.profiler.profile
    init, leave = cls.__init__, cls.__exit__

    @wraps(init)
    def init_without_device(self: Any, enabled: bool = True, **options: Any) -> None:
        asked = options.pop("use_cuda", False) or options.get("use_device") == "cuda"
        if asked:
            options |= {"use_device": None, "use_cpu": True}
        init(self, enabled, **options)
        self.waits_for_device = asked

    @wraps(leave)
    def leave_after_device(self: Any, *error: Any) -> Any:
        if self.waits_for_device and self.enabled:
            torch_module.cuda.synchronize()
        return leave(self, *error)

    patch(cls, __init__=init_without_device, __exit__=leave_after_device)
