"""The rank of this process in a distributed run, and the recorded rank and devices that it replays.

torchrun and `trace replay --nproc` set the rank in the environment, before the script uses its GPU:

    rank = Rank.of(os.environ)              # Rank(number=3, local=1, local_count=2)
    rank.recorded(trace.ranks)              # the recorded rank to replay: 3 modulo the number of ranks
    rank.devices(trace)                     # as many devices as ranks on this machine

A process without a rank is the only rank, 0, and sees all devices of the recorded machine. If torch.multiprocessing.spawn
started the process, the process index is the rank until init_process_group sets another rank (state.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traces.model.trace import Device, Trace


@dataclass(frozen=True)
class Rank:
    """Describes the rank of a process.

    `local` is the rank among the `local_count` ranks of its machine (0: unknown). `number` counts over all machines.
    """

    number: int = 0
    local: int = 0
    local_count: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Rank:
        """Return the rank from torchrun's variables. If the variables are missing or invalid, the process is the only rank."""
        values = [environment.get(name, "") for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        if not all(text.isdigit() for text in values[:2]):
            return cls()
        number, local = int(values[0]), int(values[1])
        return cls(number, local, max(int(values[2]) if values[2].isdigit() else 1, local + 1))

    def recorded(self, ranks: Sequence[int]) -> int:
        """Return the recorded rank that this rank replays."""
        return ranks[self.number % len(ranks)]

    def devices(self, trace: Trace) -> list[Device]:
        """Return the devices that this process sees. The process sees the devices of the recorded rank, repeated until each
        local rank has a device.

        If the number of local ranks is unknown, the result has the devices of all recorded ranks, with each device of a machine
        once.
        """
        recorded = self.recorded(trace.ranks)
        own = [device for device in trace.devices if device.rank == recorded]
        if not self.local_count and len(trace.ranks) > 1:
            by_index = {device.index: device for device in reversed(trace.devices)}
            return [replace(by_index[index], rank=self.number, index=i) for i, index in enumerate(sorted(by_index))]
        if not own or len(own) >= self.local_count:
            return [replace(device, rank=self.number) for device in own]
        return [replace(own[i % len(own)], rank=self.number, index=i) for i in range(self.local_count)]
