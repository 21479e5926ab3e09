"""Wraps torch.nn.parallel.DistributedDataParallel, to record the sizes of its gradient buckets.

    model = DistributedDataParallel(net)    # provenance["ddp"]: bytes of each bucket, times of the reductions

The recorder uses no communication hook of PyTorch, because a hook would change the reduction of gradients.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import recorder, started
from traces.script.patching import argument, around, patch_around, patch_everywhere


def install(torch: ModuleType) -> None:
    dist = torch.distributed
    if not dist.is_available():
        return
    cls: Any = torch.nn.parallel.DistributedDataParallel

    def made(make: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if (to := recorder()) is not None:
            to.communication.distributes(self)

    destroy = dist.distributed_c10d.destroy_process_group
    group_of = argument(destroy, "group")

    def destroyed(destroy: Any, *args: Any, **kwargs: Any) -> None:
        if (to := started()) is not None:
            to.communication.group_ends(is_all=group_of(args, kwargs) in (None, dist.group.WORLD))
        destroy(*args, **kwargs)

    patch_around(cls, __init__=made)
    patch_everywhere(destroy, around(destroy, destroyed))
