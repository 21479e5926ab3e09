"""Contains small programs that compile. Each function runs one program and returns results that do not depend on the device.

    python tests/replayer/compiled/programs.py cpu aot_eager            # natively
    trace replay --trace FILE tests/replayer/compiled/programs.py cuda inductor

Each line of the output is one program: its name, torch._dynamo's counters and the facts.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

Program = Callable[["Compiler"], Any]
PROGRAMS: dict[str, Program] = {}

# If autograd is compiled, Dynamo also traces torch's own Python functions. Their number differs from run to run.
UNSTABLE = {"autograd_compiled"}


class Compiler:
    """Compiles for one device with one backend."""

    def __init__(self, device: str, backend: str) -> None:
        self.device = device
        self.backend = backend

    def __call__(self, function: Any = None, **options: Any) -> Any:
        if self.backend != "inductor":
            options.pop("mode", None)
        if function is None:
            return partial(self, **options)
        return torch.compile(function, backend=self.backend, **options)

    def tensor(self, *shape: int, **options: Any) -> torch.Tensor:
        return torch.ones(*shape, device=self.device, **options)


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def _train(model: Any, compiled: Any, *inputs: Any, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        output = compiled(*inputs)
        output.float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def mlp(compiler: Compiler) -> Any:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(compiler.device)
    _train(model, compiler(model), compiler.tensor(4, 8))


@program
def convolutions(compiler: Compiler) -> Any:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    model = nn.Sequential(*layers)
    model.to(compiler.device)
    _train(model, compiler(model, mode="max-autotune"), compiler.tensor(2, 3, 8, 8))


class Attention(nn.Module):
    """Causal self-attention as in nanoGPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, layers: int = 2, width: int = 16, heads: int = 2, words: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@program
def gpt(compiler: Compiler) -> Any:
    model = Gpt().to(compiler.device)
    tokens = torch.zeros(2, 8, dtype=torch.long, device=compiler.device)
    _train(model, compiler(model), tokens, tokens)


@program
def gpt_autocast(compiler: Compiler) -> Any:
    model = Gpt().to(compiler.device)
    compiled = compiler(model)
    tokens = torch.zeros(2, 8, dtype=torch.long, device=compiler.device)
    with torch.autocast(compiler.device, torch.bfloat16):
        loss = compiled(tokens, tokens)
    loss.backward()


@program
def layers_compiled_one_by_one(compiler: Compiler) -> Any:
    """Compiles each block in place, as torchtitan and torchtune do."""
    model = Gpt(layers=3).to(compiler.device)
    for block in model.blocks:
        block.compile(backend=compiler.backend)
    tokens = torch.zeros(2, 8, dtype=torch.long, device=compiler.device)
    _train(model, model, tokens, tokens)


@program
def rms_norm_and_rotary(compiler: Compiler) -> Any:
    """A network like modded-nanogpt, with normalization, rotary position embeddings and squared ReLU."""

    @compiler
    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.rms_norm(x, (x.size(-1),))
        half = y.size(-1) // 2
        angle = torch.outer(torch.arange(y.size(1), device=y.device), 1.0 / 1e4 ** torch.linspace(0, 1, half, device=y.device))
        first, second = y.chunk(2, dim=-1)
        y = torch.cat([first * angle.cos() + second * angle.sin(), second * angle.cos() - first * angle.sin()], -1)
        return x + F.relu(y @ weight).square()

    weight = compiler.tensor(8, 8, requires_grad=True)
    block(compiler.tensor(2, 4, 8), weight).sum().backward()
    assert weight.grad is not None


@program
def print_breaks_the_graph(compiler: Compiler) -> Any:
    @compiler
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print("broken", file=sys.stderr)
        return x.cos()

    function(compiler.tensor(4))


@program
def item_breaks_the_graph(compiler: Compiler) -> Any:
    @compiler
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() + 1

    function(compiler.tensor(4))


@program
def branch_on_values(compiler: Compiler) -> Any:
    @compiler
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.sum() > 0 else x.cos()

    function(compiler.tensor(4))


@program
def numpy_inside(compiler: Compiler) -> Any:
    import numpy as np

    @compiler
    def function(x: torch.Tensor, y: Any) -> torch.Tensor:
        return x * float(np.prod(y.shape)) + 1

    function(compiler.tensor(4), np.ones((2, 3)))


@program
def full_graph_error(compiler: Compiler) -> Any:
    @compiler(fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    try:
        function(compiler.tensor(4))
    except Exception as error:
        return [type(error).__name__, str(error).splitlines()[0]]
    raise AssertionError("fullgraph=True accepted a graph break")


@program
def sizes_become_dynamic(compiler: Compiler) -> Any:
    function = compiler(lambda x: x.relu() + x.shape[0])
    return [list(function(compiler.tensor(size, 4)).shape) for size in (3, 4, 5, 6)]


@program
def always_static(compiler: Compiler) -> Any:
    function = compiler(lambda x: x.relu() * 2, dynamic=False)
    for size in (3, 4, 5, 6):
        function(compiler.tensor(size, 4))


@program
def dynamic_from_the_start(compiler: Compiler) -> Any:
    function = compiler(lambda x: (x @ x.T).softmax(-1), dynamic=True)
    for size in (3, 4, 5):
        function(compiler.tensor(size, 4))


@program
def marked_dynamic(compiler: Compiler) -> Any:
    function = compiler(lambda x: x.relu().sum(1))
    for size in (3, 4, 5):
        x = compiler.tensor(size, 4)
        torch._dynamo.mark_dynamic(x, 0)
        function(x)


@program
def marked_dynamic_wrongly(compiler: Compiler) -> Any:
    function = compiler(lambda x: x.view(3, 4).sin())
    x = compiler.tensor(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    try:
        function(x)
    except Exception as error:
        return type(error).__name__
    raise AssertionError("a specialized dimension was accepted as dynamic")


@program
def parameters_as_arguments(compiler: Compiler) -> Any:
    """PyTorch compiles a function again for each size of a parameter."""
    total = compiler(lambda x: x.sum())
    for rows in (2, 3, 4):
        total(nn.Parameter(compiler.tensor(rows, 4)))


@program
def recompiles_until_the_limit(compiler: Compiler) -> Any:
    @compiler(dynamic=False)
    def function(x: torch.Tensor, flag: int) -> torch.Tensor:
        return x + flag

    for number in range(12):
        function(compiler.tensor(number + 2), number)


@program
def recompiling_is_an_error(compiler: Compiler) -> Any:
    function = compiler(lambda x: x.sin(), dynamic=False)
    function(compiler.tensor(3))
    with torch._dynamo.config.patch(error_on_recompile=True):
        try:
            function(compiler.tensor(4))
        except Exception as error:
            return type(error).__name__
    raise AssertionError("a recompilation was accepted")


@program
def stances(compiler: Compiler) -> Any:
    function = compiler(lambda x: x.sin() if torch.compiler.is_compiling() else x.cos(), dynamic=False)
    function(compiler.tensor(3))
    with torch.compiler.set_stance("force_eager"):
        function(compiler.tensor(4))
    with torch.compiler.set_stance("eager_on_recompile"):
        function(compiler.tensor(5))
    with torch.compiler.set_stance("fail_on_recompile"):
        try:
            function(compiler.tensor(6))
        except RuntimeError as error:
            return str(error).splitlines()[0][:60]
    raise AssertionError("a recompilation was accepted")


@program
def disabled_function(compiler: Compiler) -> Any:
    @torch.compiler.disable
    def eager(x: torch.Tensor) -> torch.Tensor:
        assert not torch.compiler.is_compiling()
        return x.cos()

    compiler(lambda x: eager(x.sin()) + 1)(compiler.tensor(4))


@program
def disabled_without_its_callees(compiler: Compiler) -> Any:
    @torch.compiler.disable(recursive=False)
    def outside(x: torch.Tensor) -> torch.Tensor:
        return inside(x + 1)

    def inside(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    return compiler(lambda x: outside(x.sin()) * 2)(compiler.tensor(4)).shape


@program
def allowed_in_graph(compiler: Compiler) -> Any:
    @torch.compiler.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.cos() * 2

    compiler(lambda x: opaque(x.sin()) + 1, fullgraph=True)(compiler.tensor(4))


@program
def explained(compiler: Compiler) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos() + 1

    told = torch._dynamo.explain(function)(compiler.tensor(4))
    return [told.graph_count, told.graph_break_count, told.op_count]


@contextlib.contextmanager
def logging_compilations() -> Iterator[io.StringIO]:
    """The returned stream gets the log texts of TORCH_LOGS=graph_breaks,recompiles until the `with` block ends."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    torch._logging.set_logs(graph_breaks=True, recompiles=True)
    loggers = [logging.getLogger(name) for name in ("torch._dynamo", "torch._dynamo.symbolic_convert", "torch._dynamo.guards")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield said
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        torch._logging.set_logs()


@program
def logged(compiler: Compiler) -> Any:
    """Returns the log texts of a module that is compiled for two sizes and has a graph break."""
    layer = nn.Linear(3, 3).to(compiler.device)

    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return (torch._dynamo.graph_break(), layer(x).sin())[1]

    with logging_compilations() as said:
        function = compiler(Model(), dynamic=False)
        function(compiler.tensor(2, 3))
        function(compiler.tensor(4, 3))
    text = said.getvalue()
    assert "size mismatch at index 0. expected 2, actual 4" in text
    return text


@program
def optimizer_step(compiler: Compiler) -> Any:
    model = nn.Linear(4, 4).to(compiler.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    step = compiler(lambda: optimizer.step())
    for _ in range(3):
        model(compiler.tensor(2, 4)).sum().backward()
        step()
        optimizer.zero_grad()


@program
def scheduled_optimizer_step(compiler: Compiler) -> Any:
    """A learning rate scheduler replaces the optimizer's method `step`, and Dynamo does not trace the replacement."""
    model = nn.Linear(4, 4).to(compiler.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    step = compiler(lambda: optimizer.step())
    for _ in range(2):
        model(compiler.tensor(2, 4)).sum().backward()
        step()
        scheduler.step()


@program
def methods_of_optimizers(compiler: Compiler) -> Any:
    """Dynamo's guards read the default arguments and closures of `step`, which the replayer has wrapped."""
    for kind, options in (("SGD", {"foreach": True, "momentum": 0.9}), ("Muon", {})):
        if hasattr(torch.optim, kind):
            model = nn.Linear(4, 4, bias=False).to(compiler.device)
            optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
            step = compiler(optimizer.step)
            for _ in range(3):
                optimizer.zero_grad()
                model(compiler.tensor(2, 4)).sum().backward()
                step()


@program
def generator_breaks_the_graph(compiler: Compiler) -> Any:
    generator = torch.Generator(compiler.device)
    function = compiler(lambda x: x + torch.bernoulli(x, generator=generator))
    return list(function(compiler.tensor(3)).shape)


@program
def whole_step(compiler: Compiler) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(compiler.device)

    @compiler
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), torch.zeros(3, 2, device=x.device))

    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss_of(compiler.tensor(3, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def whole_step_with_clipping(compiler: Compiler) -> Any:
    model = nn.Linear(4, 4).to(compiler.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    @compiler
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return [list(step(compiler.tensor(2, 4)).shape) for _ in range(2)]


@program
def checkpointed(compiler: Compiler) -> Any:
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4)).to(compiler.device)
    compiled = compiler(lambda x: checkpoint(model, x, use_reentrant=False) * 2)
    compiled(compiler.tensor(2, 4, requires_grad=True)).sum().backward()


@program
def checkpointed_with_dropout(compiler: Compiler) -> Any:
    """The backward pass restores the state of the random generator and computes the dropout again."""
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 4)).to(compiler.device)
    compiled = compiler(lambda x: checkpoint(model, x, use_reentrant=False) * 2)
    compiled(compiler.tensor(2, 4, requires_grad=True)).sum().backward()


@program
def encoder_inference(compiler: Compiler) -> Any:
    """The layer asks whether autocast is enabled, and Dynamo evaluates this call while it traces."""
    model = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).to(compiler.device).eval()
    with torch.inference_mode():
        compiler(model)(compiler.tensor(2, 3, 8))


@program
def flexible_attention(compiler: Compiler) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device=compiler.device)
    q = compiler.tensor(1, 2, 128, 16)
    return list(compiler(flex_attention)(q, q, q, block_mask=mask).shape)


@program
def autograd_compiled(compiler: Compiler) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(compiler.device)

    def train(x: torch.Tensor) -> None:
        model(x).sum().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = compiler(train)
        for _ in range(2):
            compiled(compiler.tensor(3, 4))


@program
def evaluation(compiler: Compiler) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)).to(compiler.device)
    compiled = compiler(model)
    _train(model, compiled, compiler.tensor(3, 4), steps=2)
    model.eval()
    with torch.no_grad():
        compiled(compiler.tensor(3, 4))


@program
def mutated_inputs(compiler: Compiler) -> Any:
    @compiler
    def function(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.add_(x)
        return out.view(-1)[1:]

    return list(function(compiler.tensor(2, 3), compiler.tensor(2, 3)).shape)


@program
def hooks_and_buffers(compiler: Compiler) -> Any:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return self.inner(x) * self.count

    model = Counting().to(compiler.device)
    model.inner.register_forward_hook(lambda _module, _inputs, output: output * 2)
    _train(model, compiler(model), compiler.tensor(2, 4))


@program
def conditional(compiler: Compiler) -> Any:
    function = compiler(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    return list(function(compiler.tensor(3)).shape)


@program
def vectorized(compiler: Compiler) -> Any:
    function = compiler(lambda x: torch.func.vmap(torch.func.grad(lambda y: (y * y).sum()))(x))
    return list(function(compiler.tensor(3, 4)).shape)


@program
def recurrent(compiler: Compiler) -> Any:
    model = nn.LSTM(4, 8, batch_first=True).to(compiler.device)
    compiler(model)(compiler.tensor(2, 3, 4))[0].sum().backward()


@program
def unet(compiler: Compiler) -> Any:
    """A network like those in diffusers, with group norms, skip connections and a time embedding."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Linear(8, 8)
            self.down, self.up = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1)
            self.norm = nn.GroupNorm(2, 8)

        def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            angles = time[:, None] * torch.exp(torch.arange(4, device=x.device) / -4)
            h = self.down(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
            return x + self.up(F.silu(self.norm(h)))

    model = Net().to(compiler.device)
    _train(model, compiler(model), compiler.tensor(2, 3, 8, 8), compiler.tensor(2))


@program
def default_device(compile: Compiler) -> Any:
    """Calls a tensor method and two factories that the replayer replaces, while a default device is set. Dynamo traces the
    default device as a function mode, which gives the factories this device."""

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype=torch.float64) + torch.zeros(3) + torch.arange(3)

    torch.set_default_device(compile.device)
    try:
        result = compile(moved, fullgraph=True)(torch.ones(3))
        return [str(result.dtype), result.device.type == compile.device]
    finally:
        torch.set_default_device(None)


@program
def attention_with_score_and_document_masks(compiler: Compiler) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    bias = compiler.tensor(4)
    attend, make_mask = compiler(flex_attention), compiler(create_block_mask)
    shapes = []
    for length in (128, 256, 384):
        documents = torch.arange(length, device=compiler.device) // 50

        def in_document(_batch: Any, _head: Any, q: Any, k: Any, documents: torch.Tensor = documents) -> Any:
            return (q >= k) & (documents[q] == documents[k])

        mask = make_mask(in_document, None, None, length, length, device=compiler.device)
        q, k = compiler.tensor(1, 4, length, 16), compiler.tensor(1, 2, length, 16)
        score = attend(q, k, k, score_mod=lambda s, _b, h, q, k: s + bias[h] * (q - k), block_mask=mask, enable_gqa=True)
        shapes.append(list(score.shape))
    return shapes


@program
def decoding_with_a_cache(compiler: Compiler) -> Any:
    """The prompt has a dynamic length. Each further token is written to the cache at a position that is in a tensor."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)
            self.keys, self.values = nn.Buffer(torch.zeros(1, 2, 32, 8)), nn.Buffer(torch.zeros(1, 2, 32, 8))
            self.mask = nn.Buffer(torch.ones(32, 32, dtype=torch.bool).tril())

        def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.view(1, -1, 2, 8).transpose(1, 2) for part in self.qkv(x).split(16, -1))
            self.keys[:, :, place], self.values[:, :, place] = k, v
            y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=self.mask[None, None, place])
            return y.transpose(1, 2).reshape(1, -1, 16)

    model = Cached().to(compiler.device).eval()
    prompt, step = compiler(model.forward, dynamic=True), compiler(model, mode="reduce-overhead", fullgraph=True)
    place = torch.tensor([5], device=compiler.device)
    with torch.no_grad():
        x = prompt(compiler.tensor(1, 5, 16), torch.arange(5, device=compiler.device))[:, -1:]
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            x = step(x.clone(), place)
            place += 1
    return list(x.shape)


@program
def custom_ops(compiler: Compiler) -> Any:
    """The program has two custom ops: one has a gradient, and the size of the other's result depends on values."""

    @torch.library.custom_op("compiled_programs::scale", mutates_args=())
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    scale.register_fake(lambda x, by: torch.empty_like(x))
    scale.register_autograd(lambda ctx, g: (g * 2.0, None), setup_context=lambda ctx, inputs, output: None)

    @torch.library.custom_op("compiled_programs::some", mutates_args=())
    def some(x: torch.Tensor) -> torch.Tensor:
        return x[:3].clone()

    some.register_fake(lambda x: x.new_empty((torch.library.get_ctx().new_dynamic_size(),)))
    x = compiler.tensor(4, requires_grad=True)
    compiler(lambda x: scale(x.sin(), 2.0) + 1, fullgraph=True)(x).sum().backward()
    return compiler(lambda x: some(x).sin() * 2, fullgraph=True)(compiler.tensor(5)).dim()


@program
def autograd_functions(compiler: Compiler) -> Any:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return 2 * ctx.saved_tensors[0] * gradient

    compiler(lambda x: Square.apply(x.sin()).sum(), fullgraph=True)(compiler.tensor(4, requires_grad=True)).backward()


@program
def gradient_penalty(compiler: Compiler) -> Any:
    """The loss contains the gradient of a network. AOTAutograd cannot differentiate such a gradient."""
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(compiler.device)

    def penalty(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        return (gradient.norm(2, dim=1) - 1).square().mean()

    try:
        compiler(penalty)(compiler.tensor(3, 4, requires_grad=True)).backward()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


@program
def gradients_per_sample(compiler: Compiler) -> Any:
    model = nn.Linear(3, 2).to(compiler.device)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss_of(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    gradients = compiler(torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0)))
    tangent = compiler(lambda x: torch.func.jvp(lambda y: (y.sin() * y).sum(), (x,), (torch.ones_like(x),))[1])
    found = gradients(parameters, compiler.tensor(5, 3), compiler.tensor(5, 2))
    return [list(found["weight"].shape), list(tangent(compiler.tensor(3)).shape)]


@program
def loops(compiler: Compiler) -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.map import map as map_rows
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def repeat(x: torch.Tensor) -> Any:
        first = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.sin()), (first, x))

    def carry(x: torch.Tensor) -> Any:
        return scan(lambda total, y: (total + y, total * y), torch.zeros(4, device=x.device), x, dim=0)

    def sums(x: torch.Tensor) -> Any:
        return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")

    def rows(x: torch.Tensor) -> Any:
        return map_rows(lambda a, b: a.sin() + b, x, torch.ones(4, device=x.device))

    return [len(compiler(function)(compiler.tensor(5, 4))) for function in (repeat, carry, sums, rows)]


@program
def nested_regions(compiler: Compiler) -> Any:
    layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]).to(compiler.device)

    @torch.compiler.nested_compile_region
    def block(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(layer(x)) + x

    def total(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = block(layer, x)
        return x.sum()

    compiler(total, fullgraph=True)(compiler.tensor(2, 4)).backward()


@program
def checkpointed_by_policy(compiler: Compiler) -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(_ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    weight = compiler.tensor(4, 4, requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, policy)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x @ weight @ weight).sin()

    compiled = compiler(lambda x: checkpoint(block, x, use_reentrant=False, context_fn=contexts), fullgraph=True)
    compiled(compiler.tensor(4, 4, requires_grad=True)).sum().backward()


@program
def exported_and_compiled(compiler: Compiler) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(compiler.device)
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    exported = torch.export.export(model, (compiler.tensor(3, 4),), dynamic_shapes=sizes)
    return [list(compiler(exported.module())(compiler.tensor(6, 4)).shape), len(list(exported.graph.nodes))]


@program
def marked_unbacked_and_static(compiler: Compiler) -> Any:
    function = compiler(lambda x: x.relu().sum(1), fullgraph=True)
    x, y = compiler.tensor(3, 4), compiler.tensor(5, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    function(x)
    torch._dynamo.maybe_mark_dynamic(y, 0)
    torch._dynamo.mark_static(y, 1)
    function(y)


@program
def sizes_from_values(compiler: Compiler) -> Any:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):

        def zeros(x: torch.Tensor) -> torch.Tensor:
            count = int(x.sum().to(torch.int64).item())
            torch._check(count >= 0)
            torch._check(count < 100)
            return torch.zeros(count, device=x.device) + 1

        dims = [compiler(zeros, fullgraph=True)(compiler.tensor(4)).dim()]
        return [*dims, compiler(lambda x: x.nonzero().float() * 2, fullgraph=True)(compiler.tensor(4)).dim()]


@program
def mixture_of_experts(compiler: Compiler) -> Any:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights, chosen = self.gate(x).softmax(-1).topk(2)
            total, mask = torch.zeros_like(x), F.one_hot(chosen, 4).permute(2, 1, 0)
            for number, expert in enumerate(self.experts):
                place, token = torch.where(mask[number])
                total.index_add_(0, token, expert(x[token]) * weights[token, place, None])
            return total

    compiler(Experts().to(compiler.device))(compiler.tensor(6, 8)).sum().backward()


@program
def orthogonalized_gradients(compiler: Compiler) -> Any:
    """Runs the Newton-Schulz iteration of modded-nanogpt, which is compiled once per shape."""

    @compiler
    def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
        x = gradient.bfloat16() / (gradient.norm() + 1e-7)
        x = x.mT if gradient.size(-2) > gradient.size(-1) else x
        for _ in range(3):
            a = x @ x.mT
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return x.mT if gradient.size(-2) > gradient.size(-1) else x

    model = Gpt().to(compiler.device)
    tokens = torch.zeros(1, 8, dtype=torch.long, device=compiler.device)
    compiled = compiler(model, dynamic=False)
    for _ in range(2):
        compiled(tokens, tokens).backward()
        for parameter in model.parameters():
            if parameter.ndim == 2 and parameter.grad is not None:
                parameter.data.add_(orthogonal(parameter.grad).type_as(parameter), alpha=-0.02)
        model.zero_grad(set_to_none=True)


@program
def chunked_loss(compiler: Compiler) -> Any:
    """Compiles checkpointed blocks in place, and a loss that is computed in chunks, as in torchtune's recipes."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    model = Gpt(layers=3).to(compiler.device)
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    for block in model.blocks:
        block.compile(backend=compiler.backend)
    loss_of = compiler(lambda logits, words: F.cross_entropy(logits.float(), words, reduction="sum"))
    for length in (8, 12):
        words = torch.zeros(2, length, dtype=torch.long, device=compiler.device)
        chunks = zip(model(words).chunk(4, 1), words.chunk(4, 1), strict=True)
        sum(loss_of(logits.flatten(0, 1), chunk.flatten()) for logits, chunk in chunks).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def run(name: str, compiler: Compiler) -> dict[str, Any]:
    """Runs one program with fresh counters."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    with contextlib.redirect_stderr(io.StringIO()):
        facts = PROGRAMS[name](compiler)
    kept = {key: dict(value) for key, value in counters.items() if key not in ("inductor", "aot_autograd")}
    if name in UNSTABLE:
        kept = {key: kept[key] for key in ("stats", "compiled_autograd")}
    text = re.sub("0x[0-9a-f]+", "ADDRESS", json.dumps({"program": name, "counters": kept, "facts": facts}))
    return json.loads(text)


def main() -> None:
    import torch._dynamo

    torch.manual_seed(0)
    compiler = Compiler(*sys.argv[1:3])
    for name in sys.argv[3:] or PROGRAMS:
        try:
            print(json.dumps(run(name, compiler)))
        except Exception as error:
            print(json.dumps({"program": name, "error": f"{type(error).__name__}: {error}"[:800]}))


if __name__ == "__main__":
    main()
