"""Imports trace-replay's packages in the user's process, even if other modules have the same names.

    with our_packages():
        from tui.text.diff import diff_text     # even if the user has a module `tui`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import trace_replay


@contextmanager
def our_packages() -> Iterator[None]:
    # see Note [Private module names] in traces/bootstrap/_trace_names.py
    names = trace_replay.trace_names()
    library = trace_replay.library()
    with ExitStack() as blocks:
        if library.__name__ != "traces":
            blocks.enter_context(names.OurNames(trace_replay.PATH, {"traces"}, "trace_replay."))
        blocks.enter_context(names.OurNames(trace_replay.PATH, {"replayer", "tui"}, "_trace_"))
        yield
