"""torch.nn.parallel.DistributedDataParallel: its C++ reduces gradients in buckets and keeps count of them.

    model = DistributedDataParallel(net)    # provenance["ddp"]: bytes of each bucket, times of the reductions

No call of Python's tells when a bucket is reduced, and a communication hook would change how it is done. What the reducer
logs by itself is read instead, when the recording is written and before the process group is destroyed.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

from tracer.state import recorder, started
from tracer.surfaces.seam import before, put, put_everywhere


def install(torch: ModuleType) -> None:
    """Wrap the making of a model and the end of its process group."""
    dist = torch.distributed
    if not dist.is_available():
        return
    cls: Any = torch.nn.parallel.DistributedDataParallel
    make = cls.__init__

    @wraps(make)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        recorder().distributes(self)

    def tell() -> None:
        if (to := started()) is not None:
            to.leaving()

    put(cls, __init__=made)
    destroy = dist.distributed_c10d.destroy_process_group
    put_everywhere(destroy, before(destroy, tell))
