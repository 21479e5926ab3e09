"""Decides whether the recorder may call CUDA now, and handles CUDA errors.

    access = DeviceAccess(TorchCuda(torch), state.CAPTURES, state.SCRIPT_PROFILES)
    if access.closed is None: event.record()    # otherwise `closed` is the reason
    access.attempt(torch.cuda.mem_get_info, 0)  # None if the call failed
    access.is_idle_within(1_000_000_000, [0])   # waits at most 1 s for cuda:0

Note [Captures of CUDA graphs]
    During the capture of a CUDA graph in global mode, most CUDA calls in any thread are illegal. An illegal call, such as
    cudaEventQuery, fails and invalidates the capture (cudaStreamBeginCapture in CUDA's reference). The recorder therefore makes
    no CUDA calls during a capture. The legacy default stream cannot be captured, so an event on that stream needs no check.

Note [A lost device]
    If a kernel uses an illegal address or an assertion on the device fails, every later CUDA call fails with the same error.
    The recorder then stops calling CUDA, and writes the times that it has read so far. The recorder also stops if GPU work
    never ends, for example a collective that waits for a lost rank. After other errors, such as lack of memory, the device
    remains usable.

Note [The script's own profiler]
    CUPTI records every CUDA call of the process. While the script profiles itself, the recorder therefore records no CUDA
    events.
"""

from __future__ import annotations

import os
import re
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Sized
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from tracer.device.torch_cuda import TorchCuda
from traces.model.trace import Untimed

# longest wait for a GPU that makes no progress, at the end of the script
PATIENCE_NS = 1_000_000_000

DEFAULT_STREAM = 0  # the handle of CUDA's legacy default stream

# errors after which all later CUDA calls fail (driver_types.h)
_STICKY = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})
_OF_A_CAPTURE = range(900, 909)
_OF_THE_DEVICE = re.compile("(CUDA|HIP) error: ")  # torch.AcceleratorError without a code

T = TypeVar("T")


class ScriptProfiles(Sized, Protocol):
    has_attached: bool


class DeviceAccess:
    def __init__(self, cuda: Any, captures: Sized, profiles: ScriptProfiles) -> None:
        self.device_lost = ""  # the reason why the device no longer accepts calls, or ""
        self.is_calling = False  # True during a CUDA call, which may hang
        self._cuda: TorchCuda = cuda
        self.captures, self.script_profiles = captures, profiles
        self.was_used = False  # True if `is_used` was True before
        self._waiting = _WaitingThread()  # the thread is not started yet

    @property
    def is_used(self) -> bool:
        self.was_used = self.was_used or bool(self._cuda.is_initialized())
        return self.was_used

    @property
    def is_capturing(self) -> bool:
        # see Note [Captures of CUDA graphs]
        return self.closed is Untimed.CAPTURE

    @property
    def closed(self) -> Untimed | None:
        """Return the reason for not calling CUDA now, or None if CUDA may be called."""
        closed = self.closed_to_all_streams
        return Untimed.CAPTURE if closed is None and self.is_current_stream_capturing else closed

    @property
    def closed_to_all_streams(self) -> Untimed | None:
        """Return the reason if CUDA may be called on no stream: an error of CUDA, no use of the GPU so far, a capture of a CUDA
        graph by any thread, or a profile of the script."""
        if self.device_lost:
            return Untimed.DEVICE_LOST
        if not (self.was_used or self.is_used):
            return Untimed.NO
        if self.captures:
            return Untimed.CAPTURE
        return Untimed.PROFILE if self.script_profiles else None  # see Note [The script's own profiler]

    @property
    def is_current_stream_capturing(self) -> bool:
        try:
            return self._cuda.is_current_stream_capturing()
        except RuntimeError:  # during a capture, the legacy stream cannot be used (cudaErrorStreamCaptureImplicit)
            return True

    def mark_lost(self, reason: str) -> None:
        # see Note [A lost device]
        self.device_lost = self.device_lost or reason.partition("\n")[0]

    def failed(self, error: RuntimeError) -> Untimed:
        code = getattr(error, "error_code", None)
        if code in _OF_A_CAPTURE:
            return Untimed.CAPTURE
        if code in _STICKY if code is not None else _OF_THE_DEVICE.match(str(error)):
            self.mark_lost(str(error))
        return Untimed.DEVICE_LOST

    def attempt(self, call: Callable[..., T], *args: Any) -> T | None:
        """Call a CUDA function, and return its result. Return None after an error, or if the recorder must not use CUDA."""
        if self.closed is not None:
            return None
        self.is_calling = True
        try:
            return call(*args)
        except RuntimeError as error:
            self.failed(error)
            return None
        finally:
            self.is_calling = False

    def is_idle_within(self, limit_ns: int, devices: Iterable[int]) -> bool:
        """Wait up to `limit_ns` for the GPUs. Return True if all GPUs are idle."""
        if self.closed is not None:
            return False
        if not self.start_waiting_thread():
            return False

        def wait() -> None:
            try:
                for device in devices:
                    self._cuda.synchronize(device)
            except RuntimeError as error:
                self.failed(error)

        return self._waiting.submit(wait).wait(limit_ns / 1e9) and not self.device_lost

    def start_waiting_thread(self) -> bool:
        """Return False if no thread can be started: Python 3.12 and later start no threads after the end of the script."""
        if not self._waiting.is_free:
            waiting = _WaitingThread()
            try:
                waiting.start()
            except RuntimeError:
                return False
            self._waiting = waiting
        return True


class _WaitingThread:
    """Waits for the GPU in another thread, because CUDA's wait functions have no timeout. `threading.enumerate` does not list
    the thread."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], None], threading.Event]] = SimpleQueue()
        self._is_busy = False
        self._process = 0  # id of the process in which the thread runs

    def start(self) -> None:
        start_new_thread(self._run, ())
        self._process = os.getpid()

    @property
    def is_free(self) -> bool:
        return self._process == os.getpid() and not self._is_busy

    def submit(self, call: Callable[[], None]) -> threading.Event:
        self._is_busy = True
        done = threading.Event()
        self._calls.put((call, done))
        return done

    def _run(self) -> None:
        while True:
            call, done = self._calls.get()
            call()
            self._is_busy = False
            done.set()
