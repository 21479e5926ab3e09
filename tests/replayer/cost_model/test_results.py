"""Tests that the estimates for many ops, copies and collectives on several GPUs equal readable golden files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from replayer.cost_model.all_reduce_curve import AllReduceCurve, wire_share
from replayer.cost_model.collective_costs import CollectiveCosts, gloo_ns, kernel_label, ring_steps, wire_bytes
from replayer.cost_model.copy_costs import CopyCosts, directions_of
from replayer.cost_model.device_speed import data_sheet_speed
from replayer.cost_model.op_costs import OpCosts
from replayer.cost_model.op_work import op_work
from tests.goldens import assert_golden, in_short
from tests.traces.rates.test_results import OPS, SHAPES
from traces.kineto import read_kineto
from traces.model.trace import Trace
from traces.names.cards import card_of

GOLDEN = Path(__file__).with_name("golden")
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce", "send", "recv", "all_to_all", "barrier")
RECORDINGS = "v100_resnet50_workers0.json a100_switch_transformer a100_benchmark_memcpy a100_nccl_args"
SIZES = (0, 4, 1 << 16, 25 << 20)


def test_work_and_times_of_ops_equal_the_golden_file() -> None:
    costs = [OpCosts(card_of(name)) for name in ("Tesla V100-PCIE-32GB", "NVIDIA A100-SXM4-40GB", "Tesla T4")]
    lines = []
    for op in OPS.split():
        lines.append(op)
        for words, shapes in SHAPES.items():
            work = [(of.kind, of.flops, of.sizes) for of in op_work(op, shapes)]
            times = [costs[at].estimate(op, shapes, dtype) for at, dtype in enumerate(("float32", "float16", "bfloat16"))]
            # The last digits of a float differ between CPUs.
            rounded = [(float(format(of.ns, ".8g")), of.origin.name) for of in times]
            lines.append(f"  {words}: {work} {rounded}")
    assert_golden(GOLDEN / "ops.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("card", ["Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 3090"])
def test_estimated_durations_of_collectives_equal_the_golden_files(card: str) -> None:
    lines = []
    for ranks in (2, 3, 8):
        curve = AllReduceCurve.of(card, ranks)
        lines.append(f"{ranks} ranks: share {wire_share(ranks):.6f}, {[round(curve.duration_ns(size)) for size in SIZES]}")
        for name in OPERATIONS:
            transfers = [CollectiveCosts(card).next(name, size, ranks) for size in SIZES]
            slow = [CollectiveCosts(card, 10.0).next(name, size, ranks).duration_ns for size in SIZES]
            gloo = [gloo_ns(name, size, ranks) for size in SIZES]
            moved = [round(wire_bytes(name, size, ranks)) for size in SIZES]
            times = [(of.duration_ns, of.origin.name) for of in transfers]
            lines.append(f"  {name} ({kernel_label(name)}), {ring_steps(name, ranks)} steps: {moved} {times} {slow} {gloo}")
    assert_golden(GOLDEN / f"collectives_{card.split()[1].lower()}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", RECORDINGS.split())
def test_copy_and_collective_costs_of_recordings_equal_the_golden_files(name: str, shared_traces: Path) -> None:
    trace: Trace = read_kineto(next(shared_traces.glob(f"{name}*")))
    speed = data_sheet_speed(trace.devices[0].name)
    costs, collectives = CopyCosts.of(trace, speed), CollectiveCosts.of(trace)
    found: dict[str, Any] = {"speed": speed, "directions": directions_of(trace)}
    found["reads"] = [costs.read(size) for size in SIZES[1:]]
    for kind in ("h2d", "d2h", "d2d", "p2p"):
        for pinned in (True, False):
            found[f"{kind}, {'pinned' if pinned else 'pageable'}"] = [costs.copy(kind, pinned, size) for size in SIZES[1:]]
    for operation in OPERATIONS:
        found[operation] = [collectives.next(operation, size, 2) for size in SIZES]
    assert_golden(GOLDEN / f"{name.partition('.')[0]}.txt", in_short(found))
