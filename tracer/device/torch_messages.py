"""Hides messages of PyTorch and Kineto about the recorder's own profiles from the script.

    said: list[str] = []
    with quiet_profiler(torch, said):
        profile.start_trace()
    said    # ["failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"], for the recording

Note [What Kineto says]
    Kineto writes to stderr when it starts and stops: "USDT:" lines at any log level, an error if the thread is not the main
    thread, and warnings, such as missing permission for CUPTI. Because stderr belongs to the script, stderr is buffered while
    Kineto starts and stops, and then passed on without Kineto's lines. Kineto's warnings are kept because they explain missing
    kernels. PyTorch also warns when memory allocated before the profile is first freed during the profile. So the recorder
    causes this warning on purpose, while stderr is buffered.

Note [Warnings that PyTorch gives once]
    torch.profiler also gives Python warnings. Up to PyTorch 2.12, the first profile of a process warns that the profiler clears
    its events. The script must not get this warning for a profile of the recorder: with `python -W error`, the warning would be
    an exception. PyTorch remembers which warnings it has given. The recorder restores this memory, because otherwise a later
    profile of the script would give no warning. `torch.profiler.profiler` keeps a set of given warnings. In C++, each
    TORCH_WARN_ONCE remembers its warning, unless `torch.set_warn_always(True)` is in force.

    `warnings.catch_warnings` and `warnings.simplefilter` make Python forget which warnings it has already shown
    (`_filters_mutated` in Lib/warnings.py), so Python would show warnings of the script again. Adding an entry to the list of
    filters directly does not have this effect.
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
def quiet_profiler(torch: ModuleType, said: list[str]) -> Iterator[None]:
    """Hides messages about the recorder's own profile from the script. Adds Kineto's warnings to the list `said`."""
    with _without_kinetos_lines(said), _without_warnings(torch):
        yield


@contextmanager
def _without_kinetos_lines(said: list[str]) -> Iterator[None]:
    """Buffers stderr, and removes the lines that Kineto (the library behind torch.profiler) has written. See
    Note [What Kineto says]."""
    sys.stderr.flush()
    own = os.dup(2)
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
                    said += [text] if text not in said else []


class _OfThread:
    """Used as the message pattern of a warnings filter. Matches every warning of one thread until `thread` is set to None."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self.thread


@contextmanager
def _without_warnings(torch: ModuleType) -> Iterator[None]:
    """Ignores the Python warnings that this thread gives inside the context. See Note [Warnings that PyTorch gives once]."""
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
        ours.thread = None  # a copy of the list, which another thread may have made, then ignores nothing
        with suppress(ValueError):  # another thread may have changed the list
            filters.remove(ignored)
        given.intersection_update(before)
