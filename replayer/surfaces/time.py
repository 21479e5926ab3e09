"""Makes Python's module `time` return virtual time (`--clock virtual` and `--clock recorded`).

    PatchedTime(clock).install()
    began = time.perf_counter(); time.sleep(3600); time.perf_counter() - began     # 3600.00001, at once

`sleep` advances the virtual time at once (Note [Virtual time] in clock.py). In a background thread, `sleep` waits until another
thread advances the virtual time. If a script polls another process in a loop, `sleep` waits in real time.

`datetime.now()`, `time.localtime()`, locks, queues and sockets use real time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from replayer.state import rank
from replayer.timing.clock import VirtualClock
from traces.script.patching import OUR_MODULES, PATCHES, patch

# Modules that wait for real events, such as network messages, use real time.
_WAIT_FOR_REAL = frozenset(
    "asyncio concurrent ftplib http multiprocessing queue selectors smtplib socket socketserver ssl subprocess threading"
    " urllib".split()
)
_WAIT_FOR_REAL_IN_TORCH = ("torch.distributed", "torch.multiprocessing")

_LONGEST_POLL_S = 10.0
_CLOCKS = ("time", "perf_counter", "monotonic")


class PatchedTime:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.wait_for_clock: Callable[[], None] = lambda: None
        self.calls_of_device: Callable[[], int] = lambda: 0
        self._jumps = False
        self._calls_before_sleep = -1
        self._calls: dict[Any, Callable[..., Any]] = {time.sleep: self._sleep(time.sleep)}
        for name in _CLOCKS:
            self._calls |= self._virtual_clocks(getattr(time, name), getattr(time, f"{name}_ns"))
        os.register_at_fork(after_in_child=self._after_fork)

    def install(self) -> None:
        self._jumps = True
        self.clock.replays()
        if time.sleep not in self._calls:
            return
        PATCHES.on_undo(self._after_fork)
        by_id = {id(real): call for real, call in self._calls.items()}
        for name, module in list(sys.modules.items()):
            names = getattr(module, "__dict__", None)
            if isinstance(names, dict) and not uses_os_timeouts(name) and not name.startswith(OUR_MODULES):
                patch(module, **{key: by_id[id(value)] for key, value in names.copy().items() if id(value) in by_id})

    def _after_fork(self) -> None:
        self._jumps = False
        self.clock.after_fork()

    def _virtual_clocks(self, real: Callable[[], float], real_ns: Callable[[], int]) -> dict[Any, Callable[..., Any]]:
        clock, offset_ns = self.clock, real_ns() - self.clock.now_ns()

        def now_ns() -> int:
            if self._jumps:
                self.wait_for_clock()
            return clock.poll_ns()

        virtual_s = _like(real, lambda: real() if _caller_waits_for_real() else (now_ns() + offset_ns) / 1e9)
        virtual_ns = _like(real_ns, lambda: real_ns() if _caller_waits_for_real() else now_ns() + offset_ns)
        return {real: virtual_s, real_ns: virtual_ns}

    def _sleep(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sleep(seconds: Any, /) -> None:
            countable = isinstance(seconds, float) or hasattr(seconds, "__index__")
            if not self._jumps or not countable or not seconds > 0 or _caller_waits_for_real():
                return real(seconds)
            deadline_ns = self.clock.now_ns() + int(seconds * 1_000_000_000)
            if threading.current_thread() is not threading.main_thread():
                return self.clock.stand_by(deadline_ns)
            if self._is_polling() and seconds <= _LONGEST_POLL_S and _others_run():
                real(seconds)
            self.clock.slept_ns += max(deadline_ns - self.clock.now_ns(), 0)
            return self.clock.wait_until(deadline_ns)

        return _like(real, sleep)

    def _is_polling(self) -> bool:
        before, self._calls_before_sleep = self._calls_before_sleep, self.calls_of_device()
        return before == self._calls_before_sleep


def _others_run() -> bool:
    if threading.active_count() > 1 or rank().local_count > 1 or not hasattr(os, "waitid"):
        return True  # other threads or processes may run; Python before 3.13 has no os.waitid on macOS
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def uses_os_timeouts(module: str) -> bool:
    return module.partition(".")[0] in _WAIT_FOR_REAL or module.startswith(_WAIT_FOR_REAL_IN_TORCH)


def _caller_waits_for_real() -> bool:
    # the caller is None if C code made the call, for example after `atexit.register(time.sleep, 1)`
    caller = sys._getframe(1).f_back
    return caller is not None and uses_os_timeouts(caller.f_globals.get("__name__", ""))


def _like(real: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    patch(call, __name__=real.__name__, __qualname__=real.__name__, __module__="time", __doc__=real.__doc__)
    return call
