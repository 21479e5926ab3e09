"""Suppresses messages that PyTorch and Kineto print about the recorder's own profiles.

    messages: list[str] = []
    with quiet_profiler(torch, messages):
        profile.start_trace()
    messages    # ["failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"], for the recording

Note [What Kineto says]
    Kineto, the library behind torch.profiler, writes lines to stderr when a profile starts and stops. The recorder buffers
    stderr during that time, and removes Kineto's lines. PyTorch also warns when a profile first sees that older memory is
    freed. The recorder causes this warning on purpose while stderr is buffered.

Note [Warnings that PyTorch gives once]
    In PyTorch 2.12 and earlier, the first profile of a process causes a warning: the profiler clears its events. With `python
    -W error`, this warning would raise an exception in the script. PyTorch shows the warning only once. The recorder therefore
    makes PyTorch forget that the recorder's profile has caused the warning. `warnings.catch_warnings` would make Python show
    earlier warnings again (`_filters_mutated` in Lib/warnings.py). The recorder therefore adds a filter directly to Python's
    list of filters.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import cast

# a line of Kineto's log: "WARNING:2026-11-25 01:02:03 4711:4711 CuptiActivityApi.cpp:90] text"
_KINETO_LINE = re.compile(
    rb"(?:(INFO|WARNING|ERROR|STAGE|VLOG\(\d\)):\S+ \S+ \d+:\d+ \S+\] |USDT:|ERROR: External init callback must run in)(.*)"
)
# a warning of torch, with the rank's prefix if torch.distributed is used
_OLD_BLOCK = re.compile(rb"(?:\[rank\d+\]:)?\[W\S+ \S+ CPUAllocator\.cpp:\d+\] Memory block of unknown size was allocated")


@contextmanager
def quiet_profiler(torch: ModuleType, messages: list[str]) -> Iterator[None]:
    """Hide PyTorch's messages about the recorder's profiles. Kineto's warnings are added to `messages`."""
    with _without_kinetos_lines(messages), _without_warnings(torch):
        yield


@contextmanager
def _without_kinetos_lines(messages: list[str]) -> Iterator[None]:
    # see Note [What Kineto says]
    with suppress(AttributeError, OSError, ValueError):  # the script may have closed or replaced `sys.stderr`
        sys.stderr.flush()
    try:
        own = os.dup(2)
    except OSError:  # the script has closed the file descriptor of stderr, so nobody sees Kineto's lines
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)
            held.seek(0)
            for line in held:
                if (of_kineto := _KINETO_LINE.match(line)) is None:
                    if not _OLD_BLOCK.match(line):
                        os.write(2, line)
                elif of_kineto[1] in (b"WARNING", b"ERROR"):
                    text = of_kineto[2].decode(errors="replace").strip()
                    messages += [text] if text not in messages else []


class _OfThread:
    """Matches every warning of one thread."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self.thread


@contextmanager
def _without_warnings(torch: ModuleType) -> Iterator[None]:
    # see Note [Warnings that PyTorch gives once]
    given: set[str] = torch.profiler.profiler._WARNINGS_SHOWN  # PyTorch 2.10 to 2.15
    before = set(given)
    was_always = torch.is_warn_always_enabled()
    ours = _OfThread()
    ignored = ("ignore", ours, Warning, None, 0)
    filters = cast("list[object]", warnings.filters)
    filters.insert(0, ignored)
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(was_always)
        ours.thread = None  # this switches the filter off, even in copies of the list
        with suppress(ValueError):  # another thread may have changed the list
            filters.remove(ignored)
        given.intersection_update(before)
