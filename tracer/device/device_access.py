"""Decides whether the recorder may call CUDA now, and handles failing calls.

    access = DeviceAccess(torch.cuda, state.captures(), state.profiles())
    if access.closed is None: event.record()    # otherwise `closed` is the reason
    access.attempt(torch.cuda.mem_get_info, 0)  # None if the call failed, then the device counts as lost
    access.is_idle_within(1_000_000_000, [0])   # waits at most 1 s for cuda:0

The script must behave as it would without the recorder, so all CUDA calls of the recorder go through this module.

Note [Captures of CUDA graphs]
    During a capture in CUDA's global mode, most calls in any thread are illegal, including cudaEventQuery and
    cudaEventSynchronize. Such a call fails and invalidates the capture (cudaStreamBeginCapture in CUDA's reference). So the
    recorder makes no call while any torch.cuda.CUDAGraph of this process captures, or while the calling thread's current
    stream is being captured by other code.

Note [A lost device]
    After an illegal address or a failed assertion on the device, every later call fails with the same error. The script gets
    that error from its next call. If work never ends (a collective that waits for a lost rank), there is no error. In both
    cases the recorder stops calling CUDA and writes what it has read so far.

Note [A profile of the script's own]
    CUPTI records every CUDA call of the process. The recorder takes no events while the script profiles itself, because they
    would appear in the script's profile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeVar

from traces.model.trace import Untimed

# At the end of the script, the recorder waits this long for a device that makes no progress.
PATIENCE_NS = 1_000_000_000

T = TypeVar("T")


class DeviceAccess:
    def __init__(self, cuda: Any, captures: Sized, profiles: Sized) -> None:
        """Creates the guard. `captures` are the graphs being captured, `profiles` are running profiles of the script."""
        self.lost = ""  # the reason why the device counts as lost, or ""
        self.is_calling = False  # True during a CUDA call, which may hang
        self._cuda, self._captures, self._profiles = cuda, captures, profiles

    @property
    def is_used(self) -> bool:
        """Returns whether the script has initialized CUDA. The recorder never initializes CUDA."""
        return bool(self._cuda.is_initialized())

    @property
    def is_capturing(self) -> bool:
        """Returns whether a CUDA graph is being captured. See Note [Captures of CUDA graphs]."""
        if self._captures:
            return True
        if self._profiles:
            return False  # calling CUDA would add a call to the script's profile
        try:
            return bool(self._cuda.is_current_stream_capturing())
        except RuntimeError:  # a capture blocks the legacy stream (cudaErrorStreamCaptureImplicit)
            return True

    @property
    def is_profiled(self) -> bool:
        return bool(self._profiles)

    @property
    def closed(self) -> Untimed | None:
        """Returns why CUDA must not be called now, or None if CUDA may be called. `Untimed.NO` means that the script does not
        use CUDA.
        """
        if self.lost:
            return Untimed.LOST
        if not self._cuda.is_initialized():
            return Untimed.NO
        if self.is_capturing:
            return Untimed.CAPTURE
        return Untimed.PROFILE if self._profiles else None

    def lose(self, reason: BaseException | str) -> None:
        """Marks the device as lost after a failed call or after work that does not end. See Note [A lost device]."""
        self.lost = self.lost or str(reason).partition("\n")[0]

    def attempt(self, call: Callable[..., T], *args: Any) -> T | None:
        """Calls `call(*args)`, a CUDA function. Returns None if CUDA must not be called, or if the call fails."""
        if self.closed is not None:
            return None
        self.is_calling = True
        try:
            return call(*args)
        except RuntimeError as error:  # torch.AcceleratorError is a subclass
            self.lose(error)
            return None
        finally:
            self.is_calling = False

    def is_idle_within(self, limit_ns: int, devices: Iterable[int]) -> bool:
        """Waits until these devices are idle. Returns False after the time limit, or if CUDA must not be called."""
        if self.closed is not None:
            return False
        done = threading.Event()

        def wait() -> None:
            try:
                for device in devices:
                    self._cuda.synchronize(device)
            except RuntimeError as error:
                self.lose(error)
            done.set()

        # CUDA has no wait with a time limit, so a daemon thread waits. If the thread never returns, it ends with the process.
        threading.Thread(target=wait, name="trace-wait", daemon=True).start()
        return done.wait(limit_ns / 1e9) and not self.lost
