"""Tests that the compiled regions of a script get the kernels of the recorded regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

import traces
from replayer.compiled.regions import _fill
from tests.replayer.compiled.handmade_recording import SCRIPT, STEP_US, Events, backward, forward, recording
from tests.replayer.compiled.replaying import timeline_of
from traces.compiled.regions import region_calls
from traces.model.machine import Machine
from traces.model.run import RECORDER
from traces.model.trace import NONE, Origin, Phases, StepKind, Trace
from tui.commands.replay_library import ReplaySource, source_of

FORWARD, BACKWARD = ["sgemm", "triton_poi_fused_relu_0"], ["triton_poi_fused_1", "sgemm_t"]
TIMES_US = {"sgemm": 11, "triton_poi_fused_relu_0": 7, "triton_poi_fused_1": 9, "sgemm_t": 13}

# In this script, each step calls a compiled function without gradients.
WITHOUT_GRADIENTS = """
import torch

compiled = torch.compile({compiled})
x, weight = torch.ones(16, 8, device="cuda"), torch.ones(16, 8, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    with torch.no_grad():
        compiled(x)
    weight.grad = x
    optimizer.step()
"""

pytestmark = pytest.mark.warm


def replay(recorded: Trace, *, mode: str = "default", batch: int = 16) -> Trace:
    return replay_script(SCRIPT.format(mode=mode, batch=batch), recorded)


def replay_script(text: str, recorded: Trace) -> Trace:
    return timeline_of(text, ReplaySource("recorded.msgpack", recorded))


def kernels_of(trace: Trace) -> list[tuple[str, bool, list[str]]]:
    names = trace.strings
    return [
        (call.region, call.is_backward, [names[trace.device.name[row]] for row in call.work]) for call in region_calls(trace)
    ]


@pytest.mark.parametrize("graphs", [False, True])
def test_a_compiled_region_replays_the_kernels_of_its_recorded_call(graphs: bool) -> None:
    """GIVEN a recorded loop with one region WHEN it is replayed THEN each forward and each backward pass has the recorded
    kernels and times."""
    recorded = recording(graphs=graphs)
    assert kernels_of(recorded) == [("0/0", False, FORWARD), ("0/0", True, BACKWARD)] * 3
    made = replay(recorded, mode="reduce-overhead" if graphs else "default")
    assert kernels_of(made) == [("0/0", False, FORWARD), ("0/0", True, BACKWARD)] * 4
    for call in region_calls(made):
        for row in call.work:
            assert made.device.duration_ns[row] == 1000 * TIMES_US[made.strings[made.device.name[row]]]
            assert made.device.origin[row] == Origin.EXACT
    launching = [made.strings[made.host.name[row]] for row in region_calls(made)[0].launching]
    assert launching == (["cudaGraphLaunch"] if graphs else ["aten::addmm", "triton_poi_fused_relu_0"])
    assert {made.strings[made.host.dtypes[row]] for row in region_calls(made)[0].launching} == (
        {""} if graphs else {"float32;float32;float32", "float32;bfloat16"}
    )
    assert traces.compare(recorded, made).verdict.same
    # THEN a forward pass allocates one block, as recorded. With a CUDA graph, it allocates nothing outside of the graph's pool.
    forward = region_calls(made)[0]
    start_ns, end_ns = made.host.start_ns[forward.row], made.host.end_ns[forward.row]
    within = (made.memory.time_ns >= start_ns) & (made.memory.time_ns <= end_ns)
    assert made.memory.bytes[within].tolist() == ([] if graphs else [512])


def test_the_backend_cudagraphs_launches_the_recorded_graphs() -> None:
    script = SCRIPT.format(mode="default", batch=16).replace('mode="default"', 'backend="cudagraphs"')
    made = replay_script(script, recording(graphs=True))
    assert kernels_of(made) == [("0/0", False, FORWARD), ("0/0", True, BACKWARD)] * 4
    launching = {made.strings[made.host.name[row]] for call in region_calls(made) for row in call.launching}
    assert launching == {"cudaGraphLaunch"}


def test_the_copy_of_inputs_into_a_cuda_graph_begins_the_forward_pass() -> None:
    """The recording has an op that copies the inputs of a CUDA graph. In the replay, the forward pass begins with this op, and
    no phase "other" precedes it."""
    events = Events()
    for step in range(3):
        at = events.step_with_region(step)
        events.op("aten::_foreach_copy_", at + 130, 20, [[16, 8], [16, 8]])
        events.launch("cudaLaunchKernel", at + 135, ("copy_kernel", 2))
        events.launch("cudaGraphLaunch", at + 160, ("triton_poi_fused_sin_0", 7), graph=5)
        events.optimizer_step(at + 700, [[16, 8], [16, 8]])
    script = """
import torch

compiled = torch.compile(torch.sin, mode="reduce-overhead")
weight = torch.ones(16, 8, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    x = torch.ones(16, 8).cuda()
    with torch.no_grad():
        compiled(x)
    weight.grad = x
    optimizer.step()
"""
    made = replay_script(script, events.trace())
    last = made.phases.step == len(made.steps) - 1
    names = [made.strings[name] for name in made.phases.name[last].tolist()]
    assert names == ["other", "h2d", "forward", "optimizer"]  # in the phase "other", the script creates x on the CPU


def test_a_cuda_graph_keeps_a_copy_of_its_input_for_the_backward_pass() -> None:
    """The script passes a temporary tensor to a forward pass that launches a CUDA graph. The tensor is freed, because the
    backward pass reads the graph's copy."""
    script = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
before = torch.cuda.memory_allocated()
for _ in range(4):
    loss = compiled(torch.ones(16, 8, device="cuda")).mean()
    assert torch.cuda.memory_allocated() - before == 512, torch.cuda.memory_allocated() - before
    loss.backward()
    model.zero_grad()
    del loss
"""
    made = replay_script(script, recording(graphs=True))
    assert kernels_of(made) == [("0/0", False, FORWARD), ("0/0", True, BACKWARD)] * 4


def test_compiled_attention_has_the_kernel_that_cuda_chooses() -> None:
    """GIVEN attention in half precision on an A100 WHEN it is compiled THEN it launches one flash attention kernel, as in eager
    mode."""
    script = """
import torch
from torch.nn.functional import scaled_dot_product_attention

attention = torch.compile(lambda q: scaled_dot_product_attention(q, q, q, is_causal=True))
attention(torch.ones(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)).sum().backward()
with torch.no_grad():
    attention(torch.ones(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16))
"""
    trace = timeline_of(script, source_of("", "a100", estimate=True))
    names = [trace.strings[name] for name in trace.host.name]
    assert names.count("aten::_scaled_dot_product_flash_attention") == 2
    assert names.count("aten::_scaled_dot_product_flash_attention_backward") == 1
    assert "aten::bmm" not in names


def test_a_call_of_a_compiled_method_does_not_count_as_a_module_call() -> None:
    """GIVEN a script that compiles the `forward` method of a module THEN the module of the compiled graph is not reported.
    Scripts do this for the decoding steps of language models."""
    script = """
import torch

model = torch.nn.Linear(8, 8).cuda()
forward = torch.compile(model.forward)
with torch.no_grad():
    for _ in range(2):
        model(forward(torch.ones(4, 8).cuda()))
"""
    made = timeline_of(script, source_of("", "v100", estimate=True))
    assert made.workload is not None and made.workload.modules == {"Linear": 1}


def test_a_compiled_call_without_gradients_is_an_evaluation_step_if_the_script_trains() -> None:
    """GIVEN two batches of a compiled function, and then a new batch with which another function is trained THEN each of the
    two batches is an evaluation step."""
    script = """
import torch

model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
act = torch.compile(lambda x: model(x).softmax(1))
loss = torch.compile(lambda x: model(x).mean())
for _ in range(3):
    with torch.no_grad():
        act(torch.ones(16, 8).cuda())
        act(torch.ones(16, 8).cuda())
    loss(torch.ones(16, 8).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    made = timeline_of(script, source_of("", "v100", estimate=True))
    assert (made.steps.kind == StepKind.EVALUATION).tolist() == [True, True, False] * 3


def test_a_region_with_other_input_sizes_scales_the_times_of_the_recorded_ops() -> None:
    """GIVEN recorded batches of 16 WHEN the script's batches have 32 rows THEN the recorded ops get 32 rows and scaled
    times."""
    made = replay(recording(), batch=32)
    strings, host = made.strings, made.host
    ops = [[(strings[host.name[row]], strings[host.shapes[row]]) for row in call.launching] for call in region_calls(made)]
    forward = [("aten::addmm", "4;32,8;8,4"), ("triton_poi_fused_relu_0", "32,4;32,4")]
    assert ops == [forward, [("triton_poi_fused_1", "32,4;32,4"), ("aten::mm", "4,32;32,8")]] * 4
    rows = [row for call in region_calls(made) for row in call.work]
    assert set(made.device.origin[rows].tolist()) == {Origin.SCALED}


def test_a_region_with_different_ops_does_not_take_recorded_kernels() -> None:
    """GIVEN a recorded region of a product and a ReLU WHEN the script's region is a softmax THEN its ops run one by one."""
    script = """
import torch

x = torch.ones({batch}, 8, device="cuda", requires_grad=True)
compiled = torch.compile(lambda x: x.softmax(1))
for _ in range(4):
    compiled(x).mean().backward()
"""
    made = replay_script(script.format(batch=32), recording())
    for _, is_backward, names in kernels_of(made):
        assert not set(names) & {"triton_poi_fused_relu_0", "triton_poi_fused_1"}, is_backward
    assert len(kernels_of(made)) == 8


def test_an_unrecorded_compiled_region_allocates_as_much_memory_as_with_inductor() -> None:
    """GIVEN a recording without this region WHEN three pointwise ops are compiled THEN only one block is allocated."""
    script = """
import torch

x = torch.ones(32, 8, device="cuda")
pointwise = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Sigmoid(), torch.nn.ReLU())
with torch.no_grad():
    y = torch.compile(pointwise)(x)
"""
    made = replay_script(script, recording())
    (call,) = region_calls(made)
    assert len(call.launching) == 3
    # These are the blocks of x and y. While PyTorch 2.10 traces the module, it also allocates 512 bytes.
    assert made.memory.bytes[made.memory.bytes > 512].tolist() == [1024, 1024]


def test_each_backward_pass_uses_the_shapes_of_its_forward_pass() -> None:
    """GIVEN a region that is called with batches of 16 and 32 THEN the first backward pass has the recorded product of 32 rows.
    The second one has the product of 16 rows."""
    events, step_us = Events(), 2000
    for step in range(3):
        at = step * step_us
        events.host("user_annotation", f"ProfilerStep#{step + 1}", at, step_us - 10)
        forward(events, at + 100, 2 * step, graphs=False, batch=16)
        forward(events, at + 300, 2 * step + 1, graphs=False, batch=32)
        backward(events, at + 600, 2 * step + 1, graphs=False, batch=32)
        backward(events, at + 900, 2 * step, graphs=False, batch=16)
        events.optimizer_step(at + 1500, [[4, 8], [4], [4, 8], [4]])
    made = replay_script(
        """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).cuda()
compiled = torch.compile(model, dynamic=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
small, large = torch.ones(16, 8, device="cuda"), torch.ones(32, 8, device="cuda")
for _ in range(3):
    (compiled(small).mean() + compiled(large).mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        events.trace(),
    )
    products = [
        made.strings[made.host.shapes[row]]
        for call in region_calls(made)
        if call.is_backward
        for row in call.launching
        if made.strings[made.host.name[row]] == "aten::mm"
    ]
    assert products == ["4,32;32,8", "4,16;16,8"] * 3


def test_a_region_with_a_nested_tensor_takes_the_recorded_ops() -> None:
    """GIVEN a recorded region whose nested argument has 16 rows, but no recorded shape WHEN the script calls the region with 16
    rows and then with 32 rows THEN the first call takes the recorded ops. The second forward pass takes the same ops with 32
    rows."""
    made = replay_script(
        """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in (16, 32):
    parts = [torch.ones(rows // 4, 8), torch.ones(rows - rows // 4, 8)]
    compiled(torch.nested.nested_tensor(parts, layout=torch.jagged).cuda()).values().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        recording(nested=True),
    )
    names = made.strings
    calls = [call.launching for call in region_calls(made)]
    called = [[(names[made.host.name[row]], names[made.host.shapes[row]]) for row in rows] for rows in calls]
    backward = [("triton_poi_fused_1", "16,4;16,4"), ("aten::mm", "4,16;16,8")]
    assert called[:3] == [
        [("aten::addmm", "4;16,8;8,4"), ("triton_poi_fused_relu_0", "16,4;16,4")],
        backward,
        [("aten::addmm", "4;32,8;8,4"), ("triton_poi_fused_relu_0", "32,4;32,4")],
    ]


def test_a_value_that_compiled_code_reads_is_copied_once() -> None:
    """GIVEN a recorded call of `torch.cond` with one copy to the host THEN the replay has one copy, too. The branches do not
    count as modules of the script."""
    events = Events()
    for step in range(3):
        at = events.step_with_region(step)
        events.op("triton_per_fused_gt_sum_0", at + 130, 10, [[16, 8], []])
        events.launch("cuLaunchKernel", at + 135, ("triton_per_fused_gt_sum_0", 6))
        events.op("aten::item", at + 150, 30, [[]])
        events.op("aten::_local_scalar_dense", at + 151, 28, [[]])
        events.copy_to_host(at + 155, 2)
        events.op("triton_poi_fused_sin_1", at + 190, 10, [[16, 8], [16, 8]])
        events.launch("cuLaunchKernel", at + 195, ("triton_poi_fused_sin_1", 7))
        events.optimizer_step(at + 700, [[16, 8], [16, 8]])
    compiled = "lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))"
    made = replay_script(WITHOUT_GRADIENTS.format(compiled=compiled), events.trace())
    assert not [name for name in made.strings.texts if name.startswith("nn.Module")]
    names = [made.strings[name] for name in made.device.name.tolist()]
    kernels = ["triton_per_fused_gt_sum_0", "triton_poi_fused_sin_1", "multi_tensor_apply_kernel"]
    assert [name for name in names if name != "aten::fill_"] == ["Memcpy DtoH (Device -> Pageable)", *kernels] * 3


def test_a_copy_to_the_host_in_compiled_code_is_made_once() -> None:
    """GIVEN a recorded region with a kernel and a copy THEN each step of the replay has both once."""
    events = Events()
    for step in range(3):
        at = events.step_with_region(step)
        events.op("triton_per_fused_sum_0", at + 130, 10, [[16, 8], []])
        events.launch("cuLaunchKernel", at + 135, ("triton_per_fused_sum_0", 6))
        events.op("aten::copy_", at + 150, 30, [[16], [16]])
        events.copy_to_host(at + 155, 2)
        events.optimizer_step(at + 700, [[16, 8], [16, 8]])
    made = replay_script(WITHOUT_GRADIENTS.format(compiled="lambda x: x.sum(1).cpu()"), events.trace())
    work = zip((made.strings[name] for name in made.device.name.tolist()), made.device.duration_ns.tolist(), strict=True)
    kernels = [("triton_per_fused_sum_0", 6000), ("multi_tensor_apply_kernel", 4000)]
    assert [one for one in work if one[0] != "aten::fill_"] == [("Memcpy DtoH (Device -> Pageable)", 2000), *kernels] * 3


# In this script, each step calls a compiled function that launches CUDA graphs.
LAUNCHES_GRAPHS = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
kept, overwritten = [], []
for step in range({steps}):
    loss = compiled(torch.ones(16, 8, device="cuda"))
    {after}
"""
FINDS_OVERWRITTEN = """
for number, output in enumerate(kept):
    try:
        output.view(-1).sum()
    except RuntimeError as error:
        assert str(error).startswith("Error: accessing tensor output of CUDAGraphs that has been overwritten"), error
        overwritten.append(number)
assert overwritten == [0, 1], overwritten
"""


def test_an_overwritten_output_of_a_cuda_graph_raises_an_error_when_it_is_read() -> None:
    """GIVEN the outputs of five calls WHEN the script reads them later THEN the first two raise PyTorch's error. They come from
    the warm-up and from the capture of the graph. Outputs of launches are overwritten without an error."""
    after = "loss.mean().backward(); model.zero_grad(); kept.append(loss.detach())"
    replay_script(LAUNCHES_GRAPHS.format(steps=5, after=after) + FINDS_OVERWRITTEN, recording(graphs=True))


def test_a_compiled_function_that_begins_with_unrecorded_code_begins_a_step() -> None:
    """GIVEN a compiled function that begins with an unrecorded division and a graph break THEN each call of the function
    overwrites earlier outputs, as without the division."""
    after = "loss.mean().backward(); model.zero_grad(); kept.append(loss.detach())"
    script = LAUNCHES_GRAPHS.format(steps=5, after=after) + FINDS_OVERWRITTEN
    broken = "def broken(x):\n    x = x / 2\n    torch._dynamo.graph_break()\n    return model(x)\ncompiled = "
    replay_script(script.replace("compiled = ", broken).replace("compile(model", "compile(broken"), recording(graphs=True))


def test_adding_to_the_gradients_of_an_earlier_cuda_graph_raises_an_error() -> None:
    """Without zero_grad, the second backward pass adds to a gradient that the second forward pass has overwritten."""
    script = LAUNCHES_GRAPHS.format(steps=2, after="loss.mean().backward()")
    with pytest.raises(RuntimeError, match="CUDAGraphs that has been overwritten"):
        replay_script(script, recording(graphs=True))
    without_trees = "import torch._inductor.config\ntorch._inductor.config.triton.cudagraph_trees = False\n"
    replay_script(without_trees + script, recording(graphs=True))


def test_outputs_of_a_cuda_graph_are_valid_while_a_backward_pass_is_pending() -> None:
    script = LAUNCHES_GRAPHS.format(steps=3, after="kept.append(loss.mean())")
    replay_script(script + "sum(kept).backward()", recording(graphs=True))


def test_an_unrecorded_compiled_function_in_a_backward_pass_begins_no_step() -> None:
    """GIVEN a gradient hook that calls a compiled function without a recording WHEN the backward pass then launches a CUDA
    graph THEN the script may read all outputs. The compiled function of the hook may use a CUDA graph, and does not end the
    step."""
    after = "loss.register_hook(lambda gradient: halved(gradient)); loss.mean().backward(); model.zero_grad()"
    halved = "import torch\nhalved = torch.compile(lambda x: x / 2, mode='reduce-overhead')\n"
    replay_script(halved + LAUNCHES_GRAPHS.format(steps=3, after=after), recording(graphs=True))


def test_warming_up_and_capturing_a_cuda_graph_frees_cublas_workspaces() -> None:
    """GIVEN a matrix product before each call of a compiled function THEN the first two calls free cuBLAS's workspace of 8.125
    MiB. In these calls, PyTorch warms up and captures the CUDA graph."""
    script = LAUNCHES_GRAPHS.format(steps=0, after="") + """
x, held = torch.ones(16, 8, device="cuda"), []
for _ in range(4):
    x @ x.t()
    before = torch.cuda.memory_allocated()
    compiled(x).mean().backward()
    model.zero_grad()
    held.append(before - torch.cuda.memory_allocated() >= 8519680)
assert held == [True, True, False, False], held
"""
    machine = Machine(torch="2.13.0+cu126", cuda="12.6")
    replay_script(script, replace(recording(graphs=True), machines={0: machine}))


CAPTURES = """
import torch

x, out = torch.ones(16, 8, device="cuda"), torch.zeros(16, 8, device="cuda")
weight = torch.ones(16, 8, device="cuda", requires_grad=True)
weight.grad = torch.ones(16, 8, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.1)
graph, model = torch.cuda.CUDAGraph(), torch.nn.ReLU()
with torch.cuda.graph(graph):
    out.copy_(model(x))
for _ in range(4):
    torch.sub(out, 1).sum()
    x.copy_(torch.ones(16, 8))
    graph.replay()
    optimizer.step()
"""


def with_phases_of_recorder(recorded: Trace, phases: Sequence[str], starts_us: Sequence[int]) -> Trace:
    """Return the recording with the given phases in each of its four steps."""
    begins_ns = recorded.steps.start_ns.repeat(4) + 1000 * np.tile(starts_us, 4)
    recorded.phases = Phases.of(
        step=np.repeat(range(4), 4),
        name=np.tile([recorded.strings.add(name) for name in phases], 4),
        start_ns=begins_ns,
        duration_ns=np.diff([*begins_ns, recorded.steps.end_ns[-1]]),
        device=np.full(16, NONE),
        device_start_ns=np.full(16, NONE),
        device_end_ns=np.full(16, NONE),
    )
    recorded.runs[0] = replace(recorded.runs[0], source=RECORDER)
    return recorded


def test_ops_before_the_cuda_graph_of_a_step_stay_in_the_recorded_phase() -> None:
    """The recorded script computes a sum, copies a batch and launches its own CUDA graph. In the replay, the sum belongs to the
    phase "other", too. The recorder does not see single ops, but it knows the phases of the graph."""
    events, starts = Events(), (0, 200, 350, 500)
    for step in range(4):
        at = step * STEP_US
        events.host("user_annotation", f"ProfilerStep#{step + 1}", at, STEP_US)
        for name, start, shapes in (("aten::sub", 20, [[16, 8], []]), ("aten::sum", 80, [[16, 8]])):
            events.op(name, at + start, 30, shapes)
            events.launch("cudaLaunchKernel", at + start + 10, (f"{name}_kernel", 4))
        events.op("aten::copy_", at + 250, 40, [[16, 8], [16, 8], []])
        events.copy_to_device(at + 260, 512)
        events.launch("cudaGraphLaunch", at + 400, ("relu", 6), ("copy", 3), graph=5)
        events.optimizer_step(at + 520, [[16, 8], [16, 8]])
    recorded = with_phases_of_recorder(events.trace(), ("other", "h2d", "forward", "optimizer"), starts)
    made = replay_script(CAPTURES, recorded)
    for step in range(1, 4):
        found = [made.strings[name] for name in made.phases.name[made.phases.step == step]]
        assert found == ["other", "h2d", "forward", "optimizer"]
    assert (made.device.origin[made.device.start_ns >= made.steps.start_ns[1]] == Origin.EXACT).all()


@pytest.mark.parametrize(
    ("compiled", "op", "shapes", "forward_us"),
    [("torch.compile", "triton_poi_fused_sin_0", [[16, 8], [16, 8]], 100), ("", "aten::sin", [[16, 8]], 450)],
)
def test_a_cuda_graph_with_a_loss_and_its_backward_takes_the_recorded_times(
    compiled: str, op: str, shapes: list[list[int]], forward_us: int
) -> None:
    """Each step of the recorded script calls a function, and launches a CUDA graph of a loss and its backward pass. If the
    function is compiled, the forward pass begins with its call. Otherwise, the call belongs to the phase "other". The replay
    has the recorded kernels and phases."""
    events = Events()
    for step in range(4):
        at = events.step_with_region(step)
        events.op(op, at + 130, 10, shapes)
        events.launch("cuLaunchKernel", at + 135, ("sin", 7))
        events.launch("cudaGraphLaunch", at + 400, ("triton_per_fused_mul_sum_0", 6), ("triton_poi_fused_mul_1", 3), graph=5)
        events.optimizer_step(at + 520, [[16, 8], [16, 8]])
    recorded = with_phases_of_recorder(events.trace(), ("other", "forward", "backward", "optimizer"), (0, forward_us, 450, 500))
    script = f"""
import torch

x, weight = torch.ones(16, 8, device="cuda"), torch.ones(16, 8, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
sin, loss_of = {compiled}(torch.sin), {compiled}(lambda: (x * weight).sum())
sin(x)
loss_of().backward()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss_of().backward()
for _ in range(4):
    sin(x)
    graph.replay()
    optimizer.step()
"""
    made = replay_script(script, recorded)
    later = made.device.start_ns >= made.steps.start_ns[2]  # the GPU finishes the ops of the first step during the second step
    assert (made.device.origin[later] == Origin.EXACT).all()
    last = [made.strings[name] for name in made.phases.name[made.phases.step == 3]]
    assert last == ["other", "forward", "backward", "optimizer"]


def test_a_constant_in_compiled_code_is_copied_to_the_gpu_once() -> None:
    events = Events()
    for step in range(3):
        at = events.step_with_region(step)
        events.op("triton_poi_fused_mul_0", at + 130, 10, [[16, 8], [16, 8]])
        events.launch("cuLaunchKernel", at + 135, ("triton_poi_fused_mul_0", 6))
        events.optimizer_step(at + 700, [[16, 8], [16, 8]])
    constant = 'torch.tensor([0.5, 1, 2, 4, 8, 16, 32, 64], device="cuda")'
    made = replay_script(WITHOUT_GRADIENTS.format(compiled=f"lambda x: x * {constant}"), events.trace())
    names = [made.strings[name] for name in made.device.name[made.device.start_ns >= made.steps.start_ns[1]].tolist()]
    assert names == ["triton_poi_fused_mul_0", "multi_tensor_apply_kernel"] * 2


def test_compiled_code_saves_the_tensors_for_backward_that_inductor_saves() -> None:
    """Inductor decomposes `log_sigmoid`, so its second result is not saved. The test sees the saved tensors with hooks. The
    decomposition of max pooling uses another module of Inductor."""
    script = """
import torch
from torch import nn

saved = []
model = nn.Sequential(nn.Linear(8, 8), nn.LogSigmoid(), nn.Linear(8, 8)).cuda()
with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
    torch.compile(model)(torch.ones(16, 8, device="cuda")).mean().backward()
assert len(saved) == 4, len(saved)
pooled = torch.compile(nn.MaxPool2d(2))(torch.ones(1, 1, 4, 4, device="cuda", requires_grad=True))
assert type(pooled.grad_fn).__name__ == "CompiledFunctionBackward"
"""
    replay_script(script, recording())


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("mask_shape", [(3,), (3, 4)])
def test_filling_by_a_mask_equals_torch_index_put(accumulate: bool, mask_shape: tuple[int, ...]) -> None:
    """GIVEN a transposed tensor and a mask for rows, or for single elements THEN values and strides equal those of PyTorch."""
    target = torch.arange(12.0).reshape(4, 3).t()
    mask = (torch.arange(math.prod(mask_shape)) % 2 == 0).reshape(mask_shape)
    for value in (torch.tensor(7.0), torch.tensor([7.0])):
        made, expected = _fill(target, [mask], value, accumulate), target.index_put([mask], value, accumulate)
        assert torch.equal(made, expected) and made.stride() == target.stride()
