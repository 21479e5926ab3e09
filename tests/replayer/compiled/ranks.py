"""Contains programs of two ranks that compile. The first rank prints one line per program, in the format of programs.py.

    torchrun --nproc-per-node 2 tests/replayer/compiled/ranks.py cpu aot_eager
    trace replay --nproc 2 ... tests/replayer/compiled/ranks.py cuda inductor
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from programs import PROGRAMS, Compiler, Gpt, _train, main


class Layers(nn.Module):
    """A model of six layers of 1 MiB each. nn.Sequential would not work, because Dynamo skips functions in torch's own
    files."""

    def __init__(self, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(6))
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return x


def _inputs(compiler: Compiler) -> torch.Tensor:
    return torch.ones(4, 512, device=compiler.device)


def ddp_splits_the_graph(compiler: Compiler) -> Any:
    """DDPOptimizer divides the graph, because a bucket of 2 MiB holds only two layers. Returns the number of parts."""
    from torch._dynamo.backends.distributed import DDPOptimizer

    model = DistributedDataParallel(Layers().to(compiler.device), bucket_cap_mb=2)
    compile_fn, parts = DDPOptimizer.compile_fn, []

    def counting(self: Any, graph: Any, inputs: Any) -> Any:
        compiled = compile_fn(self, graph, inputs)
        parts.append(len(self.buckets))
        return compiled

    DDPOptimizer.compile_fn = counting
    _train(model, compiler(model), _inputs(compiler))
    DDPOptimizer.compile_fn = compile_fn
    return parts


def ddp_around_a_compiled_model(compiler: Compiler) -> Any:
    model = DistributedDataParallel(compiler(Layers().to(compiler.device)), bucket_cap_mb=2)
    _train(model, model, _inputs(compiler))


def ddp_without_its_optimizer(compiler: Compiler) -> Any:
    with torch._dynamo.config.patch(optimize_ddp=False):
        model = DistributedDataParallel(Layers().to(compiler.device), bucket_cap_mb=2)
        _train(model, compiler(model), _inputs(compiler))


def ddp_of_a_gpt(compiler: Compiler) -> Any:
    model = DistributedDataParallel(Gpt(width=256).to(compiler.device), bucket_cap_mb=1)
    tokens = torch.zeros(2, 8, dtype=torch.long, device=compiler.device)
    _train(model, compiler(model), tokens, tokens)


def ddp_with_checkpointing(compiler: Compiler) -> Any:
    model = DistributedDataParallel(Layers(checkpoints=True).to(compiler.device), bucket_cap_mb=2)
    _train(model, compiler(model), _inputs(compiler))


def ddp_accumulates(compiler: Compiler) -> Any:
    model = DistributedDataParallel(Layers().to(compiler.device))
    compiled = compiler(model)
    with model.no_sync():
        compiled(_inputs(compiler)).sum().backward()
    compiled(_inputs(compiler)).sum().backward()


def _sharded(model: nn.Module, blocks: Any, compiler: Compiler) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(compiler.device, (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2_of_compiled_blocks(compiler: Compiler) -> Any:
    """Compiles each block in place and shards it, as torchtitan does."""
    model = Gpt().to(compiler.device)
    for block in model.blocks:
        block.compile(backend=compiler.backend)
    _sharded(model, model.blocks, compiler)
    tokens = torch.zeros(2, 8, dtype=torch.long, device=compiler.device)
    _train(model, model, tokens, tokens)


def fsdp2_compiled_as_a_whole(compiler: Compiler) -> Any:
    model = Layers().to(compiler.device)
    _sharded(model, model.layers, compiler)
    _train(model, compiler(model), _inputs(compiler))


def all_reduce_in_a_graph(compiler: Compiler) -> Any:
    from torch.distributed._functional_collectives import all_reduce

    function = compiler(lambda x: all_reduce(x.sin(), "sum", dist.group.WORLD).cos())
    return list(function(_inputs(compiler)).shape)


def all_reduce_in_place(compiler: Compiler) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    return list(compiler(function)(_inputs(compiler)).shape)


if __name__ == "__main__":
    PROGRAMS.clear()
    PROGRAMS.update({name: of for name, of in dict(globals()).items() if name.startswith(("ddp", "fsdp2", "all_reduce"))})
    device = sys.argv[1]
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    with contextlib.redirect_stdout(sys.stdout if dist.get_rank() == 0 else io.StringIO()):
        main()
    dist.destroy_process_group()
