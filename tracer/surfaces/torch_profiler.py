"""Wraps torch.autograd.profiler. While the script's own profiler runs, the recorder does not start its profiler and makes no
CUDA calls.

    with torch.profiler.profile() as prof:      # ends the recorder's window if one is open
        ...                                     # the recorder records no events here
    SCRIPT_PROFILES.has_attached                # True: later steps have the kind StepKind.AFTER_PROFILE
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import SCRIPT_PROFILES, started
from traces.script.patching import patch_around


def install(torch: ModuleType) -> None:
    cls: Any = torch.autograd.profiler.profile

    def begin(begin: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = started()
        is_ours = recorder is not None and recorder.begins_profile
        if not is_ours:
            if recorder is not None:
                recorder.make_way_for_profile()
            SCRIPT_PROFILES.add(self)
        activities = getattr(self, "kineto_activities", ())  # a disabled profile does not have this attribute
        SCRIPT_PROFILES.has_attached |= torch.profiler.ProfilerActivity.CUDA in activities
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            SCRIPT_PROFILES.discard(self)
            raise

    def end(end: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            SCRIPT_PROFILES.discard(self)

    patch_around(cls, __enter__=begin, _prepare_trace=begin, __exit__=end)
