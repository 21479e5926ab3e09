"""Checks whether this machine has enough memory for all ranks, and raises the limit of open files if necessary.

    require_ranks(256, spare_host_bytes(), ["train.py"])  # TraceError: 256 ranks need about 11.9 GiB of memory ...
"""

from __future__ import annotations

import math
import os
import re
import resource
from itertools import takewhile

from traces.comparison.thresholds import RANK_BYTES, SHARED_BYTES
from traces.model.trace import TraceError
from traces.script.launch import MACHINE_DEVICES, MOST_DEVICES, ranks_per_machine
from tui.formatting import size_text
from tui.running.narration import say

_LAUNCHERS = set(
    "torchrun torch.distributed.run torch.distributed.launch accelerate.commands.launch deepspeed.launcher.runner".split()
)
# a launcher's option for the number of ranks; argparse accepts the shortened form `--nproc`
_RANKS = re.compile(r"(?:^| )--(?:nproc[-_a-z]*|num[-_](?:processes|gpus))(?:=| )(\S+)")
# accelerate's option for the number of machines; `--num_processes` is the total over all machines
_MACHINES = re.compile(r"--num[-_]machines(?:=| )([1-9]\d*)")

_OTHER_FILES = 16  # open files of rank 0, without its connections to the other ranks


def require_ranks(count: int, available: int | None, words: list[str], gpus: int = 0) -> None:
    """Raise TraceError if this machine cannot run `count` ranks, or the ranks that a launcher in `words` (torchrun) starts."""
    ranks = count or _launched_ranks(words)
    local = ranks_per_machine(count) if count else ranks
    if local > MOST_DEVICES:
        raise TraceError(
            f"{ranks} ranks: PyTorch supports at most {MOST_DEVICES} GPUs per machine; "
            f"use several nodes, or `trace replay --nproc`, which simulates machines of {MACHINE_DEVICES} GPUs"
        )
    if local > gpus > 0:
        raise TraceError(f"{local} ranks need {local} GPUs, but --gpus {gpus} gives them only {gpus}")
    needed = SHARED_BYTES + ranks * RANK_BYTES
    if local and available is not None and needed > available:
        most = max((available - SHARED_BYTES) // RANK_BYTES, 1)
        raise TraceError(
            f"{ranks} ranks need about {size_text(needed)} of memory, but only {size_text(available)} are available; "
            f"use at most {most} ranks"
        )
    if local:
        _require_open_files(ranks)
    if local < ranks:
        say(f"{ranks} ranks run as {ranks // local} machines of {local} GPUs (PyTorch supports at most {MOST_DEVICES})")


def _require_open_files(ranks: int) -> None:
    """Raise the limit of open files if it is too low. Rank 0 has one connection to each rank. With gloo groups, rank 0 has two
    connections to each rank."""
    needed = ranks + _OTHER_FILES
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    now, most = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if most < needed:
        raise TraceError(f"{ranks} ranks need {needed} open files, but this process may open only {most} (see `ulimit -Hn`)")
    if now < 2 * needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(min(2 * needed, most)), limits[1]))


def _launched_ranks(words: list[str]) -> int:
    """Return how many ranks a launcher starts on this machine, or 0 if that is unknown."""
    words = _after_options(words)
    if _LAUNCHERS.isdisjoint(words[:2]):
        return 0
    own = " ".join(takewhile(lambda word: word not in ("-m", "--module") and not word.endswith(".py"), words[1:]))
    given = [os.environ.get("PET_NPROC_PER_NODE", ""), *_RANKS.findall(own)][-1]
    return int(given) // int(["1", *_MACHINES.findall(own)][-1]) if given.isdigit() else 0


def started_script(words: list[str]) -> list[str]:
    """Return the script or the option `-m`, and the words after it, from the words after `python`."""
    words = _after_options(words)
    is_launcher = not _LAUNCHERS.isdisjoint(words[:2])
    return [word for word in words if is_launcher and word.endswith(".py")] or words


def _after_options(words: list[str]) -> list[str]:
    """Return the words after python's own options, such as `-u`."""
    while len(words) > 1 and words[0].startswith("-") and words[0][:2] not in ("-m", "-c"):
        words = words[1 + (words[0] in ("-W", "-X")) :] or words[-1:]  # these two options have a value
    return words
