"""How long a copy takes that the recording does not hold: bytes over the bandwidth of its kind.

    transfers = Transfers.of(trace, speed)
    transfers.duration_ns("h2d", pinned=True, size_bytes=19_267_584)    # (1_592_362, Origin.ROOFLINE) without recorded copies
"""

from __future__ import annotations

from statistics import median

from replayer.costs import FLOOR_NS, DeviceSpeed
from traces.model import DeviceKind, Origin, Trace

# GB/s of host-to-device copies on the emulator study's machines: pinned 6.35 ms and pageable 17.35 ms for the 77.07 MB of 128
# images of 3x224x224 floats ("GPU Emulator for Easy Reproducibility of DNN Training", Summer of Reproducibility 2023).
PUBLISHED_PINNED_GBPS = 12.1
PUBLISHED_PAGEABLE_GBPS = 4.4

_FITTED_FROM_BYTES = 65_536  # below, latency rather than bandwidth is what a copy's duration shows


class Transfers:
    """Bandwidths in bytes per nanosecond by (kind, pinned), fitted where the trace has copies of that kind."""

    def __init__(self, speed: DeviceSpeed) -> None:
        self._bandwidths: dict[tuple[str, bool], float] = {
            ("h2d", True): PUBLISHED_PINNED_GBPS,
            ("h2d", False): PUBLISHED_PAGEABLE_GBPS,
            ("d2h", True): PUBLISHED_PINNED_GBPS,
            ("d2h", False): PUBLISHED_PAGEABLE_GBPS,
            ("d2d", False): speed.bytes_per_ns / 2,  # read and written
            ("p2p", False): PUBLISHED_PINNED_GBPS,
        }
        self._fitted: set[tuple[str, bool]] = set()

    @classmethod
    def of(cls, trace: Trace, speed: DeviceSpeed) -> Transfers:
        """Fit from the copies of `trace`: the median over copies of 64 KiB and more."""
        transfers = cls(speed)
        rates: dict[tuple[str, bool], list[float]] = {}
        device = trace.device
        big = (device.kind == DeviceKind.MEMCPY) & (device.bytes >= _FITTED_FROM_BYTES) & (device.duration_ns > 0)
        for name, size, duration in zip(device.name[big], device.bytes[big], device.duration_ns[big], strict=True):
            kind = _kind(trace.strings[int(name)])
            if kind:
                rates.setdefault(kind, []).append(int(size) / int(duration))
        for kind, values in rates.items():
            transfers._bandwidths[kind] = median(values)
            transfers._fitted.add(kind)
        return transfers

    def duration_ns(self, kind: str, pinned: bool, size_bytes: int) -> tuple[int, Origin]:
        """The time of a copy of kind "h2d", "d2h", "d2d" or "p2p", SCALED if fitted from this trace, else ROOFLINE."""
        key = (kind, pinned and kind in ("h2d", "d2h"))
        origin = Origin.SCALED if key in self._fitted else Origin.ROOFLINE
        return int(size_bytes / self._bandwidths[key]) + FLOOR_NS, origin


def _kind(name: str) -> tuple[str, bool] | None:
    for mark, kind in (("HtoD", "h2d"), ("DtoH", "d2h"), ("PtoP", "p2p"), ("DtoD", "d2d")):
        if mark in name:
            return kind, "Pinned" in name and kind in ("h2d", "d2h")
    return None
