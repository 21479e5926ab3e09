"""Runs torch.profiler for a few training steps at a time, and writes one file for each profile.

    profiler = Profiler(torch, Path("train.msgpack.4711.profile.json"), events)
    profiler.begin_step(13, "prepare")      # attaches; the first step under the profiler is slow
    profiler.end_step(13); profiler.begin_step(14, "record")
    profiler.end_step(14); profiler.begin_step(15, "")      # ends the window and writes the file
    profiler.begin_step(40, "prepare")                      # next file: train.msgpack.4711.profile.2.json

Note [When a window begins and ends]
    When a profile ends, torch.profiler waits for the device without a time limit. The recorder therefore first waits for the
    device with a time limit. If the device does not finish in time, the profiler keeps running, and the profile is discarded.
    No profile begins or ends during the capture of a CUDA graph (device_access.py). PyTorch crashes if a thread ends another
    thread's profile, unless the profile is of all threads. If another thread trains when a window ends, the profile therefore
    ends at the end of the script.

Note [Profiles of the script]
    PyTorch prepares a profile some steps before the profile starts. A second profile that is prepared before the start replaces
    the settings of the first profile. The recorder therefore prepares no profile while the script prepares or records a
    profile. If the script prepares a profile while the recorder profiles, the recorder's profile ends.

Note [Steps after a profile]
    Kineto detaches CUPTI after a profile only if the environment variable TEARDOWN_CUPTI is 1 (libkineto,
    CuptiActivityApi::teardownContext and CuptiCallbackApi.cpp). Until the process ends, later CUDA calls are slower, by about
    10 to 20 % of a step (pytorch/pytorch#144455 and #146604). On an H200, a step of ResNet-50 took 28 ms before a profile and
    34 ms after a profile. Training steps after a profile therefore have the kind StepKind.AFTER_PROFILE, and medians leave
    these steps out (`steady_steps` in traces/figures/measure.py). The recorder does not set TEARDOWN_CUPTI, because CUPTI
    crashes with CUDA graphs after it was detached (torch/profiler/profiler.py).

Note [No context of the recorder's]
    A profile with device activities initializes CUDA. Child processes that are forked after this initialization cannot use
    CUDA. Since PyTorch 2.14, a profile without device activities hides the kernels from all later profiles
    (pytorch/pytorch#186036). On a machine with a GPU, the recorder therefore starts no profile before the script has
    initialized CUDA.

Note [Forks after a profile]
    Since its first profile, a process has a thread of Kineto. A process that is forked later lacks this thread, and hangs or
    aborts at its exit, in the destructor of libkineto::ConfigLoader. After the recorder's first profile, forked processes
    therefore end before the destructors of static C++ objects run. Functions of `atexit` run as usual.

Note [Memory or threads]
    The replicas of nn.DataParallel and threads that copy batches to the GPU are recorded only with the option
    `profile_all_threads`. In PyTorch 2.13, this option turns memory events off. The recorder therefore sets the option only
    after other threads have called modules or copied tensors. During a backward pass, autograd's threads call modules for
    checkpointing, and copy saved tensors back to the GPU. The profiler records autograd's threads without the option.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import get_ident, main_thread
from types import ModuleType
from typing import Any, Protocol

from tracer.device.boundary_events import BoundaryEvents
from tracer.device.device_access import PATIENCE_NS
from tracer.device.torch_messages import quiet_profiler
from traces.model.run import ProfilerUse
from traces.script.deferred_signals import deferred_signals
from traces.script.step_rule import RECORDERS_MARK

_MOST_WARNINGS = 8  # maximum number of warnings kept


class Ranges(Protocol):
    def begin(self) -> None: ...

    def end(self) -> None: ...


def _end_without_destructors() -> None:
    """Skip the destructors of static C++ objects when this process ends."""
    # see Note [Forks after a profile]
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc has `on_exit`, and runs the functions in reverse order
        libc.on_exit(libc._exit, None)  # `_exit` gets the exit code as its argument
        libc.on_exit(libc.fcloseall, None)


@cache
def _guard_forks() -> None:
    os.register_at_fork(after_in_child=_end_without_destructors)


class Profiler:
    def __init__(
        self, torch: ModuleType, path: Path | None, events: BoundaryEvents, stacks: bool = False, modules: Ranges | None = None
    ) -> None:
        self.wanted = path is not None
        self.paused = False  # True if the last `begin_step` took a noticeable time
        self.all_threads = False  # True if several Python threads use the GPU
        self.active = False  # True from the start of the profiler to the end of the window
        self.is_beginning = False  # True while the recorder starts a profile
        self._torch = torch
        self._path = path
        self._access, self._clock, self._events = events.access, events.clock, events
        self._stacks = stacks
        self._modules = None if stacks else modules
        self._profile: Any = None
        self._thread: int | None = None  # only this thread may end the profile; None if any thread may end it
        self._has_gpu: bool | None = None  # None until the GPU count is first needed
        self._has_device = False  # True if device activities were requested
        self._range: Any = None
        self._tracing = False
        self._windows: list[list[int]] = []  # step numbers of each window
        self._why_not = ""
        self._warnings: list[str] = []  # warnings of Kineto
        self._began_ns = 0  # start of the last step
        self._longest_ns = 0  # duration of the longest step so far

    def begin_step(self, number: int, action: str) -> None:
        self.paused = False
        if self._profile is None and not (self.wanted and action):
            return
        now_ns = self._clock.perf_ns()
        self._longest_ns = max(self._longest_ns, now_ns - self._began_ns if self._began_ns else 0)
        self._began_ns = now_ns
        if self._access.is_capturing or self._is_of_other_thread:
            return
        if self._profile is not None and (action == "" or (action == "prepare" and self._tracing)):
            self.stop()
        if self.wanted and action == "prepare" and self._profile is None and not (self.must_wait or self._access.device_lost):
            if self._access.script_profiles:  # see Note [Profiles of the script]
                self._why_not = "the script was already profiling itself"
            else:
                self._attempt(self._prepare)
        elif self._profile is not None and action == "record":
            if not self._tracing:
                self._attempt(self._start)
            if self._tracing:
                self._range = self._torch.autograd.profiler.record_function(f"ProfilerStep#{number}{RECORDERS_MARK}")
                self._range.__enter__()

    def end_step(self, number: int) -> None:
        if self.is_recording:
            self._windows[-1].append(number)
            self._leave_range()

    def make_way(self) -> None:
        if self._profile is not None and not self.is_beginning:
            self._why_not = "the script started its own profiler"
            self.stop()

    def stop(self, at_end: bool = False) -> None:
        # see Note [When a window begins and ends]
        if self._profile is None or self._is_of_other_thread:
            return
        if self._is_idle(PATIENCE_NS if at_end else self._patience_ns):
            self._leave_range()
            self._attempt(self._finish)
        elif at_end or self._access.device_lost:
            self._abandon()

    def use(self) -> ProfilerUse:
        numbers = tuple(number for window in self._windows for number in window)
        return ProfilerUse(numbers, self._why_not or None, tuple(self._warnings))

    @property
    def is_recording(self) -> bool:
        return self._range is not None and not self._is_of_other_thread

    @property
    def must_wait(self) -> bool:
        # see Note [No context of the recorder's]
        if not self.wanted or self._access.is_used:
            return False
        if self._has_gpu is None:
            self._has_gpu = self._torch.cuda.device_count() > 0  # the count comes from NVML, which does not initialize CUDA
        return self._has_gpu

    @property
    def _is_of_other_thread(self) -> bool:
        # see Note [When a window begins and ends]
        return self._profile is not None and self._thread not in (None, get_ident())

    @property
    def _patience_ns(self) -> int:
        return max(PATIENCE_NS, 2 * self._longest_ns)

    def _is_idle(self, limit_ns: int) -> bool:
        return not self._has_device or self._access.is_idle_within(limit_ns, self._events.devices)

    def _prepare(self) -> None:
        profiler = self._torch.profiler
        if self._torch.autograd._profiler_enabled():
            self._why_not = "the script was already profiling itself"
            self.wanted = False
            return
        activities = [profiler.ProfilerActivity.CPU]
        self._has_device = self._access.is_used
        if self._has_device:  # see Note [No context of the recorder's]
            self._access.start_waiting_thread()  # for the wait at the end of the script
            activities.append(profiler.ProfilerActivity.CUDA)
        self.all_threads |= get_ident() != main_thread().ident  # the main thread may end the last profile
        self._thread = None if self.all_threads else get_ident()
        self._profile = profiler._KinetoProfile(
            activities=activities,
            record_shapes=True,
            profile_memory=True,
            with_stack=self._stacks,
            experimental_config=self._settings(),
        )
        self.active = True
        _guard_forks()
        self._profile.prepare_trace()

    def _settings(self) -> Any:
        """Return the profiler's options. With `trace_only` (PyTorch 2.14 and later), the profiler does not create a Python
        object for each event."""
        # see Note [Memory or threads]
        settings = self._torch._C._profiler._ExperimentalConfig
        options = {"enable_cuda_sync_events": True, "profile_all_threads": self.all_threads}
        if not self._stacks and hasattr(settings, "trace_only"):
            options["trace_only"] = True
        return settings(**options)

    def _start(self) -> None:
        if not self._is_idle(self._patience_ns):
            return
        old_block = self._torch.empty(1)
        self._profile.start_trace()
        del old_block  # see Note [What Kineto says] in torch_messages.py
        self._tracing, self._why_not = True, ""
        self._windows.append([])
        if self._modules is not None:
            self._modules.begin()

    def _leave_range(self) -> None:
        step_range, self._range = self._range, None
        if step_range is not None:
            step_range.__exit__(None, None, None)

    def _finish(self) -> None:
        profile, self._profile = self._profile, None
        if self._modules is not None:
            self._modules.end()
        try:
            if not self._tracing:  # Kineto can only be stopped if it was started
                profile.start_trace()
            profile.stop_trace()
            if self._path is not None and self._tracing and self._windows[-1]:
                count = len(self._windows)
                profile.export_chrome_trace(str(self._path if count == 1 else self._path.with_suffix(f".{count}.json")))
        finally:
            if self._tracing and not self._windows[-1]:
                self._windows.pop()
            self.active = self._tracing = False

    def _abandon(self) -> None:
        """Discard the profile without `stop_trace`, because `stop_trace` would wait forever for a hanging GPU."""
        if self._tracing:
            self._windows.pop()
        if self._modules is not None:
            self._modules.end()
        self._profile = self._range = None
        self.active = self._tracing = self.wanted = False
        self._why_not = self._why_not or f"the device did not finish: {self._access.device_lost or 'its work did not finish'}"

    def _attempt(self, action: Callable[..., None]) -> None:
        """Run `action`. Stop profiling if torch.profiler fails, for example for lack of permissions."""
        self.paused = self.is_beginning = True
        with deferred_signals():
            try:
                with quiet_profiler(self._torch, self._warnings):
                    action()
            except Exception as failure:
                self._profile, self.active, self.wanted, self._tracing = None, False, False, False
                self._why_not = str(failure).partition("\n")[0]
            finally:
                self.is_beginning = False
                del self._warnings[_MOST_WARNINGS:]
