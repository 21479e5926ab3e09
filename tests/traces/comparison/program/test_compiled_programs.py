"""Tests whether an eager and a compiled trace, or two compiled traces, count as the same program."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.replayer.compiled.handmade_recording import Events, running
from tests.traces.comparison.program.called_ops import names_called
from traces.comparison.compare import compare
from traces.comparison.program.compiled_programs import otherwise_compiled
from traces.model.workload import InputTensor, Sameness, WorkloadSignature


@pytest.mark.parametrize(
    ("compiled", "sameness", "reason"),
    [
        ((("mm", 9), ("triton_poi_fused_relu_0", 1)), Sameness.OTHER_COMPILATION, "100 % of the matrix products"),
        ((("addmm", 9), ("triton_poi_fused_relu_0", 1)), Sameness.OTHER_COMPILATION, "100 % of the matrix products"),
        ((("mm", 9), ("mm", 9), ("triton_poi_fused_relu_0", 1)), Sameness.OTHER_PROGRAM, "67 % of the matrix products"),
        ((("mm", 9), ("triton_poi_fused_gelu_0", 1)), Sameness.OTHER_PROGRAM, "compiled code contains gelu"),
        ((("mm", 9), ("triton_per_fused__fused_rms_norm_0", 1)), Sameness.OTHER_PROGRAM, "compiled code contains rms_norm"),
        ((("triton_tem_fused_mm_0", 9), ("triton_poi_fused_relu_0", 1)), Sameness.CANNOT_BE_TOLD, "only one trace is compiled"),
    ],
)
def test_eager_and_compiled_traces_of_one_program_have_the_same_matrix_products(
    compiled: tuple[tuple[str, int], ...], sameness: Sameness, reason: str
) -> None:
    """GIVEN an eager trace with a matrix product, an addition and a ReLU WHEN compilation fuses the addition and the ReLU THEN
    both traces have the same matrix products. WHEN the compiled trace has two products THEN only two of three products are the
    same."""
    found = compare(running(("mm", 9), ("add", 2), ("relu", 2)), running(*compiled)).verdict
    assert found.sameness is sameness and found.reason.startswith(reason)


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU(), nn.ReLU6(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.SELU(), nn.LeakyReLU(), nn.Hardtanh(), nn.Hardswish(),
        nn.CELU(), nn.GLU(), nn.Hardshrink(), nn.Hardsigmoid(), nn.LogSigmoid(), nn.Softshrink(),
        nn.Mish(), nn.Softplus(), nn.PReLU(), nn.BatchNorm2d(4), nn.InstanceNorm2d(4), nn.LayerNorm(8), nn.GroupNorm(2, 4),
        nn.MaxPool2d(2), nn.AvgPool2d(2), partial(torch.native_dropout, p=0.5, train=True),
    ],
)  # fmt: skip
def test_a_layer_in_only_the_compiled_trace_makes_a_different_program(layer: Any) -> None:
    """GIVEN a fused kernel whose name contains the ops of a layer WHEN the eager trace does not contain this layer THEN the
    program is different."""
    data = torch.ones(2, 4, 8, 8)
    names = names_called(lambda: layer(data))
    fused = f"triton_poi_fused_{'_'.join(names)}_0"
    found = compare(running(("mm", 9), ("add", 2)), running(("mm", 9), (fused, 1))).verdict
    assert found.sameness is Sameness.OTHER_PROGRAM and found.reason.startswith("compiled code contains"), names


def test_compiled_traces_with_different_numbers_of_matrix_products_are_different_programs() -> None:
    """GIVEN two compiled traces with the same 20 fused kernels WHEN one trace has one matrix product and the other has four
    THEN only 40 % of the products are the same."""
    fused = [("triton_poi_fused_relu_0", 1)] * 20
    verdict = compare(running(("mm", 9), *fused), running(*[("mm", 9)] * 4, *fused)).verdict
    assert (verdict.sameness, verdict.reason[:26]) == (Sameness.OTHER_PROGRAM, "40 % of the matrix product")


def test_matrix_products_are_compared_without_their_biases() -> None:
    """GIVEN a layer that compilation divides into a matrix product and a fused addition THEN the products are the same."""
    eager, compiled = Events(), Events()
    eager.op("aten::addmm", 0, 20, [[16], [8, 4], [4, 16]])
    eager.launch("cudaLaunchKernel", 5, ("gemm", 9))
    compiled.op("aten::mm", 0, 20, [[8, 4], [4, 16]])
    compiled.launch("cudaLaunchKernel", 5, ("gemm", 9))
    compiled.op("triton_poi_fused_addmm_0", 50, 20, [[8, 16], [16]])
    compiled.launch("cuLaunchKernel", 55, ("triton_poi_fused_addmm_0", 1))
    verdict = compare(eager.trace(), compiled.trace()).verdict
    assert (verdict.sameness, verdict.reason[:5]) == (Sameness.OTHER_COMPILATION, "100 %")


@pytest.mark.parametrize(
    ("fused", "sameness"),
    [
        (("add", "mul_add_relu", "mul"), Sameness.OTHER_COMPILATION),
        (("add", "mul_add_gelu", "mul"), Sameness.OTHER_PROGRAM),
    ],
)
def test_compiled_traces_that_fuse_ops_differently_have_the_same_matrix_products(
    fused: tuple[str, ...], sameness: Sameness
) -> None:
    """GIVEN two compiled traces with different fused kernels, as after a graph break WHEN their matrix products are the same
    and their kernels contain the names of the same layers THEN they are the same program."""
    names = [[f"triton_poi_fused_{name}_{i}" for i, name in enumerate(of)] for of in (("add_mul", "relu_add"), fused)]
    first, second = (running(("mm", 9), *((name, 1) for name in of), ("mm", 9)) for of in names)
    assert compare(first, second).verdict.sameness is sameness


@pytest.mark.parametrize(
    ("layers", "sameness"), [(34, Sameness.OTHER_COMPILATION), (33, Sameness.OTHER_COMPILATION), (32, Sameness.OTHER_PROGRAM)]
)
def test_compilation_does_not_change_the_number_of_matrix_products(layers: int, sameness: Sameness) -> None:
    """GIVEN an eager step with 34 matrix products WHEN a compiled step has 33 products THEN the program is the same, because
    the difference is below 3 %. WHEN the compiled step has 32 products THEN the program is the same only if both workloads are
    equal."""
    eager = running(*[("mm", 9), ("relu", 2)] * 34)
    compiled = running(*[("mm", 9)] * layers, ("triton_poi_fused_relu_0", 1))
    found = compare(eager, compiled).verdict
    assert found.sameness is sameness
    assert ("a step has 34 of these ops in the first trace and 32 in the second" in found.reason) is (layers == 32)
    eager.workload = compiled.workload = WorkloadSignature(parameters=64)
    assert compare(eager, compiled).verdict.sameness is Sameness.OTHER_COMPILATION


@pytest.mark.parametrize(
    ("eager", "compiled", "sameness"),
    [
        ((34, 2), (33, 1), Sameness.OTHER_COMPILATION),
        ((34, 1), (33, 2), Sameness.OTHER_COMPILATION),
        ((100, 1), (97, 1), Sameness.OTHER_COMPILATION),
        ((100, 1), (96, 1), Sameness.OTHER_PROGRAM),
    ],
)
def test_matrix_products_are_counted_per_step(eager: tuple[int, int], compiled: tuple[int, int], sameness: Sameness) -> None:
    """GIVEN traces with different numbers of steps WHEN their matrix products per step differ by more than 3 % of the larger
    number THEN the programs are different."""
    (ours, steps), (theirs, other_steps) = eager, compiled
    a = running(*[("mm", 9)] * ours, steps=steps)
    b = running(*[("mm", 9)] * theirs, ("triton_poi_fused_add_0", 1), steps=other_steps)
    found = otherwise_compiled(a, b, np.arange(steps), np.arange(other_steps))
    assert found is not None and found.sameness is sameness
    found = otherwise_compiled(b, a, np.arange(other_steps), np.arange(steps))
    assert found is not None and found.sameness is sameness


@pytest.mark.parametrize(("products", "sameness"), [(3, Sameness.OTHER_COMPILATION), (4, Sameness.OTHER_PROGRAM)])
def test_eager_and_compiled_traces_must_share_80_percent_of_their_matrix_products(products: int, sameness: Sameness) -> None:
    """GIVEN eager code with 2 matrix products WHEN compiled code has 3 products THEN their similarity is 2 * 2 / 5. WHEN
    compiled code has 4 products THEN their similarity is 2 * 2 / 6."""
    eager, compiled = running(*[("mm", 9)] * 2), running(*[("mm", 9)] * products, ("triton_poi_fused_add_0", 1))
    eager.workload = compiled.workload = WorkloadSignature(parameters=64)
    assert compare(eager, compiled).verdict.sameness is sameness
    # WHEN only one trace has a workload signature THEN the products decide.
    eager.workload = None
    assert compare(eager, compiled).verdict.sameness is Sameness.OTHER_PROGRAM


@pytest.mark.parametrize(("alike", "reason"), [(18, "90 % of the kernels have the same names"), (17, None)])
def test_compiled_traces_without_matrix_products_must_share_90_percent_of_their_kernels(alike: int, reason: str | None) -> None:
    """GIVEN two compiled traces of 20 kernels without matrix products WHEN at least 90 % of their kernels have the same names
    THEN they are the same program."""
    a, b = (
        running(*[("triton_poi_fused_add_0", 1)] * alike, *[(f"triton_poi_fused_{name}_1", 1)] * (20 - alike))
        for name in ("mul", "sub")
    )
    found = otherwise_compiled(a, b, np.arange(1), np.arange(1))
    assert (found and (found.sameness, found.reason)) == (reason and (Sameness.OTHER_COMPILATION, reason))


def test_diff_names_a_layer_that_only_the_compiled_code_contains() -> None:
    compiled = running(("triton_poi_fused_silu_0", 1), ("triton_poi_fused_gelu_mish_1", 1))
    assert compare(running(("add", 2)), compiled).verdict.reason == "compiled code contains gelu, but the eager trace does not"


def test_traces_without_compiled_code_or_without_kernels_are_not_judged() -> None:
    eager, compiled, one = running(("mm", 9)), running(("mm", 9), ("triton_poi_fused_add_0", 1)), np.arange(1)
    assert otherwise_compiled(eager, eager, one, one) is None
    assert otherwise_compiled(eager, compiled, one, one) is not None
    compiled.grain = "phase"
    assert otherwise_compiled(eager, compiled, one, one) is None


@pytest.mark.parametrize(("batch", "sameness"), [(8, Sameness.OTHER_COMPILATION), (4, Sameness.OTHER_BATCH_SIZE)])
def test_workload_signatures_are_compared_if_compiled_kernels_hide_matrix_products(batch: int, sameness: Sameness) -> None:
    eager, compiled = running(("mm", 9), ("relu", 2)), running(("triton_tem_fused_mm_relu_0", 9))
    eager.workload, compiled.workload = (
        WorkloadSignature(parameters=64, inputs=(InputTensor((rows, 8), "float32"),)) for rows in (8, batch)
    )
    assert compare(eager, compiled).verdict.sameness is sameness
