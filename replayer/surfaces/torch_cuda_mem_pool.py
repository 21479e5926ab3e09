"""Emulates torch.cuda.MemPool, and the private memory pools of CUDA graphs.

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(1 << 20, device="cuda")     # in a segment that only this pool uses
    pool.snapshot()[0]["segment_pool_id"]           # pool.id
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from types import ModuleType
from typing import ClassVar

import torch

from replayer.errors import NotEmulated, require
from replayer.state import gpu, started
from replayer.torch_types import TorchAny
from traces.script.patching import patch

PoolHandle = tuple[int, int]


class PrivatePools:
    """Frees a private memory pool when no CUDA graph or torch.cuda.MemPool object uses it."""

    def __init__(self) -> None:
        self._made = 0
        self._users: Counter[PoolHandle] = Counter()

    def handle(self) -> PoolHandle:
        self._made += 1
        return 0, self._made

    def keep(self, pool: PoolHandle) -> None:
        self._users[pool] += 1
        for device in gpu().devices:
            device.memory.private.add(pool[1])

    def drop(self, pool: PoolHandle, *, empties: bool = False) -> None:
        self._users[pool] -= 1
        if not self._users[pool]:
            del self._users[pool]
            for device in [] if (here := started()) is None else here.devices:
                device.memory.private.discard(pool[1])
                if empties:
                    device.memory.empty_pool(pool[1])

    def count(self, pool: PoolHandle) -> int:
        return self._users[pool]


class VirtualMemPool:
    pools: ClassVar[PrivatePools]

    def __init__(self, allocator: object = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        for name, value in {"allocator": allocator, "use_on_oom": use_on_oom, "no_split": no_split}.items():
            if value:
                raise NotEmulated(f"torch.cuda.MemPool({name}=...)", "leave out this argument")
        self.id = self.pools.handle()
        self.pools.keep(self.id)
        weakref.finalize(self, self.pools.drop, self.id, empties=True).atexit = False

    @property
    def allocator(self) -> None:
        return None

    def use_count(self) -> int:
        return self.pools.count(self.id)

    def snapshot(self, *options: TorchAny, **named: TorchAny) -> TorchAny:
        memory: TorchAny = torch.cuda.memory
        return memory.memory_snapshot(self.id, *options, **named)


def _begin(device: int, pool: PoolHandle, thread: int | None) -> None:
    require(gpu().devices[device].allocator.begin_pool(pool[1], thread), "beginAllocateToPool: already recording to mempool_id")
    VirtualMemPool.pools.keep(pool)


def _end(device: int, pool: PoolHandle) -> None:
    require(gpu().devices[device].allocator.end_pool(pool[1]), "endAllocatePool: not currently recording to mempool_id")


def install(torch_module: ModuleType) -> None:
    VirtualMemPool.pools = PrivatePools()
    cuda: TorchAny = torch_module.cuda
    functions = {
        "_cuda_beginAllocateToPool": lambda device, pool: _begin(device, pool, None),
        "_cuda_beginAllocateCurrentThreadToPool": lambda device, pool: _begin(device, pool, threading.get_ident()),
        "_cuda_endAllocateToPool": _end,
        "_cuda_releasePool": lambda _device, pool: VirtualMemPool.pools.drop(pool),
    }
    for owner in (torch_module._C, cuda.memory):
        patch(owner, **functions)
    for owner in (cuda, cuda.memory):
        patch(owner, MemPool=VirtualMemPool)
