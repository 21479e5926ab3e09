"""Replaces Inductor, the compiler behind torch.compile. A replay runs the ops of a compiled function one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from threading import get_ident

from replayer.compiled.regions import CompiledRegion, RegionGraph
from replayer.state import STATE, gpu
from replayer.torch_types import TorchAny, TorchFunction
from traces.compiled.compiled_code import ran_eagerly
from traces.model.run import EagerRegion
from traces.script.patching import temporarily_set


def compile_graph(module: TorchAny, inputs: Sequence[TorchAny], **_options: TorchAny) -> TorchFunction:
    """Compile a graph that Dynamo has traced. A graph runs eagerly if its backward pass cannot be traced."""
    # Importing AOTAutograd takes a second, so import it only when a script compiles a function.
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import TorchDynamoException
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import CompileContext

    name = str(CompileContext.current_compile_id() or "?")
    region = CompiledRegion(name)

    def compiler(*, is_backward: bool, trains: bool) -> Callable[[TorchAny, TorchAny], RegionGraph]:
        return lambda graph, _inputs: RegionGraph(region, graph, is_backward=is_backward, trains=trains)

    regions = gpu().recording.regions
    trace = aot_autograd(
        fw_compiler=compiler(is_backward=False, trains=True),
        bw_compiler=compiler(is_backward=True, trains=True),
        inference_compiler=compiler(is_backward=False, trains=False),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=_decompositions() if len(regions) else None,
        keep_inference_input_mutations=True,  # a compiled graph may write to its input buffers
    )
    try:
        with temporarily_set(STATE, compiling=get_ident()):
            return trace(module, inputs)
    except TorchDynamoException:
        raise
    except Exception as error:
        report_eager(ran_eagerly(name, type(error).__name__, str(error)))
        eager: TorchFunction = module.forward
        return eager


def report_eager(one: EagerRegion) -> None:
    print(f"trace: compiled region {one.region} cannot be traced and runs eagerly ({one.reason})", file=sys.stderr)


def _decompositions() -> TorchAny:
    import_module("torch._inductor.lowering")  # the decomposition of max pooling reads its attribute in torch._inductor
    return import_module("torch._inductor.decomposition").select_decomp_table()
