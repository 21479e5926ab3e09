"""The compiler that a replay uses in place of Inductor.

torch's own Dynamo and AOTAutograd trace the script's functions. This backend receives their graphs and runs the graphs op by op
on virtual tensors, so no code is generated. AOTAutograd divides forward and backward with the partitioner that Inductor uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import CompileContext

from replayer.compiled.compiled_code import ran_eagerly
from replayer.torch_types import TorchAny


def compile_graph(module: TorchAny, inputs: Sequence[TorchAny], **_options: TorchAny) -> Callable[..., TorchAny]:
    """Return a function that runs a graph of Dynamo.

    A graph that AOTAutograd cannot trace on virtual tensors runs eagerly. Errors of Dynamo itself are passed on, because Dynamo
    raises them to trace a function again.
    """
    trace = aot_autograd(fw_compiler=_compiled, partition_fn=min_cut_rematerialization_partition)
    try:
        return trace(module, inputs)
    except TorchDynamoException:
        raise
    except Exception as error:
        ran_eagerly(str(CompileContext.current_compile_id() or "?"), error)
        eager: Callable[..., TorchAny] = module.forward
        return eager


def _compiled(graph: TorchAny, _inputs: TorchAny) -> TorchAny:
    return make_boxed_func(graph.forward)
