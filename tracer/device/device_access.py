"""Whether the recorder may call CUDA now, and what happens when such a call fails.

    access = DeviceAccess(torch.cuda, state.captures(), state.profiles())
    if access.closed is None: event.record()    # else `closed` says why not
    access.attempt(torch.cuda.mem_get_info, 0)  # None if it failed; from then on the device is lost
    access.is_idle_within(1_000_000_000, [0])   # waits for cuda:0, but no longer

The script must end as it would without the recorder, so the recorder's calls into CUDA follow the rules below. All of its
modules ask here before they touch a device.

Note [Captures of CUDA graphs]
    While a stream is captured in CUDA's global mode, most calls of any thread are illegal, cudaEventQuery and
    cudaEventSynchronize among them. Such a call fails, and the capture is lost (cudaStreamBeginCapture in CUDA's reference).
    So the recorder makes no call while a torch.cuda.CUDAGraph of this process captures, in whatever mode and thread, or while
    the calling thread's current stream captures for someone else.

Note [A lost device]
    After an illegal address or a failed assertion on the device, each later call fails with the same error, and the script
    gets it from its own next call. A device whose work never ends (a collective that waits for a lost rank) gives no error.
    In both cases the recorder makes no further call, and writes what it has read until then.

Note [A profile of the script's own]
    CUPTI records every call of the process. While the script profiles itself, the recorder takes no events: they would be
    rows in the script's profile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sized
from typing import Any, TypeVar

from traces.model.trace import Untimed

# How long the recorder waits for a device that makes no progress, when the script ends.
PATIENCE_NS = 1_000_000_000

T = TypeVar("T")


class DeviceAccess:
    """One process's access to its devices. May be used from any thread."""

    def __init__(self, cuda: Any, captures: Sized, profiles: Sized) -> None:
        """`captures` holds the graphs that are being captured, `profiles` the script's profiles under way."""
        self.lost = ""  # why the device is lost, in one line; "" if it is not
        self.is_calling = False  # within a call into CUDA, which may not return
        self._cuda, self._captures, self._profiles = cuda, captures, profiles

    @property
    def is_used(self) -> bool:
        """Whether the script has initialized CUDA; the recorder never does."""
        return bool(self._cuda.is_initialized())

    @property
    def is_capturing(self) -> bool:
        """See Note [Captures of CUDA graphs]."""
        if self._captures:
            return True
        if self._profiles:
            return False  # to ask CUDA would be a row in the script's profile
        try:
            return bool(self._cuda.is_current_stream_capturing())
        except RuntimeError:  # the legacy stream, while a stream that blocks it captures (cudaErrorStreamCaptureImplicit)
            return True

    @property
    def is_profiled(self) -> bool:
        """Whether the script profiles itself."""
        return bool(self._profiles)

    @property
    def closed(self) -> Untimed | None:
        """Why the device must not be called now; None if it may be. `Untimed.NO` if the script does not use it."""
        if self.lost:
            return Untimed.LOST
        if not self._cuda.is_initialized():
            return Untimed.NO
        if self.is_capturing:
            return Untimed.CAPTURE
        return Untimed.PROFILE if self._profiles else None

    def lose(self, reason: BaseException | str) -> None:
        """A call has failed, or the device's work does not end. See Note [A lost device]."""
        self.lost = self.lost or str(reason).partition("\n")[0]

    def attempt(self, call: Callable[..., T], *args: Any) -> T | None:
        """`call(*args)` into CUDA, or None where it may not be called or fails."""
        if self.closed is not None:
            return None
        self.is_calling = True
        try:
            return call(*args)
        except RuntimeError as error:  # torch.AcceleratorError is one
            self.lose(error)
            return None
        finally:
            self.is_calling = False

    def is_idle_within(self, limit_ns: int, devices: Iterable[int]) -> bool:
        """Wait until all streams of these devices are done. False after the limit, or if no call is possible."""
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

        # CUDA has no wait with a time limit. A thread that waits for ever ends with the process.
        threading.Thread(target=wait, name="trace-wait", daemon=True).start()
        return done.wait(limit_ns / 1e9) and not self.lost
