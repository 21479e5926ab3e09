"""Determines the rank of this process, and chooses the recorded rank that the process replays.

    rank = Rank.of(os.environ)              # Rank(number=3, local_count=2)
    rank.recorded(trace.ranks)              # the recorded rank to replay: 3 modulo the number of ranks
    rank.devices(trace)                     # as many devices as ranks on this machine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traces.model.trace import Device, Trace


@dataclass(frozen=True)
class Rank:
    number: int = 0
    local_count: int = 0  # number of processes on this machine; 0 if unknown

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Rank:
        """Return the rank from torchrun's environment variables. The default is rank 0."""
        values = [environment.get(name, "") for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        if not all(text.isdigit() for text in values[:2]):
            return cls()
        number, local = int(values[0]), int(values[1])
        return cls(number, max(int(values[2]) if values[2].isdigit() else 1, local + 1))

    def recorded(self, ranks: Sequence[int]) -> int:
        return ranks[self.number % len(ranks)]

    def devices(self, trace: Trace) -> list[Device]:
        """Return the virtual GPUs of this machine, at least one for each of its ranks. The virtual GPUs have the properties of
        the recorded GPUs."""
        recorded = self.recorded(trace.ranks)
        own = [device for device in trace.devices if device.rank == recorded]
        if not self.local_count and len(trace.ranks) > 1:
            by_index = {device.index: device for device in reversed(trace.devices)}
            return [replace(by_index[index], rank=self.number, index=i) for i, index in enumerate(sorted(by_index))]
        if not own or len(own) >= self.local_count:
            return [replace(device, rank=self.number) for device in own]
        return [replace(own[i % len(own)], rank=self.number, index=i) for i in range(self.local_count)]
