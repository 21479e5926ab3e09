"""Autograd's numbers of the op under way, as profilers note them: which op of the forward pass an op of backward belongs to.

number = node_numbers(torch)
number()    # (14, NONE): this op has made node 14 of the graph; (14, 1): this op is part of node 14's backward
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType

from replayer.torch_types import TorchAny
from traces.model.trace import NONE

_FORWARD_THREAD = 1  # as a profiler counts threads, from 1 on
_ACCUMULATES = (1 << 64) - 1  # the number of all nodes that add to a parameter's gradient


class _Latest(threading.local):
    number = NONE  # of the thread's latest node that an op was said to have made


def node_numbers(torch: ModuleType) -> Callable[[], tuple[int, int]]:
    """For use in a tensor's dispatch, below autograd: nodes are made before."""
    current: TorchAny = torch._C._current_autograd_node
    next_number: TorchAny = torch._C._autograd._get_sequence_nr
    latest = _Latest()

    def number() -> tuple[int, int]:
        node = current()
        if node is not None:
            sequence = int(node._sequence_nr())
            return (NONE if sequence == _ACCUMULATES else sequence), _FORWARD_THREAD
        made = int(next_number()) - 1
        if made == latest.number:  # it made none, or an op before it within the same node did
            return NONE, NONE
        latest.number = made
        return made, NONE

    return number
