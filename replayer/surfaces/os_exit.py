"""Saves the replay's timeline before functions such as `os._exit` end the script without calling `atexit` functions.

    os._exit(0)
    os.kill(os.getpid(), signal.SIGTERM)    # without a handler of the script
"""

from __future__ import annotations

from types import ModuleType

from replayer import state
from traces.script.deferred_signals import before_abrupt_ends


def install(torch_module: ModuleType) -> None:
    def before_signal() -> None:
        # A killed rank ends without a message to the other ranks, as on a real GPU.
        distributed = torch_module.distributed
        if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
            state.STATE.finish()

    before_abrupt_ends(lambda: state.STATE.finish(), before_signal)
