"""Reads the sequence numbers of autograd nodes, which connect each backward op with its forward op.

    number = node_numbers(torch)
    number()    # (14, NONE): this op created node 14 of the graph; (14, 1): this op is part of node 14's backward
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

from replayer.torch_types import TorchAny
from traces.model.trace import NONE

_FORWARD_THREAD = 1
ACCUMULATES = (1 << 64) - 1  # all nodes that accumulate a parameter's gradient have this number


class _Latest(threading.local):
    number = NONE


def node_numbers(torch: ModuleType) -> Callable[[], tuple[int, int]]:
    current: TorchAny = torch._C._current_autograd_node
    next_number: TorchAny = torch._C._autograd._get_sequence_nr
    latest = _Latest()

    def number() -> tuple[int, int]:
        node = current()
        if node is not None:
            sequence = int(node._sequence_nr())
            return (NONE if sequence == ACCUMULATES else sequence), _FORWARD_THREAD
        made = int(next_number()) - 1
        if made == latest.number:
            return NONE, NONE
        latest.number = made
        return made, NONE

    return number
