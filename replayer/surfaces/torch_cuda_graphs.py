"""torch.cuda.graphs: captured graphs are refused by name; asking whether a capture is under way is answered.

torch.cuda.is_current_stream_capturing()    # False
torch.cuda.CUDAGraph()                      # NotEmulated: torch.cuda.CUDAGraph is not emulated by the virtual GPU: ...
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

import torch

from replayer.errors import NotEmulated
from replayer.surfaces.patching import ignore, refuse
from traces.patching import patch

_ADVICE = "run the step eagerly, or record and replay it with the graph switched off"

REFUSED = dict.fromkeys(
    "make_graphed_callables graph_pool_handle export_dot export_graph_data register_graph_capture_start_hook"
    " register_graph_capture_end_hook register_graph_instantiate_hook register_graph_replay_start_hook"
    " register_graph_replay_end_hook register_graph_destroy_hook".split(),
    _ADVICE,
)
IGNORED: dict[str, tuple[object, str]] = {
    "is_current_stream_capturing": (False, "capturing is refused, so no stream ever captures"),
}


class CUDAGraph:
    """torch.cuda.CUDAGraph, still a class for `isinstance`."""

    def __new__(cls, *_args: Any, **_options: Any) -> NoReturn:
        raise NotEmulated("torch.cuda.CUDAGraph", _ADVICE)


class graph:
    """torch.cuda.graph, still a class: torch keeps its default stream on it."""

    default_capture_stream: torch.Stream | None = None

    def __new__(cls, *_args: Any, **_options: Any) -> NoReturn:
        raise NotEmulated("torch.cuda.graph", _ADVICE)


def install(torch_module: ModuleType) -> None:
    """Patch torch.cuda.graphs and what torch.cuda took from it."""
    cuda: Any = torch_module.cuda
    for module in (cuda, cuda.graphs):
        refuse(module, "torch.cuda", REFUSED)
        ignore(module, IGNORED)
        patch(module, CUDAGraph=CUDAGraph, graph=graph)
    patch(cuda.graphs, _cuda_isCurrentStreamCapturing=cuda.is_current_stream_capturing)
    patch(torch_module._C, _CUDAGraph=CUDAGraph)
