"""Tests predictions for several ranks from a recording of one GPU: sharding, split matrix products, communication and
memory."""

from __future__ import annotations

import json
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayer.cost_model.collective_costs import CollectiveCosts
from replayer.prediction.conditions import Conditions
from replayer.prediction.fully_sharded import GATHER, ROOT, ShardedStep, fully_sharded, moved_bytes, rank_memory
from replayer.prediction.layers import layers_of
from replayer.prediction.optimizer_states import states_of
from replayer.prediction.predict import Prediction, predict
from replayer.prediction.tensor_parallel import Product, pairs_of, part_of
from tests.replayer.recordings import Op, make_recording
from tests.traces.handmade import training
from traces.format.trace_file import save
from traces.model.trace import NONE, Trace, TraceError
from tui.cli import run

US = 1_000
ROWS, WIDTH, HIDDEN, HEADS, LENGTH, BLOCKS = 512, 1024, 4096, 16, 128, 3
# A block has this number of parameters.
BLOCK = 4 * WIDTH * WIDTH + 4 * WIDTH + 2 * WIDTH * HIDDEN + WIDTH + HIDDEN + 2 * WIDTH


Call = tuple[str, tuple[tuple[int, ...], ...]]


def linear(rows: int, depth: int, columns: int) -> Call:
    return "aten::addmm", ((columns,), (rows, depth), (depth, columns))


def transformer(*, trains: bool = True, kernel_us: int = 400) -> Trace:
    """Return one training step of pre-norm blocks of attention and an MLP. Each op has a kernel. The backward pass computes
    the gradients of all products, and the optimizer is SGD."""
    scores = (ROWS // LENGTH * HEADS, LENGTH, LENGTH)
    block: list[Call] = [
        ("aten::layer_norm", ((ROWS, WIDTH), (WIDTH,), (WIDTH,))),
        *[linear(ROWS, WIDTH, WIDTH)] * 3,
        ("aten::bmm", ((scores[0], LENGTH, 64), (scores[0], 64, LENGTH))),
        ("aten::_softmax", (scores,)),
        linear(ROWS, WIDTH, WIDTH),
        linear(ROWS, WIDTH, HIDDEN),
        ("aten::gelu", ((ROWS, HIDDEN),)),
        linear(ROWS, HIDDEN, WIDTH),
    ]
    backward: list[Call] = [
        part
        for op, shapes in reversed(block * BLOCKS)
        for part in (
            [("aten::mm", (shapes[1], shapes[2])), ("aten::mm", (shapes[1][::-1], (ROWS, shapes[2][1])))]
            if op == "aten::addmm"
            else [(f"{op}_backward", shapes)]
        )
    ]
    update: list[Call] = [("aten::add_", ((BLOCK,),))] * BLOCKS
    parts = [("forward", block * BLOCKS), ("backward", backward), ("optimizer", update)][: 3 if trains else 1]
    ops, phases, at, busy = [], [], 0, 0
    for phase, calls in parts:
        begun = at
        for name, shapes in calls:
            busy = max(at + 5, busy)
            ops.append(Op(name, at, 8, kernel=(busy, kernel_us), shapes=shapes))
            at, busy = at + 10, busy + kernel_us
        phases.append((phase, begun, at))
    return make_recording(phases, ops)  # The host runs ahead in this step.


def asked(trace: Trace, ranks: int, parallel: str, link_gbps: float = 0.0) -> Prediction:
    return predict(trace, Conditions(nproc=ranks, parallel=parallel, link_gbps=link_gbps))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "tp"])
def test_predicting_one_rank_returns_the_recorded_figures(parallel: str) -> None:
    trace = transformer()
    alone, plain = asked(trace, 1, parallel), predict(trace, Conditions())
    assert (alone.step, alone.busy, alone.phases, alone.parallel) == (plain.step, plain.busy, plain.phases, None)


def test_transformer_blocks_and_their_parameters_are_found_from_shapes() -> None:
    layers = layers_of(transformer())
    assert sum(layer.parameter_bytes for layer in layers) == 4 * BLOCKS * BLOCK
    assert len({layer.block for layer in layers}) == BLOCKS and len(layers) == 7 * BLOCKS


def test_layers_that_do_not_repeat_are_grouped_into_units_of_similar_size() -> None:
    calls = [linear(32, width, width) for width in (1024, 2048, 3072, 4096)]
    ops = [Op(name, 10 * i, 8, kernel=(10 * i + 5, 5), shapes=shapes) for i, (name, shapes) in enumerate(calls)]
    blocks = [layer.block for layer in layers_of(make_recording([("forward", 0, 100)], ops))]
    assert blocks == ["part 0", "part 0", "part 0", "part 1"]  # The layers have 4, 16, 36 and 64 MiB.


sizes_of_units = st.lists(st.integers(1, 1 << 28), min_size=1, max_size=6).map(
    lambda sizes: {ROOT: sizes[0] // 3} | {f"unit {i}": size for i, size in enumerate(sizes)}
)


@given(sizes_of_units, st.integers(1, 64))
def test_the_bytes_sent_by_each_rank_agree_with_the_formula(sizes: dict[str, int], ranks: int) -> None:
    """Each all-gather of parameters, and each reduce-scatter of gradients, moves (N-1)/N of the bytes.

    The parameters of the root are gathered once. The parameters of all other units are gathered twice.
    """
    whole, root = sum(sizes.values()), sizes[ROOT]
    wanted = (3 * whole - root) * (ranks - 1) / ranks
    padding = 3 * ranks * len(sizes)
    assert wanted - 1 <= moved_bytes(sizes, list(sizes), ranks, with_backward=True) <= wanted + padding
    forward = whole * (ranks - 1) / ranks
    assert forward - 1 <= moved_bytes(sizes, list(sizes), ranks, with_backward=False) <= forward + padding


@given(sizes_of_units, st.integers(1, 63), st.integers(0, 2))
def test_additional_ranks_never_increase_the_parameters_per_rank(sizes: dict[str, int], ranks: int, states: int) -> None:
    fewer, more = (rank_memory(sizes, count, states) for count in (ranks, ranks + 1))
    for kept in ("parameters", "gradients", "optimizer state"):
        assert more[kept] <= fewer[kept]
    assert rank_memory(sizes, 1, states)["parameters"] == sum(sizes.values())


@pytest.mark.parametrize("around", [0, 1])
def test_each_fsdp_unit_is_gathered_unless_it_is_a_root_without_parameters(around: int) -> None:
    """GIVEN three blocks of two matrix products THEN each block has an all-gather of its parameters. The root has an
    all-gather only if a product outside the blocks has parameters."""
    products = [(4, 8)] * around + [(2, 3), (3, 2)] * 3
    ops = [
        Op("aten::mm", 10 * at, 8, kernel=(10 * at + 5, 5), shapes=((8, depth), (depth, columns)))
        for at, (depth, columns) in enumerate(products)
    ]
    trace = make_recording([("forward", 0, 100)], ops)
    found = fully_sharded(trace, Conditions(nproc=4, parallel="fsdp"), 1e6, 0, None)
    costs = CollectiveCosts(trace.devices[0].name, 0.0)
    of_block, of_root = (float(costs.next(GATHER, 4 * count // 4, 4).duration_ns) for count in (12, 32))
    assert found.parts_ns["all-gather"] == 3 * of_block + around * of_root
    assert found.moved_bytes == (3 * 12 + around * 32) * 4 * 3 // 4 and found.parameter_bytes == 4 * (36 + around * 32)


parts_of_pass = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 10**7)), min_size=1, max_size=12)


@given(parts_of_pass, st.integers(0, 10**8), st.integers(0, 10**6))
def test_exposed_communication_is_never_negative_and_never_exceeds_all_communication(
    parts: list[tuple[str, int]], backward_ns: int, each_ns: int
) -> None:
    schedule = ShardedStep.of(parts, backward_ns, lambda unit: each_ns, lambda unit: each_ns / 2)
    assert -1 <= schedule.exposed_ns <= schedule.gather_ns + schedule.scatter_ns + 1
    free = ShardedStep.of(parts, backward_ns, lambda unit: 0.0, lambda unit: 0.0)
    assert free.exposed_ns == pytest.approx(0, abs=1)


def test_the_next_unit_is_gathered_during_the_computation_of_the_current_one() -> None:
    """GIVEN units that compute for longer than their all-gather THEN only the first all-gather and the last reduce-scatter of
    a pass add time."""
    parts = [("a", 10.0), ("b", 10.0), ("c", 10.0)]
    schedule = ShardedStep.of(parts, 60.0, lambda unit: 4.0 if unit else 0.0, lambda unit: 3.0 if unit else 0.0)
    assert schedule.gather_ns == 24 and schedule.scatter_ns == 9 and schedule.exposed_ns == pytest.approx(4 + 4 + 3)


def test_at_most_two_sharded_units_are_gathered_at_a_time() -> None:
    """GIVEN a first unit that computes for a long time THEN the third unit's all-gather starts only after this computation."""
    took = {"a": 1.0, "b": 1.0, "c": 50.0, "": 0.0}
    parts = [("a", 100.0), ("b", 10.0), ("c", 10.0)]
    assert ShardedStep.of(parts, 0.0, took.__getitem__, took.__getitem__).exposed_ns == pytest.approx(1 + 40)


def test_a_sharded_step_waits_for_gathers_and_scatters() -> None:
    """The root computes 5 ns at the start and at the end. Units a and b compute 10 ns each. Backward passes take twice as
    long.

    In the forward pass, the root is gathered until 2 ns, unit a until 22 ns, and unit b until 26 ns. Unit a computes until 32
    ns, unit b until 42 ns, and the root until 47 ns.

    In the backward pass, unit b is gathered until 4 ns, and unit a until 24 ns. Unit b computes until 30 ns, unit a until 50
    ns, and the root until 60 ns. The gradients of unit b are scattered until 36 ns, of unit a until 53 ns, and of the root
    until 61 ns.
    """
    gather, scatter = {ROOT: 2.0, "a": 20.0, "b": 4.0}, {ROOT: 1.0, "a": 3.0, "b": 6.0}
    parts = [(ROOT, 5.0), ("a", 10.0), ("b", 10.0), (ROOT, 5.0)]
    schedule = ShardedStep.of(parts, 60.0, gather.__getitem__, scatter.__getitem__)
    assert schedule == ShardedStep(gather_ns=2 + 24 + 24, scatter_ns=10, exposed_ns=47 - 30 + 61 - 60)
    assert ShardedStep.of(parts, 0.0, gather.__getitem__, scatter.__getitem__) == ShardedStep(26, 0, 17)
    assert ShardedStep.of([("a", 0.0)], 60.0, gather.__getitem__, scatter.__getitem__) == ShardedStep(22, 0, 22)


def test_memory_and_transferred_bytes_of_a_rank_are_counted_per_unit() -> None:
    """GIVEN a root of 10 bytes and units of 7, 5 and 9 bytes WHEN four ranks share them THEN the shards have 3, 2, 2 and 3
    bytes."""
    sizes = {ROOT: 10, "a": 7, "b": 5, "c": 9}
    assert rank_memory(sizes, 4, 2) == {
        "parameters": 10, "gradients": 10, "optimizer state": 20, "gathered": 10 + 9 + 7 + 9,
    }  # fmt: skip
    assert rank_memory(sizes, 4, None) == {"parameters": 10, "gathered": 26}
    assert rank_memory(sizes, 1, 1) == {"parameters": 31, "gradients": 31, "optimizer state": 31}
    assert rank_memory({"a": 8}, 2, None) == {"parameters": 4, "gathered": 8}
    # Each all-gather and each reduce-scatter moves 3/4 of the 8 or 16 bytes. Unit a is called twice.
    calls = [ROOT, "a", "a"]
    assert moved_bytes({ROOT: 8, "a": 16}, calls, 4, with_backward=True) == 2 * 6 + 2 * 3 * 12
    assert moved_bytes({ROOT: 8, "a": 16}, calls, 4, with_backward=False) == 6 + 2 * 12


def test_sharding_shortens_the_optimizer_and_adds_communication() -> None:
    trace = transformer()
    few, many = (asked(trace, ranks, "fsdp") for ranks in (2, 8))
    assert few.parallel is not None and many.parallel is not None
    assert many.phases["optimizer"].predicted_ns == pytest.approx(few.phases["optimizer"].predicted_ns / 4, rel=0.01)
    assert many.phases["forward"] == predict(trace, Conditions()).phases["forward"]
    assert many.parallel.rank_bytes["parameters"] == BLOCKS * BLOCK * 4 // 8
    assert many.parallel.moved_bytes == 3 * BLOCKS * BLOCK * 4 * 7 // 8
    slow = asked(trace, 8, "fsdp", link_gbps=1.0)
    assert slow.step.predicted_ns > many.step.predicted_ns + many.parallel.parts_ns["all-gather"]


def test_pairs_of_products_are_found_only_in_transformer_blocks() -> None:
    """Query, key and value are paired with the output. The up and gate products are paired with the down product. A head at
    the end of the network is not split."""
    attention, mlp = [Product(8, 4, 4)] * 3 + [None, Product(8, 4, 4)], [Product(8, 4, 16)] * 2 + [None, Product(8, 16, 4)]
    products = [*attention, *mlp, Product(8, 4, 100)]
    first, second = pairs_of(products, [i == 3 for i in range(len(products))])
    assert (first.columns, first.between, first.last) == ([0, 1, 2], [3], 4)
    assert (second.columns, second.between, second.last) == ([5, 6], [7], 8)
    assert pairs_of([Product(8, 4, 4)] * 5, [False] * 5) == []  # A network of equal layers has no pairs.


def test_a_product_that_does_not_fit_the_open_pair_ends_the_pair() -> None:
    """GIVEN an open pair that begins with up products of width 4 THEN a product of another width ends the pair and does not
    begin a new pair. If an attention op has no output product, the next up product begins a new pair."""
    up, other, down, attention = Product(8, 4, 16), Product(8, 16, 5), Product(8, 16, 4), None
    assert pairs_of([up, up, up, other, down], [False] * 5) == []
    (pair,) = pairs_of([up, attention, up, attention, Product(8, 4, 4)], [False, True, False, True, False])
    assert (pair.columns, pair.between, pair.last) == ([2], [3], 4)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["addmm", "linear", "mm"]), st.booleans())
def test_splitting_a_matrix_product_over_n_ranks_divides_its_work_by_n(ranks: int, op: str, by_columns: bool) -> None:
    weight = (HIDDEN, WIDTH) if op == "linear" else (WIDTH, HIDDEN)
    shapes = (*([(HIDDEN,)] if op == "addmm" else []), (ROWS, WIDTH), weight)
    part = Product.of(op, part_of(op, shapes, HIDDEN if by_columns else WIDTH, ranks))
    assert part is not None and prod((part.rows, part.depth, part.columns)) * ranks == ROWS * WIDTH * HIDDEN
    assert (part.columns * ranks == HIDDEN) == by_columns or ranks == 1


def test_tensor_parallel_ranks_compute_less_and_all_reduce_activations() -> None:
    trace = transformer()
    split = asked(trace, 4, "tp")
    assert split.parallel is not None
    # Each block all-reduces activations twice in the forward pass and twice in the backward pass. Each all-reduce moves 2
    # (N-1)/N of the bytes.
    assert split.parallel.moved_bytes == 4 * BLOCKS * ROWS * WIDTH * 4 * 2 * 3 // 4
    one = CollectiveCosts(trace.devices[0].name).next("all_reduce", ROWS * WIDTH * 4, 4).duration_ns
    assert split.parallel.parts_ns["all-reduce"] == 4 * BLOCKS * one
    products = split.kinds["matrix products"]
    assert products.predicted_ns < 0.5 * products.recorded_ns
    assert split.kinds["normalisation"].predicted_ns == split.kinds["normalisation"].recorded_ns
    weights = 4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN
    kept = (BLOCK - weights + weights / 4) * BLOCKS * 4
    assert split.parallel.rank_bytes["parameters"] == pytest.approx(kept, abs=4)
    assert split.step.predicted_ns == pytest.approx(split.busy.predicted_ns + 4 * BLOCKS * one, rel=0.05)


def test_without_training_no_gradients_are_stored_or_sent() -> None:
    trace = transformer(trains=False)
    for parallel in ("fsdp", "tp"):
        found = asked(trace, 2, parallel).parallel
        assert found is not None and not {"gradients", "optimizer state"} & found.rank_bytes.keys()
    assert found is not None and found.moved_bytes == 2 * BLOCKS * ROWS * WIDTH * 4


def test_predictions_that_the_recording_cannot_support_are_rejected_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "t.msgpack")
    save(training(), path)  # This network has only convolutions.
    bare = training()
    bare.host.shapes[:] = NONE
    save(bare, tmp_path / "bare.msgpack")
    save(transformer(), tmp_path / "blocks.msgpack")
    refused = [
        ((path, "--nproc", "2", "--parallel", "tp"), "no pairs of matrix products"),
        ((str(tmp_path / "bare.msgpack"), "--nproc", "2", "--parallel", "fsdp"), "no shapes of layers"),
        ((str(tmp_path / "blocks.msgpack"), "--nproc", "3", "--parallel", "tp"), "is not a multiple of 3"),
        ((str(tmp_path / "blocks.msgpack"), "--nproc", "32", "--parallel", "tp"), f"cannot share {HEADS} attention heads"),
        ((path, "--parallel", "fsdp"), "needs --nproc N"),
        ((path, "--nproc", "2", "--parallel", "pp"), "give one of ddp, fsdp, tp"),
    ]
    for words, text in refused:
        assert run(["predict", *words]) != 0
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "tp"])
def test_assumptions_are_reported_with_the_estimate(parallel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(transformer(), tmp_path / "t.msgpack")
    words = ["predict", str(tmp_path / "t.msgpack"), "--nproc", "2", "--parallel", parallel]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("ESTIMATE") and sum(line.startswith("Assumed: ") for line in text.splitlines()) == 1
    assert run([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["estimated"] is True and facts["parallel"]["assumed"] and facts["parallel"]["moved_bytes"] > 0


def test_a_sweep_over_ranks_prints_the_parallelism_and_the_memory_per_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(transformer(), tmp_path / "t.msgpack")
    words = ["predict", str(tmp_path / "t.msgpack"), "--sweep", "nproc", "--parallel", "fsdp", "--recorded-batch", "4"]
    assert run([*words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["predictions"]
    kept = [cell["parallel"]["rank_bytes"]["parameters"] for cell in cells[1:]]
    assert len(cells) == 4 and all(more < fewer for fewer, more in pairwise(kept))
    assert run(words) == 0 and "FullyShardedDataParallel" in capsys.readouterr().out


def test_optimizers_without_recorded_names_are_recognized_by_their_ops() -> None:
    trace = transformer()
    assert states_of(trace) == 0
    trace.strings.texts[int(trace.host.name[_row(trace, "aten::add_")])] = "aten::addcdiv_"
    assert states_of(trace) == 2


def _row(trace: Trace, op: str) -> int:
    return int(np.flatnonzero(trace.host.name == trace.strings.find(op))[0])


def test_a_single_step_lasts_until_its_last_kernel_ends() -> None:
    """GIVEN one step whose kernels take longer than its host WHEN the host is faster THEN the step is no shorter than its
    kernels."""
    prediction = predict(transformer(), Conditions(host_speed=8.0))
    assert prediction.step.predicted_ns >= prediction.busy.predicted_ns


def test_predictions_of_inference_exchange_no_gradients() -> None:
    trace = transformer(trains=False)
    with pytest.raises(TraceError, match="no gradients to sum"):
        asked(trace, 2, "ddp")
    several = predict(trace, Conditions(gpus=2, batch=4, recorded_batch=4)).parallel
    assert several is not None and several.parameter_bytes == 4 * BLOCKS * BLOCK and not several.parts_ns["gradients copied"]


def test_the_optimizer_with_the_most_states_determines_the_memory() -> None:
    steps = [Op(f"Optimizer.step#{name}.step", 10 * i, 8) for i, name in enumerate(("RMSprop", "Adam", "Lion"))]
    assert states_of(make_recording([("optimizer", 0, 30)], steps)) == 2
