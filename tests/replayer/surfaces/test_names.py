# mypy: allow-untyped-calls
"""Tests that each public name of torch.cuda and its modules is emulated, ignored for a reason, rejected, or works as it is.

If a new PyTorch release adds a name, the first test fails until a developer assigns the name to one of these groups. Each test
runs in a fork of an interpreter that has imported torch (warm.py).
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.cuda.comm

from replayer.errors import NotEmulated
from tests.replayer.fake_gpu import use

MODULES = "amp comm gds graphs green_contexts jiterator memory nccl nvtx profiler random sparse streams tunable".split()

# Newer releases have these functions in torch.cuda.graphs.
HOOKS = [
    f"register_graph_{when}_hook"
    for when in ("capture_start", "capture_end", "instantiate", "replay_start", "replay_end", "destroy")
]

x: Any = None  # each test stores a tensor on the device here


def _calls() -> dict[str, Callable[[], object]]:
    """Return a harmless call for each function that scripts may call, by name. No call may reach a CUDA driver."""
    cuda: Any = torch.cuda
    memory, nvtx, random, comm = cuda.memory, cuda.nvtx, cuda.random, cuda.comm
    return {
        "can_device_access_peer": lambda: cuda.can_device_access_peer(0, 0),
        "check_error": lambda: cuda.check_error(0),
        "change_current_allocator": lambda: memory.change_current_allocator(types.SimpleNamespace(allocator=int)),
        "caching_allocator_alloc": lambda: memory.caching_allocator_alloc(512),
        "caching_allocator_delete": lambda: memory.caching_allocator_delete(memory.caching_allocator_alloc(512)),
        "caching_allocator_enable": lambda: memory.caching_allocator_enable(False),
        "custom_fwd": lambda: torch.amp.custom_fwd(lambda: 0, device_type="cuda"),
        "custom_bwd": lambda: torch.amp.custom_bwd(lambda: 0, device_type="cuda"),
        "export_dot": lambda: cuda.graphs.export_dot("graph.dot"),
        "export_graph_data": lambda: cuda.graphs.export_graph_data("graph.json"),
        "get_stream_from_external": lambda: cuda.get_stream_from_external(1),
        **{name: lambda hook=name: getattr(cuda.graphs, hook)(print) for name in HOOKS},
        "make_graphed_callables": lambda: cuda.make_graphed_callables(torch.nn.Linear(4, 4).cuda(), (x,)),
        "manual_seed": lambda: random.manual_seed(1),
        "manual_seed_all": lambda: random.manual_seed_all(1),
        "set_device": lambda: cuda.set_device(0),
        "set_per_process_memory_fraction": lambda: memory.set_per_process_memory_fraction(1.0),
        "set_rng_state": lambda: random.set_rng_state(random.get_rng_state()),
        "set_rng_state_all": lambda: random.set_rng_state_all(random.get_rng_state_all()),
        "set_stream": lambda: cuda.set_stream(cuda.Stream()),
        "set_sync_debug_mode": lambda: cuda.set_sync_debug_mode(0),
        "stream": lambda: cuda.stream(cuda.Stream()).__enter__(),
        "use_mem_pool": lambda: memory.use_mem_pool(memory.MemPool()).__enter__(),
        "mark": lambda: nvtx.mark("here"),
        "range": lambda: nvtx.range("here").__enter__(),
        "range_push": lambda: nvtx.range_push("here"),
        "range_start": lambda: nvtx.range_start("here"),
        "range_end": lambda: nvtx.range_end(0),
        "range_pop": nvtx.range_pop,
        "start": cuda.profiler.start,
        "stop": cuda.profiler.stop,
        "profile": lambda: cuda.profiler.profile().__enter__(),
        "gds_register_buffer": lambda: cuda.gds.gds_register_buffer(x.untyped_storage()),
        "gds_deregister_buffer": lambda: cuda.gds.gds_deregister_buffer(x.untyped_storage()),
        "broadcast": lambda: comm.broadcast(x, [0]),
        "broadcast_coalesced": lambda: comm.broadcast_coalesced([x], [0]),
        "reduce_add": lambda: comm.reduce_add([x]),
        "reduce_add_coalesced": lambda: comm.reduce_add_coalesced([[x]]),
        "scatter": lambda: comm.scatter(x, [0]),
        "gather": lambda: comm.gather([x]),
        "nccl.all_reduce": lambda: cuda.nccl.all_reduce([x]),
        "nccl.reduce": lambda: cuda.nccl.reduce([x]),
        "nccl.broadcast": lambda: cuda.nccl.broadcast([x]),
        "nccl.all_gather": lambda: cuda.nccl.all_gather([x], [x]),
        "nccl.reduce_scatter": lambda: cuda.nccl.reduce_scatter([x], [x]),
        "set_max_tuning_duration": lambda: cuda.tunable.set_max_tuning_duration(1),
        "set_max_tuning_iterations": lambda: cuda.tunable.set_max_tuning_iterations(1),
        "set_filename": lambda: cuda.tunable.set_filename("results.csv"),
        "tune_gemm_in_file": lambda: cuda.tunable.tune_gemm_in_file("results.csv"),
        "mgpu_tune_gemm_in_file": lambda: cuda.tunable.mgpu_tune_gemm_in_file("results*.csv", 1),
        "set_cublaslt_requested_algo_count": lambda: cuda.tunable.set_cublaslt_requested_algo_count(1),
        "set_rotating_buffer_size": lambda: cuda.tunable.set_rotating_buffer_size(1),
        "set_numerical_check_tolerances": lambda: cuda.tunable.set_numerical_check_tolerances(True),
    }


def _capture_nothing() -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


# These are the classes that a script constructs. Classes of objects that the functions above create are left out.
CONSTRUCTED: dict[str, Callable[[], object]] = {
    "Stream": lambda: torch.cuda.Stream(),
    "ExternalStream": lambda: torch.cuda.ExternalStream(1),
    "Event": lambda: torch.cuda.Event(),
    "CUDAGraph": lambda: torch.cuda.CUDAGraph(),
    "graph": lambda: _capture_nothing(),
    "MemPool": lambda: torch.cuda.MemPool(),
    "CUDAPluggableAllocator": lambda: torch.cuda.memory.CUDAPluggableAllocator("lib.so", "a", "b"),
    "GdsFile": lambda: torch.cuda.gds.GdsFile(__file__, 0),
    "GreenContext": lambda: torch.cuda.GreenContext.create(num_sms=1),
    "SMPartition": lambda: torch.cuda.green_contexts.SMPartition.from_device(),  # type: ignore[attr-defined]
    "StreamContext": lambda: torch.cuda.StreamContext(None),
    "device": lambda: torch.cuda.device(0),
    "device_of": lambda: torch.cuda.device_of(x),
    "GradScaler": lambda: torch.amp.GradScaler("cuda"),
    "autocast": lambda: torch.autocast("cuda"),
}

# These names in torch's Python code are not functions: one is a type for annotations, and one exists only in ROCm builds.
NOT_FUNCTIONS = {"_cuda_CUDAAllocator", "_cuda_getHipblasltVersion"}

# These names belong to classes that do nothing on a device, such as storages of tensors, errors and enumerations.
PLAIN = re.compile(r".*(Storage|Error|Status)$")
TENSORS = re.compile(r".*Tensor$")


def _own(module: types.ModuleType) -> dict[str, Any]:
    """Return the public names that torch itself defines in the module, without imported names, submodules and constants."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name in dir(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names if hasattr(module, name)}
    return {
        name: value
        for name, value in found.items()
        if callable(value) and str(value.__module__).partition(".")[0] in ("torch", "replayer")
    }


def _attempt(call: Callable[[], object]) -> None:
    """Make a call that must work or raise NotEmulated. Any other error fails the test."""
    try:
        call()
    except NotEmulated as refused:
        assert refused.call.startswith("torch.") and refused.advice


@pytest.mark.parametrize("module", ["", *MODULES])
def test_each_public_name_of_torch_cuda_works_or_raises_an_error_that_names_it(module: str) -> None:
    global x
    use()
    x = torch.ones(4, device="cuda")
    calls, undecided = _calls(), []
    for name, value in _own(getattr(torch.cuda, module) if module else torch.cuda).items():
        if inspect.isclass(value) and name not in CONSTRUCTED and not TENSORS.match(name):
            if not PLAIN.match(name):
                undecided.append(f"{name}: a class of which no test knows what it is for")
            continue
        call = CONSTRUCTED.get(name) or calls.get(f"{module}.{name}") or calls.get(name) or value
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecated names also have to work
                _attempt(call)
        except Exception as error:
            undecided.append(f"{name}: {type(error).__name__}: {error}")
    assert not undecided, "\n".join(undecided)


def _refusal(call: Callable[[], object]) -> str:
    with pytest.raises(NotEmulated) as refused:
        call()
    return str(refused.value)


def test_not_emulated_errors_name_the_call_and_give_advice() -> None:
    use()
    for name in "temperature power_draw clock_rate memory_usage".split():
        text = _refusal(getattr(torch.cuda, name))
        assert text.startswith(f"torch.cuda.{name} is not emulated by the virtual GPU: recordings do not contain this value")
    assert _refusal(torch.cuda.tunable.enable).startswith("torch.cuda.tunable.enable is not emulated")
    assert _refusal(lambda: torch.cuda.nccl.unique_id()).startswith("torch.cuda.nccl.unique_id is not emulated")
    assert _refusal(lambda: torch.cuda.CUDAGraph().debug_dump("")).startswith("torch.cuda.CUDAGraph.debug_dump is not emulated")
    if hasattr(torch.accelerator, "Graph"):  # this class exists since PyTorch 2.12
        assert _refusal(lambda: torch.accelerator.Graph()).startswith("torch.accelerator.Graph is not emulated")


def test_every_cuda_c_function_that_torch_calls_is_replaced() -> None:
    """In a CUDA build, an original function would start the driver."""
    sources = Path(torch.__file__).parent
    asked = {
        name
        for room in "cuda accelerator backends amp nn/parallel optim utils multiprocessing autograd profiler".split()
        for file in (sources / room).glob("**/*.py")
        for name in re.findall(r"torch\._C\.(_cuda_\w+)", file.read_text(encoding="utf-8"))
    }
    assert len(asked) > 50, asked
    ours = (types.FunctionType, types.MethodType)
    missing = {name for name in asked if not isinstance(getattr(torch._C, name, None), ours)} - NOT_FUNCTIONS
    assert not missing, missing


def test_no_torch_module_keeps_an_original_cuda_c_function() -> None:
    warnings.simplefilter("ignore")  # some modules give warnings when their attributes are read
    kept = [
        f"{module.__name__}.{name}"
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("torch")
        for name, value in vars(module).items()
        if isinstance(value, types.BuiltinFunctionType) and value.__name__.startswith(("_cuda_", "_nccl_"))
    ]
    assert not kept, kept
