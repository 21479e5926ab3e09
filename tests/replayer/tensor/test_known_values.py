# mypy: allow-untyped-calls
"""Tests that whole numbers are computed if they depend only on values from the host, because scripts branch on such numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from replayer.errors import DataDependentShape, NotEmulated
from replayer.tensor.allocation import KNOWN_BYTES, Doubt
from replayer.tensor.generators import without_warnings
from replayer.tensor.values import known_values as module
from replayer.tensor.values.known_values import Folding, doubt_of, known_values, payload
from tests.replayer.fake_gpu import use

KNOWN_ELEMENTS = KNOWN_BYTES // 8  # of a tensor with a dtype of 64 bits

_OPS = {
    "compare": lambda x: x > 2,
    "sum": lambda x: x.sum(-1),
    "cumsum": lambda x: x.cumsum(0),
    "diff": lambda x: torch.diff(x, dim=0),
    "all": lambda x: (x >= 0).all(),
    "column": lambda x: x[:, :1] + 1,
    "transposed": lambda x: x.t().contiguous() * 2,
    "cat": lambda x: torch.cat([x, x.flip(0)]),
    "cast": lambda x: x.bool().long() - x.int(),
    "where": lambda x: torch.where(x.eq(1), x, -x),
    "sorted": lambda x: x.argsort(1).clone(),
    "positions": lambda x: torch.arange(x.size(0), device=x.device).unsqueeze(1) + x,
    "indexed": lambda x: x[torch.arange(x.size(0), device=x.device) % 2],
    "rows found": lambda x: torch.tensor(x[x[:, 0] > 1].shape),
}


def test_results_of_ops_on_known_values_are_known() -> None:
    use()

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=4))
    def check(rows: list[list[int]]) -> None:
        host = torch.tensor(rows)
        for name, op in _OPS.items():
            assert op(host.cuda()).tolist() == op(host).tolist(), name

    check()


def test_the_values_of_random_floats_and_of_overwritten_and_large_tensors_are_unknown() -> None:
    use()
    x = torch.ones(3, dtype=torch.int64, device="cuda")
    assert (x + 1).tolist() == [2] * 3
    x.add_(_unknown_integers(3))
    assert (x + 1).tolist() == [0] * 3  # 0 is the placeholder for unknown values
    assert torch.bernoulli(torch.ones(3, device="cuda")).long().tolist() == [0] * 3
    assert (torch.rand(3, device="cuda") >= 0).tolist() == [False] * 3
    large = torch.zeros(KNOWN_ELEMENTS + 1, dtype=torch.int64, device="cuda")
    assert (large == 0).tolist()[:2] == [True] * 2 and bool((large == 0).all())
    assert (torch.arange(KNOWN_ELEMENTS + 1, device="cuda") >= 0).tolist()[:2] == [False] * 2
    assert (torch.arange(KNOWN_ELEMENTS, device="cuda") >= 0).tolist()[:2] == [True] * 2


@pytest.mark.parametrize("chosen", [[], [1], [0, 1, 2]])
def test_values_selected_by_a_known_mask_are_written_there(chosen: list[int]) -> None:
    use()
    values, mask = torch.tensor([7, 8, 9]).cuda(), torch.tensor([at in chosen for at in range(3)]).cuda()
    target = torch.full((3,), 5, device="cuda")
    target[mask] = values[mask]
    assert target.tolist() == [value if at in chosen else 5 for at, value in enumerate([7, 8, 9])]


def test_an_op_on_an_unchanged_large_mask_is_computed_once() -> None:
    """GIVEN the mask of a causal attention, which each layer compares with 0 THEN a write to the mask changes the result."""
    use()
    mask = torch.ones(512, 512, dtype=torch.int32).tril().cuda()
    with mock.patch.object(module, "without_warnings", wraps=without_warnings) as computed:
        hidden = [mask[:size, :size] == 0 for size in (512, 256, 512, 256)]
        assert computed.call_count == 2
        for _ in range(3):  # a layer may call several ops on the mask
            for number in range(1, 7):
                assert (mask == number).numel() == 512 * 512
        assert computed.call_count == 8
    assert [of.sum().item() for of in hidden] == [512 * 511 // 2, 256 * 255 // 2] * 2
    mask[0] = 1
    assert (mask == 0).sum().item() == 512 * 511 // 2 - 511


def test_rows_without_their_diagonal_keep_the_shape_of_a_contrastive_loss() -> None:
    """SimCLR compares 512 pictures with each other, and removes the similarity of each picture to itself."""
    use()
    labels = torch.arange(256).repeat(2)
    same = (labels.unsqueeze(0) == labels.unsqueeze(1)).float().cuda()
    for diagonal in (torch.eye(512, dtype=torch.bool).cuda(), torch.eye(512, dtype=torch.bool, device="cuda")):
        others = same[~diagonal].view(512, -1)
        similarity = torch.rand(512, 512, device="cuda")[~diagonal].view(512, -1)
        assert similarity[others.bool()].view(512, -1).shape == (512, 1)
        assert similarity[~others.bool()].view(512, -1).shape == (512, 510)


def test_ops_that_change_only_the_shape_of_a_tensor_keep_its_values() -> None:
    use()
    x = torch.arange(6).cuda()
    assert x.unsqueeze_(0).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert x.as_strided_((2, 2), (3, 1), 1).tolist() == [[1, 2], [4, 5]]
    assert x.t_().tolist() == [[1, 4], [2, 5]]
    x = torch.arange(6).cuda()
    assert x.resize_(2, 2).tolist() == [[0, 1], [2, 3]] and x.resize_(6).tolist() == [0, 1, 2, 3, 4, 5]


def _unknown_integers(count: int) -> torch.Tensor:
    return torch.rand(count, device="cuda").long()


def test_selected_elements_are_counted_alike_by_all_ops() -> None:
    """The share of true elements is 0.5 before the first training step, so every second of the 20 elements is true."""
    gpu = use()
    gpu.assumes_sizes = True
    gpu.simulator.stats = SimpleNamespace(sizes_assumed=0)
    for counted_first in (True, False):
        x, labels = torch.rand(4, 5, device="cuda"), torch.zeros(4, 5, dtype=torch.int64, device="cuda")
        mask = x > 0.5
        counts = [mask.sum().item(), mask.sum(1).tolist()] if counted_first else []
        labels[mask] = 7
        assert x[mask].shape == (10,) and x[~mask].shape == (10,) and x.masked_select(mask).shape == (10,)
        assert counts in ([], [10, [2, 3, 2, 3]]) and mask.nonzero()[:, 0].bincount().tolist() == [2, 3, 2, 3]
        assert (labels == 7).sum().item() == 10 and mask.any().item() and not mask.all().item()
    if (torch.rand(4, device="cuda") < 0).sum() > 0:
        raise ValueError("a check of floats must not fail")


def test_guessed_indices_are_within_bounds_and_differ_from_each_other() -> None:
    gpu = use()
    gpu.assumes_sizes = True
    gpu.simulator.stats = SimpleNamespace(sizes_assumed=0)
    scores = torch.rand(6, 4, device="cuda")
    assert scores.argmax(1).tolist() == scores.max(1)[1].tolist() == [0, 1, 2, 3, 0, 1]
    assert scores.argmax(0, keepdim=True).tolist() == [[0, 1, 2, 3]] and scores.argmax().item() == 0
    assert scores.topk(2)[1].tolist() == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1], [2, 3]]
    assert scores.topk(2, dim=0)[1].tolist() == [[0, 2, 4, 0], [1, 3, 5, 1]]
    for order in (scores.sort()[1], scores.argsort(1, descending=True), scores.sort(dim=1, stable=True)[1]):
        assert order.tolist() == [[0, 1, 2, 3]] * 6
    assert scores.sort(dim=0)[1].tolist() == [[row] * 4 for row in range(6)]
    assert scores.multinomial(3)[:2].tolist() == [[0, 1, 2], [3, 0, 1]]
    assert torch.rand((), device="cuda").sort()[1].item() == 0
    classes = scores.argmax(1)
    assert [(classes == one).sum().item() for one in range(4)] == classes.bincount().tolist() == [2, 2, 1, 1]
    assert (classes == torch.zeros(6, dtype=torch.int64, device="cuda")).sum().item() == 3  # an assumed accuracy


def test_a_loop_over_guessed_conditions_ends() -> None:
    use()
    done, turns = torch.rand(4, device="cuda") > 0.5, 0
    assert done.sum().item() == 2
    while not done.all():
        turns += 1
    assert turns < 1000


def test_random_integers_are_guessed_within_their_bounds() -> None:
    """Scripts derive shapes from random integers: the classes of a one-hot encoding, or the rows that a mask selects. The
    guessed numbers therefore agree with each other. The same seed draws the same numbers."""
    gpu = use()
    gpu.assumes_sizes = True
    gpu.simulator.stats = SimpleNamespace(sizes_assumed=0)
    drawn = torch.randint(3, 9, (200,), device="cuda")
    assert doubt_of(drawn) is Doubt.GUESSED and set(drawn.tolist()) == set(range(3, 9)) and F.one_hot(drawn).shape == (200, 9)
    assert sum((drawn == number).nonzero().shape[0] for number in range(3, 9)) == 200
    assert torch.randint_like(drawn, 2).max().item() == 1
    order = torch.randperm(50, device="cuda")
    assert order.tolist() != list(range(50)) and sorted(order.tolist()) == list(range(50))
    for generator in (None, torch.Generator("cuda")):
        seeded = []
        for _ in range(2):
            torch.cuda.manual_seed(1) if generator is None else generator.manual_seed(1)
            seeded.append([torch.randint(1000, (4,), device="cuda", generator=generator).tolist() for _ in range(2)])
        assert seeded[0] == seeded[1] and seeded[0][0] != seeded[0][1]
    assert known_values(torch.randperm(KNOWN_ELEMENTS + 1, device="cuda")) is None
    assert gpu.simulator.stats.sizes_assumed == 6  # one per mask
    gpu.assumes_sizes = False
    for sized_by_guesses in (lambda: (drawn == 3).nonzero(), lambda: drawn.unique()):
        with pytest.raises(DataDependentShape):
            sized_by_guesses()


def test_sums_and_means_of_many_equal_elements_equal_those_of_torch() -> None:
    use()
    host, filled = (torch.full((KNOWN_ELEMENTS, 3), 2, device=device) for device in ("cpu", "cuda"))
    for reduce in (
        lambda x: x.sum(),
        lambda x: x.sum(0),
        lambda x: x.sum(1)[:4],
        lambda x: x.max(),
        lambda x: x.float().mean(),
    ):
        assert reduce(filled).tolist() == reduce(host).tolist()


def test_assumed_correct_predictions_never_exceed_the_number_of_labels() -> None:
    """GIVEN the five likeliest classes of eight samples WHEN they are compared with the labels THEN eight results are true.

    In other comparisons, half of the elements are assumed to be true.
    """
    use()
    likeliest, labels = torch.rand(8, 10, device="cuda").topk(5)[1].t(), torch.rand(8, 10, device="cuda").argmax(1)
    right = likeliest.eq(labels.view(1, -1).expand_as(likeliest))
    assert right.sum().item() == 8 and right.sum(0).tolist() == [1] * 8
    assert right.float().mean().item() == np.float32(8 / 40)
    assert (labels == labels.flip(0)).sum().item() == 4  # half of the eight comparisons


_REJECTED = {
    "normal": (lambda x: torch.normal(x, -x), "all elements of std >= 0.0"),
    "multinomial": (lambda x: torch.multinomial(-x, 1), "element < 0"),
    "histc": (lambda x: torch.histc(x * torch.inf), "inf\\] is not finite"),
    "searchsorted": (lambda x: torch.searchsorted(x, x, sorter=x.long() + 7), "sorter index out of range"),
    "segment_reduce": (lambda x: torch.segment_reduce(x, "sum", lengths=x.long()), "lengths along axis to sum to"),
    "inverse": (lambda x: torch.linalg.inv(x.outer(x)), "The diagonal element 2 is zero"),
}


@pytest.mark.parametrize("name", _REJECTED)
def test_known_values_that_cuda_checks_on_the_host_are_rejected(name: str) -> None:
    use()
    call, text = _REJECTED[name]
    with pytest.raises(RuntimeError, match=text):
        call(torch.tensor([1.0, 2.0]).cuda())


def test_random_ops_with_valid_known_values_do_not_advance_the_cpu_generator() -> None:
    use()
    before, generator = torch.get_rng_state(), torch.Generator("cuda")
    std = torch.tensor([1.0, 2.0]).cuda()
    assert torch.normal(0.0, std, generator=generator).shape == (2,)
    assert torch.multinomial(std, 2, generator=generator).shape == (2,)
    assert doubt_of(torch.normal(0.0, std)) is Doubt.GUESSED
    assert torch.equal(before, torch.get_rng_state())


def test_large_tensors_of_one_value_draw_no_random_numbers_on_the_cpu() -> None:
    """The values of a tensor of any size are known if they are all equal. Random numbers are drawn only for small tensors."""
    use()
    with mock.patch.object(module, "host_numbers") as draws:
        for elements in (KNOWN_ELEMENTS, KNOWN_ELEMENTS + 1):
            torch.normal(0.0, torch.ones(elements, dtype=torch.float64, device="cuda"))
    assert draws.call_count == 1


@pytest.mark.parametrize("elements", [2, KNOWN_ELEMENTS + 1])
def test_dividing_integers_by_zero_raises_no_error(elements: int) -> None:
    """The divisor is a number or a tensor. The CPU would raise an error."""
    use()
    ones = torch.ones(elements, dtype=torch.int64, device="cuda")
    for divisor in (0, torch.zeros_like(ones)):
        for quotient in (ones // divisor, ones % divisor, torch.fmod(ones, divisor), ones.clone().floor_divide_(divisor)):
            assert quotient.shape == (elements,)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.ones(3, device="cuda").floor_divide_(torch.ones(2, 3, device="cuda"))


def test_comparing_two_different_unknown_tensors_gives_an_unknown_result() -> None:
    use()
    one, other = _unknown_integers(8), _unknown_integers(8)
    assert [bool((one == one).all()), bool((one != one).any())] == [True, False]
    assert [(one == other).sum().item(), (one != other).sum().item()] == [4, 4]  # half of the eight comparisons


def test_two_tensors_are_assumed_to_be_close_but_not_equal() -> None:
    """If exactly one of two conditions compares floats with a bound, it is known whether one of them holds."""
    use()
    one, other = torch.rand(8, device="cuda"), torch.rand(8, device="cuda")
    assert torch.allclose(one, other) and bool(((one == other) | (one > 0)).all())
    assert not bool(((one == other) | (other == one)).all()) and not bool(((one < 0) | (one > 1)).all())


def conditions() -> dict[str, torch.Tensor]:
    drawn, labels = torch.rand(8, device="cuda"), _unknown_integers(8)
    known = {str(value): torch.full((8,), value, device="cuda") for value in (True, False)}
    return {"bound": drawn > 0, "equal": labels == labels.flip(0), **known}


def test_the_results_of_all_and_any_follow_from_the_assumed_conditions() -> None:
    """Each entry of a table is one pair of the four `conditions()`. "a" means that `all()` is True, and "A" that `any()` is
    True."""
    use()
    both = "a. .. a. ..", ".. .. .. ..", "a. .. aA ..", ".. .. .. .."
    either = ".. a. aA a.", "a. .. aA ..", "aA aA aA aA", "a. .. aA .."
    calls: dict[Callable[[Any, Any], Any], tuple[str, ...]] = {
        (lambda a, b: a & b): both,
        torch.logical_and: both,
        (lambda a, b: a * b): both,
        (lambda a, b: a.clone().bitwise_and_(b)): both,
        (lambda a, b: a | b): either,
        torch.logical_or: either,
        (lambda a, b: a.clone().bitwise_or_(b)): either,
    }
    for call, expected in calls.items():
        rows = [[call(one, other) for other in conditions().values()] for one in conditions().values()]
        read = [" ".join(("a" if of.all() else ".") + ("A" if of.any() else ".") for of in row) for row in rows]
        assert tuple(read) == expected


def test_an_unknown_condition_is_true_for_half_of_its_elements() -> None:
    use()
    equal, bound = (conditions()[name] for name in ("equal", "bound"))
    assert (equal.sum().item(), equal.view(4, 2).sum(1).tolist()) == (4, [1] * 4)
    assert [of.float().mean().item() for of in (equal, bound)] == [0.5, 0.5]
    for of in (conditions()[name] for name in ("equal", "bound")):  # no op has counted the elements of these masks
        for reduce in (torch.max, torch.min, torch.amax, torch.amin):
            assert reduce(of).item() is False and reduce(of.int()).item() == 0 and type(reduce(of.int()).item()) is int


def test_floats_are_neither_infinite_nor_outside_of_bounds() -> None:
    """Each digit is a comparison that is true: 1 with infinity, 2 with minus infinity, 3 with a copy, and 4 with a number."""
    use()
    x = torch.rand(8, device="cuda")
    expected = {"lt": "1..4", "le": "1.34", "gt": ".2.4", "ge": ".234", "eq": "..3.", "ne": "12.."}
    for name, read in expected.items():
        results = [getattr(x, name)(other).all() for other in (torch.inf, -torch.inf, x.clone(), 0.5)]
        assert "".join(str(at) if result else "." for at, result in enumerate(results, 1)) == read, name
    assert not any(is_invalid(x).any() for is_invalid in (torch.isnan, torch.isinf, torch.isposinf, torch.isneginf))


def test_lazily_conjugating_kernels_give_the_values_that_the_cpu_gives() -> None:
    use()
    x = torch.tensor([[1j, 2], [3, 4j]])
    assert torch.allclose(torch.tensor(torch.linalg.pinv(x.cuda()).tolist()), torch.linalg.pinv(x), atol=1e-5)


def test_a_large_constant_tensor_has_a_known_value_in_every_dtype() -> None:
    use()
    large = {dtype: torch.full((1 << 16,), 3, dtype=dtype, device="cuda") for dtype in (torch.float16, torch.uint8, torch.bool)}
    read = [of[0].item() for of in large.values()]
    assert read == [3.0, 3, True] and [type(value) for value in read] == [float, int, bool]
    z = torch.full((1 << 16,), 1 + 2j, device="cuda")
    assert [z[0].item(), z.conj()[0].item()] == [1 + 2j, 1 - 2j]
    for count in (1, 2):
        memory = torch.zeros(count, dtype=torch.complex64).cuda()
        memory.conj().copy_(torch.tensor([1 + 2j, 3 + 4j][:count]))
        assert memory.tolist() == [1 - 2j, 3 - 4j][:count] and memory.conj().tolist() == [1 + 2j, 3 + 4j][:count]


def test_a_partial_copy_of_a_constant_tensor_has_the_same_value() -> None:
    use()
    threes: Any = torch.full((1 << 16,), 3.0, device="cuda")
    assert threes[5:].clone().max().item() == 3.0
    assert torch._neg_view(threes)[5:].clone().max().item() != 3.0


def test_a_script_can_detect_that_an_attention_mask_hides_nothing() -> None:
    """Scripts check this in order to call attention without a mask, so the launched kernel is flash attention."""
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    q = torch.rand(2, 4, 8, 16, device="cuda", dtype=torch.float16)
    given_mask = torch.ones(2, 8, dtype=torch.int64).cuda()
    F.scaled_dot_product_attention(q, q, q, attn_mask=None if given_mask.bool().all() else given_mask[:, None, None])
    assert gpu.launched[-1] == "_scaled_dot_product_flash_attention"


def test_grouped_query_attention_uses_the_flash_kernel() -> None:
    gpu = use(name="NVIDIA A100-SXM4-40GB")
    q = torch.rand(2, 4, 8, 16, device="cuda", dtype=torch.float16, requires_grad=True)
    k = torch.rand(2, 2, 8, 16, device="cuda", dtype=torch.float16, requires_grad=True)
    F.scaled_dot_product_attention(q, k, k, enable_gqa=True, is_causal=True).sum().backward()
    assert k.grad is not None and k.grad.shape == k.shape and q.grad is not None
    assert "_scaled_dot_product_flash_attention_backward" in gpu.launched


def test_an_attention_mask_of_odd_width_is_padded_for_the_memory_efficient_kernel() -> None:
    gpu = use(name="Tesla V100-SXM2-16GB", major=7, minor=0)
    q = torch.rand(2, 4, 5, 16, device="cuda")
    gpu.launched_ops.clear()
    F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(5, 5, device="cuda"))
    assert gpu.launched[-2:] == ["constant_pad_nd", "_scaled_dot_product_efficient_attention"]


def test_results_that_do_not_depend_on_an_unknown_operand_are_known() -> None:
    use()
    # GIVEN an unknown condition and an unknown count, as in a loop that generates tokens
    unknown, unfinished = torch.rand(2, device="cuda") > 0.3, _unknown_integers(2)
    stopped = torch.full((2,), True, device="cuda")
    # THEN `| True` is True and `& False` is False, for tensors and for plain numbers
    assert (unknown | stopped).tolist() == (unknown | True).tolist() == (True | unknown).tolist() == [True, True]
    assert (unknown & False).tolist() == (unknown & ~stopped).tolist() == [False, False]
    assert (unfinished & ~stopped).tolist() == (unfinished * ~stopped).tolist() == [0, 0]
    assert ((unfinished & ~(unknown | True)).max() == 0).item() is True
    unfinished &= ~stopped
    assert unfinished.tolist() == [0, 0]
    # THEN `condition | 2` is an integer and not a condition
    assert (unknown | 2).dtype is torch.int64 and (unknown | 2).tolist() != [True, True]


def test_one_thread_copies_and_counts_known_values() -> None:
    """PyTorch would compute more than 32,768 elements with several threads. On a busy machine, one call would then take several
    milliseconds, because each thread waits for the others."""
    use()
    large, threads, before = torch.arange(40_000), dict[str, set[int]](), torch.get_num_threads()

    def on_event(_frame: FrameType, event: str, function: Any) -> None:
        tensor = getattr(function, "__self__", None) if event == "c_call" else None
        if type(tensor) is torch.Tensor and tensor.numel() > 32_768:
            threads.setdefault(function.__name__, set()).add(torch.get_num_threads())

    torch.set_num_threads(3)
    sys.setprofile(on_event)
    try:
        x = large.cuda()
        mask = x > 7
        results = [x.clone(), x[mask], x.masked_select(mask), mask.nonzero()]
        x[1:] = x[:-1].clone()
        x[1:].fill_(5)
    finally:
        sys.setprofile(None)
        torch.set_num_threads(before)
    assert [len(result) for result in results] == [40_000, 39_992, 39_992, 39_992]
    assert [threads[name] for name in ("copy_", "fill_", "count_nonzero")] == [{1}] * 3


def test_computing_known_values_uses_one_thread_and_then_restores_the_thread_count() -> None:
    """Known values are computed by one thread, so no thread waits for another. The thread count of the script is restored even
    after an op that the CPU cannot compute."""
    use()
    seen: list[int] = []

    def add(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        raise NotImplementedError

    add._schema, add.tags = torch.ops.aten.add.Tensor._schema, ()  # type: ignore[attr-defined]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        x = torch.arange(4).cuda()
        assert not Folding(cast(Any, add), (), 0, guesses=False).fold(x, (x, 1), {})
        assert seen == [1] and torch.get_num_threads() == 3
        assert (x + 1).tolist() == [1, 2, 3, 4] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


WAYS: dict[str, Callable[[int], torch.Tensor]] = {
    "uploaded": lambda count: torch.arange(count).cuda(),
    "counted": lambda count: torch.arange(count, device="cuda"),
    "one element written": lambda count: torch.zeros(count, dtype=torch.int64, device="cuda").index_fill_(
        0, torch.tensor([0], device="cuda"), 5
    ),
    "filled in part": lambda count: _filled_in_part(torch.zeros(count, dtype=torch.int64, device="cuda")),
    "summed": lambda count: torch.arange(count).cuda() + 1,
}


def _filled_in_part(tensor: torch.Tensor) -> torch.Tensor:
    tensor[1:3].fill_(7)
    return tensor


def test_values_of_integer_tensors_up_to_1_mib_are_known() -> None:
    use()
    most = (1 << 20) // 8
    known = {
        (name, count): isinstance(known_values(make(count)), torch.Tensor)
        for name, make in WAYS.items()
        for count in (most - 1, most, most + 1)
    }
    assert known == {(name, count): count <= most for name, count in known}


def test_the_bytes_of_a_copied_storage_up_to_1_mib_are_known() -> None:
    use()
    for count in (1 << 20, (1 << 20) + 1):
        storage = torch.full((count,), 3, dtype=torch.uint8).untyped_storage().cuda()
        assert (storage.allocation.known is not None) == (count == 1 << 20)  # type: ignore[union-attr]


def test_a_storage_copied_to_the_host_has_its_known_values() -> None:
    """The storage of random numbers, whose values are unknown, has zeros on the host."""
    use()
    filled, known, drawn = (
        torch.full((6,), 2, dtype=torch.int32, device="cuda"), torch.tensor([4, 5], device="cuda"), torch.rand(3, device="cuda")
    )  # fmt: skip
    assert torch.tensor([], dtype=torch.int32).set_(filled.untyped_storage().cpu()).tolist() == [2] * 6
    assert torch.tensor([], dtype=torch.int64).set_(known.untyped_storage().cpu()).tolist() == [4, 5]
    assert torch.tensor([]).set_(drawn.untyped_storage().cpu()).tolist() == [0.0] * 3


def test_values_that_need_more_memory_than_the_machine_has_are_rejected() -> None:
    allocation: Any = SimpleNamespace(known=None, size_bytes=80 << 30)
    refused = pytest.raises(NotEmulated, match=r"a tensor of 80\.00 GiB .* its values \(1\.25 GiB can be used\)")
    with mock.patch.object(module, "spare_host_bytes", lambda: 5 << 28), refused:
        payload(allocation)
    assert allocation.known is None
    allocation.size_bytes = 1 << 20
    assert payload(allocation).nbytes() == 1 << 20


def test_batch_norm_of_a_known_batch_needs_no_gradient_of_the_batch() -> None:
    """The CPU computes gradients of known values, and returns no tensor for the gradient of the batch."""
    use()
    layer = torch.nn.BatchNorm1d(2).cuda()
    layer(torch.tensor([[1.0, 2.0], [3.0, 6.0]]).cuda()).sum().backward()
    gradient: Any = layer.bias.grad
    assert gradient.tolist() == [2.0, 2.0]


def test_a_gradient_scaler_keeps_its_scale_because_gradients_are_assumed_finite() -> None:
    """GIVEN random gradients with unknown values THEN the gradient scaler finds no infinity, and its scale is known."""
    use()
    scale, found = torch.full((1,), 8.0, device="cuda"), torch.zeros(1, device="cuda")
    grown = torch.zeros(1, dtype=torch.int32, device="cuda")
    torch._amp_foreach_non_finite_check_and_unscale_([torch.randn(3, device="cuda")], found, scale)
    assert known_values(found) == 0
    torch._amp_update_scale_(scale, grown, found, 2.0, 0.5, 2000)
    assert known_values(scale) == 8
