"""Tests which tensors and dtypes NCCL's reductions accept, and the results of averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import DistBackendError

from replayer.distributed.group_call import RankValues
from replayer.distributed.reductions import Reduction, require_dense

IMAGES = torch.zeros(2, 3, 4, 5)
TRANSPOSED = torch.zeros(2, 3).t()
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _twice() -> Any:
    c10d: Any = torch._C._distributed_c10d
    return c10d._make_nccl_premul_sum(2.0)


def test_sends_accept_transposed_tensors_and_collectives_accept_channels_last_tensors() -> None:
    require_dense([IMAGES, IMAGES.to(memory_format=torch.channels_last)], point_to_point=False)
    require_dense([TRANSPOSED], point_to_point=True)
    with pytest.raises(ValueError, match="Tensors must be contiguous"):
        require_dense([IMAGES, TRANSPOSED], point_to_point=False)


def test_premultiplied_sums_accept_only_the_four_floating_dtypes() -> None:
    four = [torch.zeros(1, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    assert Reduction.of(_twice(), four) == Reduction("PREMUL_SUM", 2.0)
    assert Reduction.of(_twice(), four[:1]).factor == 2.0
    with pytest.raises(TypeError, match="PreMulSum"):
        Reduction.of(_twice(), [*four, torch.zeros(1, dtype=torch.int32)])


def test_float8_sums_need_compute_capability_9_0(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [torch.zeros(1).to(dtype) for dtype in FLOAT8]
    for capability in ((9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda capability=capability: capability)
        assert Reduction.of(None, both).name == Reduction.of(None, both[:1]).name == "SUM"
        with pytest.raises(RuntimeError, match="Unsupported Float8 type"):
            Reduction.of(None, [*both, torch.zeros(1).to(torch.float8_e4m3fnuz)])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    with pytest.raises(DistBackendError, match="FP8 reduction support begins with sm90"):
        Reduction.of(None, both)


@pytest.mark.parametrize(
    ("of_ranks", "mean"),
    [
        ([[-3, 4], [-4, 3]], [-3, 3]),  # -3.5 and 3.5 lose their fractions
        ([[1.0, 2.0], [2.0, 4.0]], [1.5, 3.0]),
        ([[1 + 1j], [2 + 0j]], [1.5 + 0.5j]),
    ],
)
def test_an_average_of_integers_over_ranks_drops_the_fraction(of_ranks: list[list[Any]], mean: list[Any]) -> None:
    combined = Reduction("AVG").combine([RankValues(torch.tensor(values)) for values in of_ranks])
    assert combined is not None and combined.tolist() == mean


# These are the types that `getNcclDataType` in PyTorch's NCCLUtils.cpp converts. PyTorch sends complex numbers as two real
# numbers.
SENT = (
    "int8 uint8 bool int32 int64 float16 bfloat16 float32 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
    " complex64 complex128"
).split()


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch warns that some dtypes are experimental or deprecated
def test_nccl_accepts_only_the_dtypes_that_it_can_send() -> None:
    accepted = []
    for name, dtype in vars(torch).items():
        if isinstance(dtype, torch.dtype) and name == str(dtype).removeprefix("torch."):
            try:
                require_dense([torch.empty(2, dtype=dtype, device="meta")], point_to_point=False)
                accepted.append(name)
            except TypeError as error:
                assert "not supported for NCCL process group" in str(error)
    assert sorted(accepted) == sorted(SENT)


@pytest.mark.parametrize(
    ("name", "combined"),
    [
        ("SUM", [6, 4, 5]), ("PREMUL_SUM", [6, 4, 5]), ("AVG", [2, 1, 1]), ("PRODUCT", [6, 0, 0]), ("MIN", [1, 0, 0]),
        ("MAX", [3, 4, 3]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_uniform", [True, False])
def test_each_reduction_of_three_ranks_has_the_values_that_were_calculated_by_hand(
    name: str, combined: list[int], is_uniform: bool
) -> None:
    """If all elements of each rank are equal, the replayer computes only one element."""
    of_ranks = [torch.tensor(values) for values in ([1, 4, 3], [3, 0, 2], [2, 0, 0])]
    if is_uniform:
        of_ranks, combined = [values[:1].expand(3) for values in of_ranks], combined[:1] * 3
    found = Reduction(name).combine([RankValues(values) for values in of_ranks])
    assert found is not None and found.tolist() == combined
