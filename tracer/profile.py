"""The windows of steps under torch.profiler, and their recordings as files beside ours; the parent lays them together.

    profiler = Profiler(torch, Path("train.msgpack.4711.profile.json"), say=print)
    profiler.begin_step(13, "prepare")      # it attaches itself: the first step under it is slow
    profiler.end_step(13); profiler.begin_step(14, "record")
    profiler.end_step(14); profiler.begin_step(15, "")      # the window has ended: the file is written
    profiler.begin_step(40, "prepare")                      # another one: its file will be train.msgpack.4711.profile.2.json

A script may profile itself. Then ours stays away, or ends its window early: two cannot run at once.

Note [Memory or threads]
    The profiler follows the thread that started it and those of autograd. nn.DataParallel runs its replicas in threads of
    Python's, which it follows only with `profile_all_threads`; and then, in 2.13, it records no memory events. So that is
    set only where replicas have been seen.

Note [What Kineto says]
    Some releases of Kineto write "USDT:" lines to stderr when a recording begins and ends, at any log level. stderr belongs to
    the script, so what is written there meanwhile is held back and passed on without them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from traces.run import ProfilerUse

if TYPE_CHECKING:
    from tracer.surfaces.torch_nn_module import ModuleRanges


class Profiler:
    """Runs torch.profiler over windows of steps. `wanted` is False in the phase grain, and nothing happens then."""

    def __init__(
        self,
        torch: ModuleType,
        path: Path | None,
        say: Callable[[str], None],
        stacks: bool = False,
        modules: ModuleRanges | None = None,
    ) -> None:
        """`modules`: ranges for the calls of modules, where stacks do not tell them."""
        self.wanted = path is not None
        self.paused = False  # whether the last `begin_step` did something that takes time
        self.all_threads = False  # whether replicas run in threads of their own
        self.active = False  # between attaching and the end of the window
        self._torch = torch
        self._path = path
        self._say = say
        self._stacks = stacks
        self._modules = None if stacks else modules
        self._profile: Any = None
        self._range: Any = None
        self._tracing = False
        self._beginning = False  # in a call of ours that begins a profile
        self._windows: list[list[int]] = []  # the numbers of their steps
        self._why_not = ""

    def begin_step(self, number: int, action: str) -> None:
        self.paused = False
        if self._profile is not None and (action == "" or (action == "prepare" and self._tracing)):
            self.stop()
        if self.wanted and action == "prepare" and self._profile is None:
            self._attempt(self._prepare)
        elif self._profile is not None and action == "record":
            if not self._tracing:
                self._attempt(self._start)
            if self._tracing:
                self._range = self._torch.autograd.profiler.record_function(f"ProfilerStep#{number}")
                self._range.__enter__()

    def end_step(self, number: int) -> None:
        if self._range is not None:
            self._windows[-1].append(number)
            self._leave_range()

    def make_way(self) -> None:
        """Somebody begins a profile; if it is the script, ours ends."""
        if self._profile is not None and not self._beginning:
            self._why_not = "the script began to profile itself"
            self.stop()

    def stop(self) -> None:
        """End the window, also in the midst of a step, and write the file."""
        if self._profile is None:
            return
        self._leave_range()
        self._attempt(self._finish)

    def use(self) -> ProfilerUse:
        """Which steps were profiled, and why none was."""
        return ProfilerUse(tuple(number for window in self._windows for number in window), self._why_not or None)

    def _prepare(self) -> None:
        profiler = self._torch.profiler
        if self._torch.autograd._profiler_enabled():
            self._why_not = "the script was profiling itself"
            self.wanted = False
            return
        activities = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profile = profiler._KinetoProfile(
            activities=activities,
            record_shapes=True,
            profile_memory=True,
            with_stack=self._stacks,
            experimental_config=self._settings(),
        )
        self.active = True
        self._profile.prepare_trace()

    def _settings(self) -> Any:
        """CUDA's synchronisations too; and all threads where there are replicas, see Note [Memory or threads]."""
        settings = self._torch._C._profiler._ExperimentalConfig
        return settings(enable_cuda_sync_events=True, profile_all_threads=self.all_threads)

    def _start(self) -> None:
        self._profile.start_trace()
        self._tracing = True
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
            if not self._tracing:  # kineto can only be left by way of a recording
                profile.start_trace()
            profile.stop_trace()
            if self._path is not None and self._tracing and self._windows[-1]:
                count = len(self._windows)
                profile.export_chrome_trace(str(self._path if count == 1 else self._path.with_suffix(f".{count}.json")))
        finally:
            self.active = self._tracing = False

    def _attempt(self, action: Callable[..., None], *args: Any) -> None:
        """The script goes on, whatever the profiler meets: CUPTI that is not allowed, a full disk, another release."""
        self.paused = self._beginning = True
        try:
            with _without_kinetos_words():
                action(*args)
        except (RuntimeError, OSError, TypeError, AttributeError) as failure:
            self._profile, self.active, self.wanted, self._tracing = None, False, False, False
            self._why_not = str(failure).partition("\n")[0]
            self._say(f"no kernels are recorded: torch.profiler failed: {self._why_not}")
        finally:
            self._beginning = False


@contextmanager
def _without_kinetos_words() -> Iterator[None]:
    """See Note [What Kineto says]."""
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)
            held.seek(0)
            for line in held:
                if not line.startswith(b"USDT:"):
                    os.write(2, line)
