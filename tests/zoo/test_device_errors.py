"""Tests errors that a GPU raises, immediately or later, in whole scripts with recorded and with computed values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zoo.recording import recording_of_something_else

pytestmark = pytest.mark.program
ROOT = Path(__file__).parents[2]
VALUES = pytest.mark.parametrize("values", ["recorded", "compute"])
_PRELUDE = """
import torch, torch.nn as nn, torch.nn.functional as F
def said(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "ok"
M, bad = torch.ones(3, 3, device="cuda"), torch.tensor([0, 7]).cuda()
"""


def _run(code: str, values: str, folder: Path, **settings: str) -> list[str]:
    script = folder / "script.py"
    script.write_text(_PRELUDE + code, encoding="utf-8")
    options = ("--clock", "virtual", "--values", values, "--trace", recording_of_something_else(folder / "a100.msgpack"))
    command = [sys.executable, "-m", "tui.cli", "replay", "-q", *options, script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ASSERTS = ["F.embedding(bad, M)", "M[bad]", "M.gather(0, bad[None])", "F.cross_entropy(M[:2], bad)", "F.one_hot(bad, 3)"]
_ASSERTED = "AcceleratorError: CUDA error: device-side assert triggered"


@VALUES
@pytest.mark.parametrize("call", ASSERTS)
def test_an_index_error_is_raised_at_the_next_wait_and_persists(call: str, values: str, tmp_path: Path) -> None:
    code = f"for call in (lambda: {call}, torch.cuda.synchronize, lambda: M + 1, M.cpu): print(said(call))"
    assert _run(code, values, tmp_path) == ["ok", _ASSERTED, _ASSERTED, _ASSERTED]


def test_an_op_after_the_failed_kernel_raises_the_error_of_cuda(tmp_path: Path) -> None:
    """GIVEN a label out of range WHEN the CPU kernel of the backward pass also fails THEN only CUDA's error is raised."""
    assert _run("print(said(lambda: F.nll_loss(nn.Parameter(M)[:2], bad).backward()))", "compute", tmp_path) == [_ASSERTED]


def test_an_index_error_is_raised_immediately_with_launch_blocking(tmp_path: Path) -> None:
    assert _run("print(said(lambda: M[bad]))", "recorded", tmp_path, CUDA_LAUNCH_BLOCKING="1") == [_ASSERTED]


@VALUES
def test_a_call_that_pytorch_rejects_causes_no_device_assertion(values: str, tmp_path: Path) -> None:
    code = """
scores, labels = torch.ones(2, 3, 4, 4, device="cuda"), torch.full((2, 5, 5), 7).cuda()
print(said(lambda: F.nll_loss(scores, labels)).split(":")[0], said(torch.cuda.synchronize))
"""
    assert _run(code, values, tmp_path) == ["RuntimeError ok"]


def test_probabilities_above_one_cause_a_device_assertion(tmp_path: Path) -> None:
    code = "for call in (lambda: torch.bernoulli(2 * M), torch.cuda.synchronize): print(said(call))"
    assert _run(code, "compute", tmp_path) == ["ok", _ASSERTED]


@VALUES
def test_ignored_labels_and_negative_indices_cause_no_error(values: str, tmp_path: Path) -> None:
    code = """
print(said(lambda: F.cross_entropy(M[:2], torch.tensor([0, -100]).cuda())), said(lambda: M[torch.tensor([-3]).cuda()]))
print(said(torch.cuda.synchronize))
"""
    assert _run(code, values, tmp_path) == ["ok ok", "ok"]


@VALUES
def test_a_dtype_without_a_cuda_kernel_raises_the_cuda_error(values: str, tmp_path: Path) -> None:
    code = """
H = M.half()
print(said(lambda: M @ H))
print(said(lambda: F.linear(M, M, H[0])))
print(said(lambda: F.conv2d(M[None, None], H[None, None])))
print(said(lambda: F.layer_norm(H, (3,), M[0])))
print(said(lambda: F.embedding(M, M))[114:148])
"""
    assert _run(code, values, tmp_path) == [
        "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        "RuntimeError: self and mat2 must have the same dtype, but got Half and Float",
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
        "RuntimeError: expected scalar type Half but found Float",
        "got torch.cuda.FloatTensor instead",
    ]


@VALUES
def test_deterministic_algorithms_are_required_or_warned_about(values: str, tmp_path: Path) -> None:
    code = """
import warnings
x = torch.ones(1, 1, 4, 4, device="cuda", requires_grad=True)
pool = lambda: F.adaptive_avg_pool2d(x, 3).sum().backward()
print(said(pool))
torch.use_deterministic_algorithms(True)
print(said(pool)[:70])
torch.use_deterministic_algorithms(True, warn_only=True)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print(said(pool), str(seen[0].message)[:50])
"""
    alert = "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation"
    assert _run(code, values, tmp_path) == ["ok", f"RuntimeError: {alert}"[:70], f"ok {alert[:50]}"]


@VALUES
def test_calls_are_accepted_or_rejected_like_on_an_h200(values: str, tmp_path: Path) -> None:
    """The expected results are those of an NVIDIA H200 with PyTorch 2.11."""
    code = """
import warnings
v = torch.arange(10, device="cuda")
print(said(lambda: v[1:].add_(v[:-1])))
print(said(lambda: torch.add(v[:-1], 1, out=v[1:])))
print(said(lambda: v.add_(v)), said(lambda: v[:5].add_(v[5:])), said(lambda: v.add_(torch.tensor(1, device="cuda"))))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    mask = torch.ones(4, dtype=torch.bool, device="cuda")
    unknown = torch.empty(1, device="cuda").expand(4)
    print(said(lambda: unknown.masked_fill_(mask, 1)), *[str(warning.message)[:50] for warning in seen])
print(said(lambda: nn.BatchNorm2d(3)(M[None, None].expand(2, 3, 3, 3))).partition("method ")[2])
with torch.autocast("cuda"):
    print(said(lambda: M.addmm_(M.half(), M)))
torch.use_deterministic_algorithms(True)
bag = lambda mode: nn.EmbeddingBag(4, 4, mode=mode).cuda()(torch.tensor([[1, 2]], device="cuda")).sum().backward()
print(said(lambda: bag("max"))[:45], said(lambda: bag("mean")))
torch.use_deterministic_algorithms(False)
torch.cuda.set_sync_debug_mode("error")
print(said(lambda: torch.equal(M, M)), said(lambda: torch.equal(M, M + 1)))
"""
    overlapping = (
        "RuntimeError: unsupported operation: some elements of the input tensor and the written-to tensor refer to a single"
        " memory location. Please clone() the tensor before performing the operation."
    )
    assert _run(code, values, tmp_path) == [
        overlapping,
        overlapping,
        "ok ok ok",
        "ok Use of masked_fill_ on expanded tensors is depreca",
        "wrapper_CUDA__cudnn_batch_norm)",
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float",
        "RuntimeError: embedding_bag_backward_cuda_max ok",
        "ok RuntimeError: called a synchronizing CUDA operation",
    ]


@VALUES
def test_dtypes_that_an_h200_rejects_are_rejected(values: str, tmp_path: Path) -> None:
    """The expected results are those of an NVIDIA H200 with PyTorch 2.11. For a tensor without elements, no kernel runs."""
    code = """
halves, complexes, wave = M.half(), M.to(torch.complex32), torch.ones(10, device="cuda").half()
integers = torch.ones(3, dtype=torch.int64, device="cuda")
for call in (
    lambda: complexes @ complexes, lambda: halves.angle(), lambda: torch.polar(halves, halves), lambda: halves.histc(),
    lambda: nn.functional.batch_norm(torch.ones(2, 3, 4, 4, dtype=torch.int64, device="cuda"), *4 * [integers], True),
    lambda: torch.view_as_complex(torch.ones(2, 2, dtype=torch.bfloat16, device="cuda")),
    lambda: torch.stft(wave, 10, window=wave, return_complex=True),
    lambda: torch.ones(3, device="cuda", dtype=torch.uint16).all(), lambda: torch.ones((), device="cuda").any(),
    lambda: torch.ones(0, 3, device="cuda", dtype=torch.int64) @ torch.ones(3, 2, device="cuda", dtype=torch.int64),
):
    print(said(call).split(": ", 1)[-1])
"""
    assert _run(code, values, tmp_path) == [
        "\"addmm_cuda\" not implemented for 'ComplexHalf'",
        "\"angle_cuda\" not implemented for 'Half'",
        "\"polar_cuda\" not implemented for 'Half'",
        "HalfTensor is not supported",
        "getCudnnDataTypeFromScalarType() not supported for Long",
        "view_as_complex is only supported for half, float and double tensors, but got a tensor of scalar type: BFloat16",
        "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but got a signal size"
        " of[10]",
        "\"and_cuda\" not implemented for 'UInt16'",
        "ok",
        "ok",
    ]


def test_moving_a_quantized_tensor_to_the_gpu_raises_an_error(tmp_path: Path) -> None:
    code = """
import warnings
warnings.simplefilter("ignore")
q = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
print(said(q.cuda)[:31], said(lambda: q.to("cuda"))[:31], said(lambda: q.to("cpu")))
"""
    assert _run(code, "compute", tmp_path) == ["NotEmulated: a quantised tensor NotEmulated: a quantised tensor ok"]


@VALUES
def test_a_backward_pass_fails_if_a_saved_parameter_moved_to_the_cpu(values: str, tmp_path: Path) -> None:
    """For the backward pass of w³, PyTorch saves the parameter w itself. The derivative of w³ is 3 if w is 1."""
    code = """
for back in (False, True):
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    cube = weight**3
    weight.data = weight.data.cpu()
    print(cube.grad_fn._saved_self.device, cube.grad_fn._saved_self)
    if back:
        weight.data = weight.data.cuda()
    print(said(lambda: cube.sum().backward()), None if weight.grad is None else weight.grad.device)
"""
    refused = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    saved = "cpu tensor([1., 1., 1.])"
    assert _run(code, values, tmp_path) == [saved, f"{refused} None", saved, "ok cuda:0"]


@VALUES
def test_a_backward_pass_fails_if_a_saved_parameter_moved_to_the_gpu(values: str, tmp_path: Path) -> None:
    """For the backward pass of a power or a convolution, PyTorch saves the parameter itself. For the backward pass of a linear
    layer, PyTorch saves a view of the weight."""
    code = """
for back in (False, True):
    weight = nn.Parameter(torch.ones(3))
    cube = weight**3
    weight.data = weight.data.cuda()
    if back:
        print(said(lambda: cube.sum().backward(retain_graph=True)).split(":")[0])
        weight.data = weight.data.cpu()
    print(said(lambda: cube.sum().backward()), None if weight.grad is None else weight.grad.tolist())
for layer in (nn.Conv2d(3, 1, 1), nn.Linear(3, 1)):
    x = torch.ones(2, 3, 3, 3, requires_grad=True)
    y = layer(x)
    layer.cuda()
    print(said(lambda: y.sum().backward()), layer.weight.grad is None)
"""
    refused = "RuntimeError: Expected all tensors to be on the same device, but "
    convolution = "got weight is on cuda:0, different from other tensors on cpu (when checking argument in method"
    assert _run(code, values, tmp_path) == [
        f"{refused}found at least two devices, cuda:0 and cpu! None",
        "RuntimeError",
        "ok [3.0, 3.0, 3.0]",
        f"{refused}{convolution} wrapper_CUDA__convolution_backward) True",
        "ok False",
    ]


@VALUES
def test_legacy_types_of_the_cpu_reject_gpu_tensors_and_storages(values: str, tmp_path: Path) -> None:
    """PyTorch's C++ constructors name the device of the tensor in their errors."""
    code = """
x = torch.ones(2, device="cuda")
message = said(lambda: torch.HalfTensor(x))
print(message[message.index("(got"):message.index(", layout", message.index("(got"))])
print(said(lambda: torch.HalfTensor(x.untyped_storage())))
kind = torch.FloatTensor
print(kind, type(kind).__name__, kind.dtype, isinstance(x, kind), isinstance(x.cpu(), kind), kind([3, 4]).tolist())
print(x.type(kind).device, x.half().type(kind).dtype, torch.ones(2).type() == f"{kind.__module__}.{kind.__name__}")
torch.set_default_tensor_type(torch.DoubleTensor)
print(torch.ones(1).dtype)
torch.set_default_tensor_type("torch.HalfTensor")
print(torch.ones(1).dtype)
"""
    assert _run(code, values, tmp_path) == [
        "(got TensorOptions(dtype=float, device=cuda:0",
        'RuntimeError: Attempted to set the storage of a tensor on device "cpu" to a storage on different device "cuda:0".  '
        "This is no longer allowed; the devices must match.",
        "<class 'torch.FloatTensor'> tensortype torch.float32 False True [3.0, 4.0]",
        "cpu torch.float32 True",
        "torch.float64",
        "torch.float16",
    ]


@VALUES
def test_a_kernel_of_the_script_replaces_the_cuda_kernel_of_an_op(values: str, tmp_path: Path) -> None:
    """PyTorch's own op of zeros returns ones."""
    code = """
kernels = torch.library.Library("aten", "IMPL")
kernels.impl("erfc", lambda x: x + 7, "CUDA")
zeros = torch.zeros(2, device="cuda", requires_grad=True)
sevens = torch.erfc(zeros)
print(sevens.tolist(), sevens.device, torch.erfc(torch.zeros(2)).tolist(), sevens.grad_fn.name())
"""
    assert _run(code, values, tmp_path) == ["[7.0, 7.0] cuda:0 [1.0, 1.0] ErfcBackward0"]


@VALUES
def test_average_pooling_into_an_expanded_output_is_rejected(values: str, tmp_path: Path) -> None:
    """CUDA's pooling kernels write one number for each element of an expanded output, but the expanded output has memory for
    only one number."""
    code = """
for dims in (2, 3):
    pool, out = getattr(torch._C._nn, f"avg_pool{dims}d"), torch.zeros([1] * (dims + 2), device="cuda")
    print(said(lambda: pool(torch.ones(1, 1, *[4] * dims, device="cuda"), 2, out=out.expand(1, 1, *[2] * dims))).split(":")[1])
"""
    assert _run(code, values, tmp_path) == [" unsupported operation"] * 2


@VALUES
def test_the_sync_debug_mode_reports_waits_for_a_stream(values: str, tmp_path: Path) -> None:
    code = """
host = torch.ones(3)
torch.cuda.set_sync_debug_mode("error")
for call in (lambda: M[0, 0].item(), lambda: M.cpu(), host.cuda, lambda: M.nonzero(), torch.cuda.current_stream().synchronize):
    print(said(call))
for call in (lambda: torch.histc(M), lambda: torch.linspace(M[0, 0], 1.0, 3), M.to_sparse, M.to_sparse_csr):
    print(said(call))
index = torch.zeros_like(M[0]).long()
print(said(lambda: torch.histc(M, 4, 0, 1)), said(lambda: torch.linspace(torch.tensor(0.0), 1.0, 3, device="cuda")))
for call in (lambda: M + 1, lambda: host.cuda(non_blocking=True), torch.cuda.synchronize, lambda: M[index]):
    print(said(call))
"""
    assert _run(code, values, tmp_path) == ["RuntimeError: called a synchronizing CUDA operation"] * 9 + ["ok ok"] + ["ok"] * 4


@VALUES
def test_copies_of_cpu_indices_wait_but_copies_of_cpu_masks_do_not(values: str, tmp_path: Path) -> None:
    """The expected results are the results of PyTorch 2.14 on the simulated CUDA device."""
    code = """
mask, one = torch.tensor([True, False, True]), torch.ones((), device="cuda")
torch.cuda.set_sync_debug_mode("error")
for call in (lambda: M[mask], lambda: M.__setitem__(mask, 2 * one), lambda: M[:, mask], lambda: M[torch.tensor([0])]):
    print(said(call))
torch.cuda.set_sync_debug_mode(0)
print(said(lambda: M[mask[:2]]))
print(M.tolist() == [[2.0] * 3, [1.0] * 3, [2.0] * 3], M[:, mask].shape)
"""
    refused = "RuntimeError: called a synchronizing CUDA operation"
    shape = "IndexError: The shape of the mask [2] at index 0 does not match the shape of the indexed tensor [3, 3] at index 0"
    assert _run(code, values, tmp_path) == [*["ok"] * 3, refused, shape, "True torch.Size([3, 2])"]


@VALUES
def test_fill_values_on_the_gpu_and_index_put_masks_are_read_by_the_host(values: str, tmp_path: Path) -> None:
    code = """
mask, index, one, ones = M > 0, torch.zeros(1, dtype=torch.long, device="cuda"), torch.ones((), device="cuda"), M[0] + 1
torch.cuda.set_sync_debug_mode("error")
for call in (
    lambda: M.masked_fill(mask, one), lambda: M.masked_fill_(mask, one), lambda: M.index_fill(0, index, one),
    lambda: M.index_put_((mask,), one), lambda: M.index_put((mask[:, 0],), ones),
):
    print(said(call))
host = torch.tensor(1.0)
for call in (lambda: M.masked_fill(mask, 1.0), lambda: M.masked_fill_(mask, host), lambda: M.index_put_((index,), ones)):
    print(said(call))
M[mask] = 2.0  # PyTorch calls masked_fill_ with a value on the host
"""
    assert _run(code, values, tmp_path) == ["RuntimeError: called a synchronizing CUDA operation"] * 5 + ["ok"] * 3


@VALUES
def test_modifying_parameters_between_two_backward_passes_raises_an_error(values: str, tmp_path: Path) -> None:
    """The expected results are those of PyTorch on the simulated CUDA device."""
    code = """
net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).cuda()
sgd, loss = torch.optim.SGD(net.parameters(), 0.1), net(torch.ones(1, 2, device="cuda")).sum()
loss.backward(retain_graph=True)
sgd.step()
print("modified by an inplace operation" in said(loss.backward))
print(said(lambda: torch.zeros_like(M, device="cuda:4")))
print(said(lambda: torch.empty(4, device="cuda", dtype=torch.uint32).random_(3, None)))
"""
    assert _run(code, values, tmp_path) == ["True", "AcceleratorError: CUDA error: invalid device ordinal", "ok"]


def test_shapes_and_sparse_indices_are_checked_with_computed_values(tmp_path: Path) -> None:
    code = """
whole = torch.arange(4, device="cuda")
print(said(lambda: whole.__setitem__(whole > -1, torch.empty(0, device="cuda"))))
rows, columns = torch.tensor([0, 1, 2]).cuda(), torch.tensor([0, 1]).cuda()
for values in (torch.ones(2, device="cuda"), torch.ones(3, device="cuda")):
    check = torch._validate_sparse_compressed_tensor_args
    print(said(lambda: check(rows, columns, values, (2, 2), torch.sparse_csr)))
"""
    mismatch = "shape mismatch: value tensor of shape [0] cannot be broadcast to indexing result of shape [4]"
    count = "col_indices.shape[-1] must be equal to nnz (=3) as defined by values.shape[0], but got 2"
    assert _run(code, "compute", tmp_path) == [f"RuntimeError: {mismatch}", "ok", f"RuntimeError: {count}"]


@VALUES
def test_training_with_half_precision_softmax_under_autocast_works(values: str, tmp_path: Path) -> None:
    code = """
q = torch.randn(2, 4, 8, device="cuda", requires_grad=True)
with torch.autocast("cuda"):
    weights = torch.softmax(q @ q.transpose(1, 2), -1)
weights.sum().backward()
print(weights.dtype, q.grad.dtype)
layer = nn.Linear(4, 2).cuda()
with torch.autocast("cuda"):
    with torch.no_grad():
        layer(torch.ones(1, 4, device="cuda"))
    print(layer(torch.ones(1, 4, device="cuda")).requires_grad)
"""
    assert _run(code, values, tmp_path) == ["torch.float32 torch.float32", "True"]


def test_half_precision_ops_without_a_cpu_kernel_are_computed_in_float32(tmp_path: Path) -> None:
    """The results are a mean of ones, an antialiased picture of threes, and the double of 4.

    For a missing dtype, kernels of other libraries raise RuntimeError, and torch's kernels raise NotImplementedError. The
    kernel in this test stands for a compiled kernel, so it is removed from the registry of Python kernels.
    """
    code = """
own = torch.library.Library("own", "DEF")
own.define("double(Tensor x) -> Tensor")
def double_on_cpu(x):
    if x.dtype is not torch.float32:
        raise RuntimeError(f'"double_kernel" not implemented for {"Half" if x.dtype is torch.float16 else "BFloat16"!r}')
    return 2 * x
own.impl("double", double_on_cpu, "CPU")
torch.library._impls.remove("own/double/CPU")
for dtype in (torch.float16, torch.bfloat16):
    pooled = F.avg_pool3d(torch.ones(1, 1, 2, 2, 2, device="cuda", dtype=dtype), 2)
    small = F.interpolate(torch.full((1, 1, 4, 4), 3.0, device="cuda", dtype=dtype), (2, 2), mode="bilinear", antialias=True)
    doubled = torch.ops.own.double(torch.full((1,), 4.0, device="cuda", dtype=dtype))
    print(pooled.dtype is small.dtype is doubled.dtype is dtype, pooled.tolist(), small.tolist(), doubled.tolist())
"""
    assert _run(code, "compute", tmp_path) == ["True [[[[[1.0]]]]] [[[[3.0, 3.0], [3.0, 3.0]]]] [8.0]"] * 2


def test_a_gpu_runs_the_gpu_kernel_of_a_custom_op_and_not_the_cpu_kernel(tmp_path: Path) -> None:
    """The script's kernel for the GPU returns 8, and its kernel for the CPU returns 7."""
    code = """
def op(name, kernel, device_types):
    schema = "(Tensor x) -> Tensor"
    return torch.library.custom_op(f"own::{name}", kernel, mutates_args=(), schema=schema, device_types=device_types)
for_cpu, for_gpu = op("for_cpu", lambda x: x * 0 + 7, "cpu"), op("for_gpu", lambda x: x * 0 + 8, "cuda")
for_both, in_numpy = op("for_both", lambda x: x * 0 + 7, "cpu"), op("in_numpy", lambda x: torch.from_numpy(x.numpy() + 1), None)
for_both.register_kernel("cuda", lambda x: x * 0 + 8)
g = torch.zeros(1, device="cuda")
c = torch.zeros(1)
print(said(lambda: for_cpu(g)).partition(" backend.")[0], for_cpu(c).item())
print(said(lambda: for_gpu(c)).partition("backends: ")[2][:5], for_gpu(g).item())
print(for_both(g).item(), for_both(c).item())
print(said(lambda: in_numpy(g))[:45], in_numpy(c).item())
"""
    assert _run(code, "compute", tmp_path) == [
        "NotImplementedError: Could not run 'own::for_cpu' with arguments from the 'CUDA' 7.0",
        "[CUDA 8.0",
        "8.0 7.0",
        "TypeError: can't convert cuda:0 device type t 1.0",
    ]


def test_unsupported_dtypes_and_half_precision_fft_sizes_are_rejected(tmp_path: Path) -> None:
    """The transform of [1, 2, 3, 4] begins with the sum, 10. The absolute value of a boolean is the boolean."""
    code = """
print(said(lambda: torch.gcd(M, M)))
print(said(lambda: torch.bitwise_and(M.half(), M.half())))
print(said(lambda: M.to(torch.float8_e4m3fn) + 1).partition(" not ")[2])
print(torch.fft.rfft(torch.tensor([1.0, 2, 3, 4], device="cuda").half()).real[0].item(), (M[0] > 2).abs().tolist())
print(said(lambda: torch.fft.rfft2(M.half())).partition("but ")[2])
"""
    assert _run(code, "compute", tmp_path) == [
        "NotImplementedError: \"gcd_cuda\" not implemented for 'Float'",
        "NotImplementedError: \"bitwise_and_cuda\" not implemented for 'Half'",
        "implemented for 'Float8_e4m3fn'",
        "10.0 [False, False, False]",
        "got a signal size of[3, 3]",
    ]


@pytest.mark.parametrize(
    ("visible", "count"), [("0", 1), ("", 0), ("-1", 0), ("abc", 0), ("0,0", 0), ("0,-1", 1), ("GPU-1234", 1)]
)
def test_the_variable_cuda_visible_devices_is_interpreted_like_in_torch(visible: str, count: int, tmp_path: Path) -> None:
    code = "print(torch.cuda.device_count())"
    script = tmp_path / "count.py"
    script.write_text("import torch\n" + code, encoding="utf-8")
    options = ("--clock", "virtual", "--trace", recording_of_something_else(tmp_path / "a100.msgpack"))
    command = [sys.executable, "-m", "tui.cli", "replay", "-q", *options, script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.stdout.split() == [str(count)], done.stderr


@VALUES
def test_tensor_printing_and_size_errors_agree_with_a_gpu(values: str, tmp_path: Path) -> None:
    """The expected texts are those of the CUDA build of PyTorch 2.14.1 on the simulated device."""
    code = """
long = torch.zeros(0, device="cuda", dtype=torch.int64)
for made in (torch.tensor([], device="cuda"), torch.zeros(0, 3, device="cuda"), long):
    print(made)
print(said(lambda: torch.empty(1 << 61, device="cuda", dtype=torch.uint8)))
print(said(lambda: torch.empty(1 << 62, device="cuda")))
print(said(lambda: torch.empty(-1, device="cuda")))
print(said(lambda: M[0].clone().as_strided((9,), (1,))))
x = torch.ones(3, device="cuda", requires_grad=True)
y = x.exp()
z = (y * y).sum()
y.add_(1)
print(said(z.backward)[:150])
"""
    strided = "setStorage: sizes [9], strides [1], storage offset 0, and itemsize 4 requiring a storage size of 36 are"
    changed = "one of the variables needed for gradient computation has been modified by an inplace operation: "
    assert _run(code, values, tmp_path) == [
        "tensor([], device='cuda:0')",
        "tensor([], device='cuda:0', size=(0, 3))",
        "tensor([], device='cuda:0', dtype=torch.int64)",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "RuntimeError: Storage size calculation overflowed with sizes=[4611686018427387904]",
        "RuntimeError: Trying to create tensor with negative dimension -1: [-1]",
        f"RuntimeError: {strided} out of bounds for storage of size 12",
        f"RuntimeError: {changed}[torch.cuda.FloatTensor [3]], which is output 0 of ExpBackward0"[:150],
    ]


@VALUES
def test_wrong_calls_raise_the_gpu_errors_where_the_cpu_checks_differ(values: str, tmp_path: Path) -> None:
    """The expected texts are those of the CUDA build of PyTorch 2.14.1 on the simulated device."""
    code = """
S = M.to_sparse()
one = torch.ones((), device="cuda")
H = torch.ones(3, 5, device="cuda", dtype=torch.half)
for call in (
    lambda: S.sigmoid(),
    lambda: torch.nested.nested_tensor([M, M]).tril(),
    lambda: S.numpy(),
    lambda: S.to_dense().to_sparse_csr().numpy(),
    lambda: M.to_sparse(3),
    lambda: M.to_sparse_bsr((2, 2)),
    lambda: torch.aminmax(M, out=(one.double(), one)),
    lambda: torch.aminmax(M, out=(one, one.clone())),
    lambda: F.multi_margin_loss(H, torch.ones(3, device="cuda")),
    lambda: F.multi_margin_loss(H, torch.ones(3, device="cuda", dtype=torch.int64)),
    lambda: F.multilabel_margin_loss(H, torch.ones(3, device="cuda", dtype=torch.int64)),
):
    print(said(call)[:110])
"""
    cannot_run = "NotImplementedError: Could not run 'aten::{}' with arguments from the '{}' backend. This could be because"
    assert _run(code, values, tmp_path) == [
        cannot_run.format("sigmoid", "SparseCUDA")[:110],
        cannot_run.format("tril", "NestedTensorCUDA")[:110],
        "TypeError: can't convert Sparse layout tensor to numpy. Use Tensor.to_dense() first.",
        "TypeError: can't convert SparseCsr layout tensor to numpy. Use Tensor.to_dense() first.",
        "RuntimeError: dense_to_sparse: sparse_dim argument must be in [0,2] range, but 3 is given",
        "RuntimeError: dense_to_sparse_bsr: tensor sparse size (3,3) must be divisible by given blocksize (2,2)",
        "RuntimeError: Expected out tensor to have dtype float, but got double instead",
        "ok",
        "RuntimeError: expected scalar type Long but found Float",
        "ok",
        "RuntimeError: inconsistent target size: [3] for input of size: [3, 5]",
    ]
