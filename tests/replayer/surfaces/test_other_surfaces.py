# mypy: allow-untyped-calls
"""Tests torch.accelerator, torch.backends, torch.compile, profilers and legacy tensor types on the virtual GPU. Each test runs
in a fork of an interpreter that has imported torch (warm.py)."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import pickle
import runpy
import warnings
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils._python_dispatch import TorchDispatchMode

from replayer.errors import NotEmulated
from tests.replayer.fake_gpu import GIB, use
from traces.model.machine import Machine
from traces.script.patching import temporarily_set

CUDA_OF_BUILD = runpy.run_path(str(torch.version.__file__))["cuda"]  # the patched module no longer has this value
cuda: Any = torch.cuda  # torch declares no types for many of these functions

def test_a_dispatch_mode_of_the_script_gets_the_device_cuda() -> None:
    """GIVEN a TorchDispatchMode of a script WHEN the script copies a tensor to the GPU THEN the TorchDispatchMode gets the
    device "cuda". The virtual GPU uses the device "lazy" internally."""
    use()
    devices = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            devices.append((kwargs or {}).get("device"))
            return func(*args, **(kwargs or {}))

    with Watching():
        torch.ones(2).to("cuda")
    assert devices[-1] == torch.device("cuda", 0)


# --- torch.accelerator


def test_torch_accelerator_is_the_virtual_cuda_device() -> None:
    use(devices=2)
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 2
    assert torch.get_device_module() is torch.cuda and torch.get_device_module("cuda") is torch.cuda
    torch.accelerator.set_device_index("cuda:1")
    assert torch.accelerator.current_device_index() == 1 == torch.cuda.current_device()
    with torch.accelerator.device_index(0):
        assert torch.cuda.current_device() == 0
    assert torch.float16 in torch.accelerator.get_device_capability()["supported_dtypes"]


def test_torch_accelerator_uses_the_cuda_streams() -> None:
    gpu = use(devices=2)
    side = cuda.Stream("cuda:1")
    torch.accelerator.set_stream(side)
    assert torch.accelerator.current_stream() == side and torch.cuda.current_device() == 1
    gpu.work(side.virtual, 1000)
    torch.accelerator.synchronize()
    assert gpu.now_ns == 1000


def test_torch_accelerator_reports_the_memory_of_the_virtual_gpu() -> None:
    use()
    held = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.accelerator.memory_allocated() == held.numel() == torch.accelerator.max_memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == held.numel()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.empty_cache()
    assert torch.accelerator.get_memory_info()[1] == 16 * GIB


def test_a_device_can_be_given_by_number_or_by_name() -> None:
    use(devices=2)
    by_number, by_name = torch.device(1), torch.device("cuda:1")
    assert by_number == by_name and hash(by_number) == hash(by_name)
    assert (str(by_number), repr(by_number), by_number.type) == ("cuda:1", "device(type='cuda', index=1)", "cuda")
    assert pickle.loads(pickle.dumps(by_number)) == by_name == copy.deepcopy(by_number)
    x = torch.ones(2, device=1)
    moved = x.cpu().to(1), x.cpu().to(by_number), torch.nn.Linear(2, 2).to(1).weight
    for there in (x, *moved, torch.zeros(2, device=by_number)):
        assert there.device == by_number == by_name and there.is_cuda
    assert cuda.Stream(1).device == by_number and cuda.current_stream(1).device == by_name
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.load(file, map_location=by_number).device == by_name
    with torch.device(1):
        assert torch.zeros(2).device == by_name
    with torch.autocast(by_number.type):
        assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
    assert not [name for name in dir(torch.Tensor) if "privateuse" in name.lower()]
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"  # PyTorch's own tests run once for each device type


# --- torch.backends


def test_a_replay_reports_the_recorded_library_versions() -> None:
    use()
    assert torch.version.cuda == (CUDA_OF_BUILD or "10.2")
    assert torch.backends.cudnn.version() == 7605
    assert torch.backends.cudnn.is_available() and torch.backends.cuda.is_built()
    assert torch.backends.cudnn.is_acceptable(torch.ones(1, device="cuda"))


def test_unrecorded_library_versions_come_from_the_torch_build_or_a_default() -> None:
    gpu = use()
    gpu.machine = Machine()
    assert torch.version.cuda == (CUDA_OF_BUILD or "12.4")  # scripts would take None to mean that there is no GPU
    assert CUDA_OF_BUILD or torch.backends.cudnn.version() == 90100
    assert CUDA_OF_BUILD or torch._C._cuda_getCompiledVersion() == 12040
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torch.version.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_backend_flags_keep_their_values() -> None:
    use()
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    cudnn.benchmark = cudnn.deterministic = cuda.matmul.allow_tf32 = True
    assert cudnn.benchmark and cudnn.deterministic and cuda.matmul.allow_tf32
    with cudnn.flags(enabled=False):
        assert not cudnn.enabled
    assert cudnn.enabled
    torch.set_float32_matmul_precision("high")
    assert torch.get_float32_matmul_precision() == "high"
    cuda.enable_flash_sdp(False)
    assert not cuda.flash_sdp_enabled() and cuda.is_flash_attention_available()
    assert cuda.preferred_linalg_library("cusolver") == torch._C._LinalgBackend.Cusolver
    assert cuda.preferred_blas_library("cublaslt") == cuda.preferred_blas_library()


def test_the_cufft_plan_cache_keeps_its_limit_and_stays_empty() -> None:
    use()
    plans = torch.backends.cuda.cufft_plan_cache
    plans.max_size = 10
    plans.clear()
    assert (plans.size, plans.max_size) == (0, 10)


# --- torch.compile


def test_compiled_modules_and_functions_are_traced_by_dynamo() -> None:
    """GIVEN a compiled module and a compiled function WHEN both run THEN Dynamo traces two graphs. The module has the usual
    names."""
    from torch._dynamo.utils import counters

    use()
    model = torch.nn.Linear(4, 2).cuda()
    compiled: Any = torch.compile(model, mode="max-autotune")
    assert compiled(torch.ones(3, 4, device="cuda")).shape == (3, 2)
    assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]

    @torch.compile(fullgraph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert double(torch.ones(2, device="cuda")).shape == (2,)
    assert counters["stats"]["unique_graphs"] == 2
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        torch.compile(lambda x: (torch._dynamo.graph_break(), x)[1], fullgraph=True)(torch.ones(2, device="cuda"))


def test_a_region_that_cannot_be_traced_runs_eagerly_and_is_reported() -> None:
    """GIVEN an AOTAutograd that fails WHEN compiled code runs THEN it runs eagerly. The replay notes the region and prints its
    name."""
    from traces.compiled.compiled_code import compiled_code

    use()

    def fails(*_args: object) -> None:
        raise AssertionError("no trace")

    from torch._functorch import aot_autograd

    said = io.StringIO()
    with contextlib.redirect_stderr(said), temporarily_set(aot_autograd, create_aot_state=fails):
        compiled = torch.compile(lambda x: x.sin() + 1)
        assert compiled(torch.ones(2, device="cuda")).shape == (2,)
    told = compiled_code()
    assert told is not None and (told.regions, told.graph_breaks) == (1, 0)
    assert "graph_break" not in torch._dynamo.utils.counters  # the script sees PyTorch's own counters
    assert [(one.region, one.reason) for one in told.eager] == [("0/0", "AssertionError: no trace")]
    assert "compiled region 0/0 cannot be traced and runs eagerly" in said.getvalue()


def test_a_function_that_dynamo_skips_is_reported_with_the_reason() -> None:
    """Dynamo runs a function eagerly if a loop in it has a graph break. This is noted, except if fullgraph=True makes the call
    fail."""
    from traces.compiled.compiled_code import compiled_code

    use()

    def loop(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + 1
            torch._dynamo.graph_break()
        return x

    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert torch.compile(loop)(torch.ones(2, device="cuda")).shape == (2,)
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(breaks, fullgraph=True)(torch.ones(2, device="cuda"))
    told = compiled_code()
    assert told is not None
    (one,) = [one for one in told.eager if " loop (" in one.region or " breaks (" in one.region]
    assert one.reason.startswith("Unsupported: Call to `torch._dynamo.graph_break()`")
    assert said.getvalue().count("loop (test_other_surfaces.py:") == 1


# --- profilers


@pytest.mark.parametrize("activities", ["CPU CUDA", "CUDA", ""])
def test_the_profiler_of_the_script_sees_host_ops_and_waits_for_the_device(activities: str) -> None:
    gpu = use()
    x = torch.ones(4, device="cuda", requires_grad=True)
    gpu.work(cuda.current_stream().virtual, 1000)
    asked = [getattr(ProfilerActivity, name) for name in activities.split()]
    with profile(activities=asked or None, record_shapes=True) as profiled:
        x.sum().backward()
    assert "aten::sum" in {event.key for event in profiled.key_averages()}
    assert gpu.now_ns == 1000  # without a list of activities, a profile also includes the device


def test_a_scheduled_profiler_calls_its_trace_handler() -> None:
    use()
    x = torch.ones(4, device="cuda", requires_grad=True)
    written: list[int] = []

    def ready(profiled: object) -> None:
        written.append(1)

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, schedule=schedule(wait=1, warmup=1, active=1), on_trace_ready=ready) as profiled:
        for _ in range(3):
            x.sum().backward()
            profiled.step()
    assert written == [1]


def test_the_old_profiler_accepts_the_argument_use_device() -> None:
    use()
    x = torch.ones(4, device="cuda")
    with torch.autograd.profiler.profile(use_device="cuda") as profiled:
        x + x
    assert profiled.key_averages()
    with torch.autograd.profiler.emit_nvtx():
        x + x


# --- torch.cuda.FloatTensor and similar types


def test_legacy_tensor_types_create_and_convert_device_tensors() -> None:
    use()
    with pytest.warns(UserWarning, match=r"The torch.cuda.\*DtypeTensor constructors are no longer recommended"):
        made: Any = cuda.FloatTensor(2, 3)
    assert made.shape == (2, 3) and made.is_cuda and made.dtype == torch.float32
    assert cuda.LongTensor([1, 2]).shape == (2,)
    assert cuda.HalfTensor(torch.Size([4])).shape == (4,)
    assert cuda.FloatTensor().numel() == 0
    assert torch.ones(2).type(cuda.HalfTensor).dtype == torch.float16
    assert torch.ones(2).type("torch.cuda.LongTensor").is_cuda
    assert made.type(cuda.DoubleTensor).dtype == torch.float64
    assert torch.ones(2).type(torch.float64).dtype == torch.float64
    assert torch.ones(2).type() == "torch.FloatTensor"
    assert isinstance(made, cuda.FloatTensor) and not isinstance(made, cuda.HalfTensor)
    assert not isinstance(torch.ones(1), cuda.FloatTensor)
    with warnings.catch_warnings():
        # PyTorch warns that typed storages are deprecated, and that sparse indices are not checked.
        warnings.simplefilter("ignore")
        sparse: Any = cuda.sparse.FloatTensor(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), torch.Size([2, 3]))
        assert sparse.is_sparse and sparse.type() == "torch.cuda.sparse.FloatTensor"
        assert cuda.sparse.HalfTensor(2, 3)._nnz() == 0
        assert isinstance(sparse, cuda.sparse.FloatTensor) and not isinstance(sparse, cuda.sparse.HalfTensor)
        assert not isinstance(sparse, cuda.FloatTensor)
        assert not isinstance(made, cuda.sparse.FloatTensor)
        assert cuda.HalfStorage(3).device.type == "cuda" and len(cuda.HalfStorage(3)) == 3
        assert isinstance(torch.HalfStorage(2).cuda(), cuda.HalfStorage)


def test_legacy_constructors_accept_only_tensors_of_their_type() -> None:
    use()
    here: Any = torch.ones(2, device="cuda")
    expected = r"expected TensorOptions\(dtype=float, device=cuda, .* \(got TensorOptions\(dtype="
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that these constructors are no longer recommended
        made: Any = cuda.FloatTensor(here)
        assert made.data_ptr() == here.data_ptr()
        for wrong, text in ((torch.ones(2), "float, device=cpu"), (here.double(), "double, device=cuda:0")):
            with pytest.raises(TypeError, match=expected + text):
                cuda.FloatTensor(wrong)
        with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu was passed"):
            cuda.FloatTensor([1.0], device="cpu")
        with pytest.raises(TypeError, match=r"device=cpu, .* \(got TensorOptions\(dtype=float, device=cuda:0"):
            torch.ones(2).new(here)


def test_the_default_tensor_type_can_be_a_cuda_type() -> None:
    use()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that the function is deprecated
        torch.set_default_tensor_type("torch.cuda.HalfTensor")
        assert torch.ones(2).is_cuda and torch.ones(2).dtype == torch.float16
        for made, shape in ((torch.Tensor([1.0, 2.0]), [2]), (torch.Tensor(3, 4), [3, 4]), (torch.Tensor(), [0])):
            assert made.is_cuda and made.dtype == torch.float16 and list(made.shape) == shape
        torch.set_default_tensor_type(torch.FloatTensor)
        assert not torch.ones(2).is_cuda and torch.Tensor([1.0]).tolist() == [1.0] and not torch.Tensor(2).is_cuda
        assert torch.nn.Parameter(torch.ones(2)).shape == (2,)


def test_the_unbound_method_untyped_storage_accepts_virtual_tensors() -> None:
    tensor, on_host = torch.ones(3, device="cuda"), torch.ones(3)
    assert torch.Tensor.untyped_storage(tensor).data_ptr() == tensor.data_ptr()
    assert torch.Tensor.untyped_storage(on_host).data_ptr() == on_host.data_ptr()


def test_an_error_while_tracing_shows_cuda_tensor_types() -> None:
    use()
    weight = torch.ones(3, device="cuda", requires_grad=True)
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=r"\[ CUDAFloatType\{3\} \]"):
        warnings.simplefilter("ignore")  # PyTorch warns that torch.jit is deprecated
        torch.jit.trace(lambda x: x * weight, (torch.ones(3, device="cuda"),))


def test_compiling_ahead_of_time_raises_an_error_that_names_the_call() -> None:
    use()
    inductor = importlib.import_module("torch._inductor")
    with pytest.raises(NotEmulated, match=r"^torch\._inductor\.aot_compile is not emulated"):
        inductor.aot_compile(None, ())
    compiled = torch.compile(lambda x: x + 1, fullgraph=True)
    if hasattr(compiled, "aot_compile"):  # this method exists since PyTorch 2.9
        with pytest.raises(NotEmulated, match=r"^torch\.compile\(\.\.\.\)\.aot_compile is not emulated"):
            compiled.aot_compile(((torch.ones(3, device="cuda"),), {}))
