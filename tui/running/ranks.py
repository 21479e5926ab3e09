"""Checks whether this machine has enough memory for all ranks.

    require_ranks(256, spare_host_bytes())   # TraceError: 256 ranks need about 11.9 GiB, but only 4.0 GiB are available
"""

from __future__ import annotations

import re

from traces.comparison.thresholds import RANK_BYTES, SHARED_BYTES
from traces.model.trace import TraceError
from traces.script.launch import MACHINE_DEVICES, MOST_DEVICES, ranks_per_machine
from tui.formatting import size_text
from tui.running.narration import say


def require_ranks(count: int, available: int | None) -> None:
    if not count:
        return
    machine = ranks_per_machine(count)
    needed = SHARED_BYTES + count * RANK_BYTES
    if available is not None and needed > available:
        most = max((available - SHARED_BYTES) // RANK_BYTES, 1)
        raise TraceError(
            f"{count} ranks need about {size_text(needed)} of memory, but only {size_text(available)} are available; "
            f"use at most {most} ranks"
        )
    if machine < count:
        say(f"{count} ranks run as {count // machine} machines of {machine} GPUs (PyTorch supports at most {MOST_DEVICES})")


def require_torchrun(words: list[str]) -> None:
    found = re.search(r"(?:^| )--nproc[-_]per[-_]node(?:=| )(\d+)(?: |$)", " ".join(words))
    if found is not None and int(found[1]) > MOST_DEVICES:
        raise TraceError(
            f"torchrun {found[0].strip()}: PyTorch supports at most {MOST_DEVICES} GPUs per machine; "
            f"use several nodes, or `trace replay --nproc`, which simulates machines of {MACHINE_DEVICES} GPUs"
        )


def started_script(words: list[str]) -> list[str]:
    is_torchrun = not {"torchrun", "torch.distributed.run"}.isdisjoint(words[:2])
    return [word for word in words if is_torchrun and word.endswith(".py")] or words
