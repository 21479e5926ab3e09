# mypy: allow-untyped-calls
"""Tests benchmarks/gpu_rules.py: how a sample is called on the CPU, and how two sets of answers are compared."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from benchmarks.gpu_rules import Asking, Difference, Sample, compare, differences, kind_of
from tests.replayer.fake_gpu import use


def _answers(dtypes: dict[str, str], samples: str = "1234") -> dict[str, Any]:
    return {"signatures": {"mm": samples}, "answers": {"mm": {"dtypes": dtypes}}}


@pytest.mark.parametrize(
    ("gpu", "virtual", "kind"),
    [
        ("RuntimeError: no", "ok float32", "accepted here, refused by the GPU"),
        ("ok float32", "RuntimeError: no", "refused here, accepted by the GPU"),
        ("ok float32", "NotEmulated: aten::mm", "NotEmulated"),
        ("ok float32", "ok float64", "other result"),
        ("RuntimeError: no", "RuntimeError: never", "other text"),
        ("RuntimeError: no", "IndexError: no", "other error type"),
        ("ok float32", "died: SIGSEGV", "died here"),
    ],
)
def test_different_answers_of_virtual_gpu_and_gpu_are_classified(gpu: str, virtual: str, kind: str) -> None:
    assert kind_of(gpu, virtual) == kind


def test_equal_answers_missing_answers_and_unsupported_ops_do_not_count_as_differences() -> None:
    gpu = _answers({"forward bool 0": "TypeError: a", "forward bool 0 by": "mm.default bool", "forward int8 0": "ok int8"})
    virtual = _answers({"forward bool 0": "ok bool", "forward bool 0 by": "addmm.default bool"})
    kind = "accepted here, refused by the GPU"
    assert list(differences(gpu, virtual)) == [Difference(kind, "mm", "forward bool 0", "TypeError: a", "ok bool")]
    assert list(differences(gpu, _answers({"forward bool 0": "ok bool"}, samples="5678"))) == []
    text = compare(gpu, virtual, []).splitlines()
    assert text[0] == "1 calls of 1 operators were answered by both; 1 answers differ"
    assert text[2] == f"{kind}: 1 (forward 1)"


@pytest.mark.warm
def test_a_sample_is_cast_and_moved_to_the_gpu() -> None:
    use()
    leaves, spec = tree_flatten((torch.tensor([-2.5, 9.0]), (torch.tensor([1]),), {"device": "cpu"}))
    sample = Sample(leaves, spec, torch.float32)
    data, index, device = sample.on_gpu(torch.int64)
    assert (data.dtype, index.dtype, device) == (torch.int64, torch.int64, "cuda")
    assert data.is_cuda and index.is_cuda and data.tolist() == [2, 3]  # Sample values become absolute values of at most 3.
    assert sample.tensors() == [0, 1]
    assert sample.run(lambda x, i, device: x.dtype, torch.float16) == torch.float16


def _no_gpu() -> None:
    raise RuntimeError("no GPU")


def test_workers_that_cannot_use_the_gpu_end_the_run_and_say_why() -> None:
    """The first worker is a fork, and the second is a new interpreter. After both have failed, no further worker is started."""
    asking = Asking([], "no operator", 1, _no_gpu, deadline=time.monotonic() + 200)
    asking.run(lambda: None)
    assert asking.failed_starts[0] == "RuntimeError: no GPU" and len(asking.failed_starts) == 2
    assert asking.answers == {} and asking.unfinished() == []
