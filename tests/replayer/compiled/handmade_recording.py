"""Creates small recordings of compiled training loops by hand. All times are in microseconds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from traces.kineto import read_kineto_bytes
from traces.model.trace import Trace

SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).cuda()
compiled = torch.compile(model, mode="{mode}")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones({batch}, 8, device="cuda")
for _ in range(4):
    compiled(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STEP_US = 1000


@dataclass
class Events:
    """Collects events as in a profile of torch.profiler. Most methods add one event."""

    made: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0

    def host(self, category: str, name: str, start: int, length: int, *, thread: int = 1, **args: Any) -> None:
        at = {"pid": 1, "tid": thread, "ts": start, "dur": length, "args": args}
        self.made.append({"ph": "X", "cat": category, "name": name, **at})

    def op(self, name: str, start: int, length: int, shapes: list[list[int]], *, thread: int = 1, **args: Any) -> None:
        types = ["float"] * len(shapes)
        self.host("cpu_op", name, start, length, thread=thread, **{"Input Dims": shapes, "Input type": types, **args})

    def step_with_region(self, step: int) -> int:
        """Add a step with the compiled region 0/0 and its graph. Return the start of the step in us."""
        at = step * STEP_US
        self.host("user_annotation", f"ProfilerStep#{step + 1}", at, STEP_US - 10)
        self.op("Torch-Compiled Region: 0/0", at + 100, 150, [])
        self.host("user_annotation", "## Call CompiledFxGraph fabc ##", at + 120, 100)
        return at

    def launch(self, call: str, start: int, *kernels: tuple[str, float], thread: int = 1, graph: int = 0) -> None:
        self.calls += 1
        self.host("cuda_runtime", call, start, 1, thread=thread, correlation=self.calls)
        at: float = start + 5
        for node, (kernel, length) in enumerate(kernels):
            args = {"device": 0, "stream": 7, "correlation": self.calls}
            args |= {"graph id": graph, "graph node id": node} if graph else {}
            place = {"pid": 0, "tid": 7, "ts": at, "dur": length}
            self.made.append({"ph": "X", "cat": "kernel", "name": kernel, **place, "args": args})
            at += length + 1

    def optimizer_step(self, start: int, shapes: list[list[int]]) -> None:
        """Add a call of `SGD.step` with one kernel of 4 us."""
        self.host("user_annotation", "Optimizer.step#SGD.step", start, 50)
        self.op("aten::_foreach_add_", start + 10, 20, shapes)
        self.launch("cudaLaunchKernel", start + 15, ("multi_tensor_apply_kernel", 4))

    def copy_to_host(self, start: int, length: int) -> None:
        """Add a blocking copy of one number to the host."""
        self.calls += 1
        self.host("cuda_runtime", "cudaMemcpyAsync", start, length + 6, correlation=self.calls)
        self.host("cuda_runtime", "cudaStreamSynchronize", start + length + 7, 3)
        args = {"device": 0, "stream": 7, "correlation": self.calls, "bytes": 1}
        place = {"pid": 0, "tid": 7, "ts": start + 5, "dur": length}
        self.made.append({"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", **place, "args": args})

    def copy_to_device(self, start: int, size_bytes: int) -> None:
        """Add a blocking copy from pageable memory that takes 3 us."""
        self.calls += 1
        self.host("cuda_runtime", "cudaMemcpyAsync", start, 20, correlation=self.calls)
        args = {"device": 0, "stream": 7, "correlation": self.calls, "bytes": size_bytes}
        place = {"pid": 0, "tid": 7, "ts": start + 5, "dur": 3}
        self.made.append({"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", **place, "args": args})

    def memory(self, at: int, size_bytes: int, address: int) -> None:
        args = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": size_bytes}
        place = {"pid": 1, "tid": 1, "ts": at}
        self.made.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", **place, "args": args})

    def trace(self) -> Trace:
        device = {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 40 << 30}
        return read_kineto_bytes(json.dumps({"deviceProperties": [device], "traceEvents": self.made}).encode())


def recording(*, graphs: bool = False, batch: int = 16, nested: bool = False) -> Trace:
    """Return a recording of three steps. The forward pass runs a matrix product and a fused kernel of 7 us. The backward pass
    runs a fused kernel of 9 us and a matrix product. With `nested`, the batch is a nested tensor without a recorded shape."""
    events = Events()
    for step in range(3):
        at = step * STEP_US
        events.host("user_annotation", f"ProfilerStep#{step + 1}", at, STEP_US - 10)
        forward(events, at + 100, step, graphs=graphs, batch=batch, nested=nested)
        events.op("aten::mean", at + 300, 20, [[batch, 4]])
        events.launch("cudaLaunchKernel", at + 305, ("reduce_kernel", 3))
        events.op("aten::ones_like", at + 330, 10, [[]])
        events.launch("cudaLaunchKernel", at + 333, ("fill_kernel", 2))
        backward(events, at + 400, step, graphs=graphs, batch=batch)
        events.optimizer_step(at + 700, [[4, 8], [4], [4, 8], [4]])
        events.host("user_annotation", "Optimizer.zero_grad#SGD.zero_grad", at + 800, 20)
    return events.trace()


def forward(events: Events, at: int, step: int, *, graphs: bool, batch: int, nested: bool = False) -> None:
    events.op("Torch-Compiled Region: 0/0", at, 150, [])
    inputs = [[4, 8], [4], [] if nested else [batch, 8]]
    events.op("CompiledFunction", at + 10, 130, inputs, **{"Sequence number": step, "Fwd thread id": 0})
    events.host("user_annotation", "## Call CompiledFxGraph fabc ##", at + 20, 100)
    if graphs:
        events.launch("cudaGraphLaunch", at + 50, ("sgemm", 11), ("triton_poi_fused_relu_0", 7), graph=5)
        return
    events.memory(at + 25, 512, 4096)  # the product allocates its result, and the fused kernel later overwrites it
    events.op("aten::addmm", at + 30, 20, [[4], [batch, 8], [8, 4]])
    events.launch("cudaLaunchKernel", at + 40, ("sgemm", 11))
    types: dict[str, Any] = {"Input type": ["float", "c10::BFloat16"]}
    events.op("triton_poi_fused_relu_0", at + 60, 20, [[batch, 4], [batch, 4]], **types)
    events.launch("cuLaunchKernel", at + 70, ("triton_poi_fused_relu_0", 7))


def backward(events: Events, at: int, step: int, *, graphs: bool, batch: int) -> None:
    told: dict[str, Any] = {"thread": 2, "Sequence number": step, "Fwd thread id": 1}
    events.op("autograd::engine::evaluate_function: MeanBackward0", at - 50, 30, [[]], thread=2)
    events.op("aten::div", at - 45, 10, [[batch, 4]], thread=2)
    events.launch("cudaLaunchKernel", at - 43, ("div_kernel", 2), thread=2)
    events.op("autograd::engine::evaluate_function: CompiledFunctionBackward", at, 200, [[batch, 4]], **told)
    events.op("CompiledFunctionBackward", at + 5, 190, [[batch, 4]], **told)
    events.host("user_annotation", "## Call CompiledFxGraph fdef ##", at + 10, 150, thread=2)
    if graphs:
        events.launch("cudaGraphLaunch", at + 50, ("triton_poi_fused_1", 9), ("sgemm_t", 13), thread=2, graph=6)
        return
    events.op("triton_poi_fused_1", at + 30, 20, [[batch, 4], [batch, 4]], thread=2)
    events.launch("cuLaunchKernel", at + 40, ("triton_poi_fused_1", 9), thread=2)
    events.op("aten::mm", at + 60, 20, [[4, batch], [batch, 8]], thread=2)
    events.launch("cudaLaunchKernel", at + 70, ("sgemm_t", 13), thread=2)


def running(*work: tuple[str, int], steps: int = 1) -> Trace:
    """Return steps that launch the given work, which has names and times in us. Each fused kernel belongs to a compiled
    region."""
    events = Events()
    for step in range(steps):
        events.host("user_annotation", f"ProfilerStep#{step + 1}", 9000 * step, 9000)
        for place, (name, length) in enumerate(work):
            start, is_fused = 9000 * step + 20 + 50 * place, name.startswith("triton")
            if is_fused:
                events.op(f"Torch-Compiled Region: {place}/0", start - 5, 40, [])
            events.op(name if is_fused else f"aten::{name}", start, 20, [[8, 8]])
            events.launch("cuLaunchKernel" if is_fused else "cudaLaunchKernel", start + 5, (name, length))
    return events.trace()
