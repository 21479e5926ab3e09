"""Wraps functions such as `os._exit`, which end the script without calling `atexit` functions. The wrappers first save the
replay's timeline.

    os._exit(0)
    os.kill(os.getpid(), signal.SIGTERM)    # without a handler of the script
"""

from __future__ import annotations

from types import ModuleType

from replayer import state
from traces.script.deferred_signals import before_abrupt_ends


def install(torch_module: ModuleType) -> None:
    """Patch the functions. Forked processes such as DataLoader workers write no timeline."""

    def before_signal() -> None:
        # `finish` would tell the other ranks that this rank ends. A rank that a signal kills tells nobody.
        distributed = torch_module.distributed
        if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
            state.STATE.finish()

    before_abrupt_ends(lambda: state.STATE.finish(), before_signal)
