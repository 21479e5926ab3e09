"""Compares the figures of `traces` with the reports in the repository of TraceLens (AMD) for the same recordings.

TraceLens is not on PyPI, where a different project has this name. The figures of TraceLens are therefore copied from these
files: AMD-AGI/TraceLens (MIT), tests/traces/h100/Qwen_Qwen1.5-0.5B-Chat__1016005_perf_report_csvs/ops_summary.csv at cbd5d26
and GEMM.csv at 932e742, tests/traces/mi300/resnet_act_checkpoint_recompute_perf_report_csvs/ops_summary.csv at 3e0812b.

In both tools, the time of an op is the sum of the kernels that the op itself launched. The bytes of an op are the bytes of its
inputs and its output. A multiply-add counts as 2 FLOPs. The tools differ in three ways. TraceLens also counts one FLOP for each
addition of a bias. TraceLens leaves out the time of ROCm's memsets. The rate of TraceLens is the mean rate of the calls, and
the rate of `traces` is the FLOPs of all calls divided by their time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from traces.kineto import read_kineto
from traces.model.trace import DeviceKind, Trace
from traces.rates.achieved_rates import OpRates, achieved

# The number of calls and the microseconds of each op.
_QWEN = {
    "mul": (220, 6752.89990234375), "mm": (96, 6668.681640625), "copy": (197, 5101.934814453125),
    "attention": (24, 2722.704345703125), "add": (145, 2607.51513671875), "addmm": (72, 2329.075927734375),
    "cat": (49, 2017.782958984375), "pow": (49, 1300.794921875), "silu": (24, 925.11474609375), "mean": (49, 743.327392578125),
    "neg": (48, 587.3271484375), "rsqrt": (49, 79.076416015625), "index_select": (1, 51.77587890625),
}  # fmt: skip
# TraceLens lists ops of the recomputed forward pass in separate rows. Here they are added to the other calls of the op.
_RESNET = {
    "convolution_backward": (60, 5312.84423828125), "batch_norm_backward": (60, 2951.205078125),
    "convolution": (117, 2515.88037109375 + 2228.34521484375), "batch_norm": (117, 2145.6875 + 1368.7841796875),
    "copy": (366, 1633.43310546875), "threshold_backward": (51, 239.38916015625), "mm": (6, 44.474609375),
}  # fmt: skip
# For each shape: the number of calls, GFLOP and MiB of one call, and the mean TFLOP/s of the calls.
_PRODUCTS = {
    ("mm", "8944,1024;1024,2816"): (48, 51.581550592, 71.0078125, 610.6657102342793),
    ("mm", "8944,2816;2816,1024"): (24, 51.581550592, 71.0078125, 674.5509897222395),
    ("mm", "8944,1024;1024,1024"): (24, 18.756927488, 36.9375, 578.5261168808248),
    ("addmm", "1024;8944,1024;1024,1024"): (72, 18.766086144 - 8944 * 1024 / 1e9, 36.939453125, 580.1844380894671),
}


@pytest.fixture(scope="module")
def qwen(shared_traces: Path) -> Trace:
    return read_kineto(shared_traces / "h100_qwen05b_inference.json.gz")


def _told(rows: list[OpRates]) -> dict[str, tuple[int, int]]:
    return {row.op: (row.calls, row.device_ns) for row in rows}


def test_the_gpu_time_of_each_op_agrees_with_tracelens(qwen: Trace, shared_traces: Path) -> None:
    ours = _told(achieved(qwen))
    resnet = read_kineto(shared_traces / "mi300x_resnet_act_checkpoint_rank0of8.json.gz")
    resnet.device = resnet.device.take(resnet.device.kind != DeviceKind.MEMSET)
    for found, theirs in ((ours, _QWEN), (_told(achieved(resnet)), _RESNET)):
        for op, (calls, time_us) in theirs.items():
            # TraceLens adds up microseconds as 32-bit floats.
            assert found[op][0] == calls and found[op][1] == pytest.approx(1000 * time_us, rel=1e-4), op


def test_flops_of_matrix_products_agree_with_tracelens(qwen: Trace) -> None:
    rows = {(row.op, row.shapes): row for row in achieved(qwen, by_shape=True)}
    for key, (calls, gflop, size_mib, tflops) in _PRODUCTS.items():
        row = rows[key]
        assert row.calls == calls and row.flops is not None and row.bytes is not None
        assert row.flops == pytest.approx(gflop * 1e9 * calls, rel=1e-9)
        assert row.bytes == size_mib * 2**20 * calls
        assert row.tflops == pytest.approx(tflops, rel=1e-3)
