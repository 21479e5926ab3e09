# mypy: allow-untyped-calls
"""Tests PyTorch's nn.DataParallel on several virtual devices, with a clock that stands still.

Each test runs in a fork of an interpreter that has imported torch (warm.py).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from replayer import state
from replayer.cost_model.constants import KERNEL_FLOOR_NS
from replayer.gpu.launches import turn_order
from replayer.gpu.virtual_gpu import VirtualGpu
from tests.replayer.published_stages import PUBLISHED_MS, stages_ns
from tests.replayer.recordings import US, FakeClock, Log, Op, make_recording
from traces.format.trace_file import load
from traces.library import find
from traces.model.trace import DeviceKind, Origin, Strings, Trace, TraceError
from traces.script.configuration import ReplayConfig

MS = 1_000 * US
HIDDEN = 1024
STEPS = 3


class StandingClock(FakeClock):
    """Stands in for the recorded clock. The speed of this machine does not advance this clock."""

    flows = False


def _use(trace: Trace, clock: FakeClock | None = None, **options: Any) -> tuple[VirtualGpu, Any]:
    log: Any = Log()
    log.strings = Strings(list(trace.strings.texts))
    gpu = VirtualGpu(trace, 0, clock or FakeClock(), log, config=ReplayConfig(**options))
    state.start(lambda: gpu)
    return gpu, log


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 8)).cuda()


def _train(model: nn.Module, steps: int, rows: int = 32, *, amp: bool = False) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    data = TensorDataset(torch.randn(rows * steps, 64), torch.zeros(rows * steps, dtype=torch.long))
    for x, y in DataLoader(data, batch_size=rows):
        y = y.cuda()
        with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)
        assert output.shape == (rows, 8) and output.get_device() == 0
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("amp", [False, True])
def test_unmodified_data_parallel_reproduces_the_published_stage_times(amp: bool) -> None:
    """GIVEN the recording of two P100 WHEN nn.DataParallel trains THEN each stage takes its published time."""
    trace = load(find("p100x2-no-cudnn"))
    trace.workload = None  # a small network is used here instead of the recorded one
    _, log = _use(trace)
    _train(nn.DataParallel(_net()), 3, amp=amp)
    assert len(log.steps) == 3 and log.phases
    parts_ms = {part: tuple(ns / MS for ns in times) for part, times in stages_ns(log, 2).items()}
    # "h2d" is the copy of the labels.
    assert parts_ms == {key: pytest.approx(times, abs=0.05) for key, times in PUBLISHED_MS.items()}
    last: Counter[str] = Counter()
    for name, start, end, _, _ in log.phases:
        last[name] += end - start if start >= log.steps[2][0] else 0
    assert {name: last[name] / MS for name in ("forward", "loss", "backward", "optimizer")} == {
        "forward": 268.7,
        "loss": 0.5,
        "backward": 501.0,
        "optimizer": 5.5,
    }


def test_replicas_use_the_same_timeline_rows_in_every_step() -> None:
    gpu, log = _use(load(find("p100x2-no-cudnn")))
    _train(nn.DataParallel(_net()), 4)
    rows = {(name, device): thread for _, name, thread, _, _, device, *_ in log.parts}
    names = {key: gpu.current.threads[row].name for key, row in rows.items()}
    assert names["parallel_apply", 0] == "replica 0" and names["parallel_apply", 1] == "replica 1"
    assert {name for key, name in names.items() if key[0] != "parallel_apply"} == {"MainThread"}
    assert len(gpu.current.threads) <= 5  # the four steps have started eight threads


def test_the_first_device_has_the_larger_share_of_memory() -> None:
    """GIVEN two replicas WHEN a step runs THEN both devices have weights and gradients. After the step, only the first device
    keeps them."""
    _use(load(find("p100x2-no-cudnn")))
    net = _net()
    weights_bytes = sum(-(-p.numel() * 4 // 512) * 512 for p in net.parameters())
    before = [torch.cuda.memory_allocated(i) for i in (0, 1)]
    assert before == [weights_bytes, 0]
    _train(nn.DataParallel(net), 2)
    after = [torch.cuda.memory_allocated(i) for i in (0, 1)]
    assert after == [2 * weights_bytes, 0]  # the first device has weights and gradients, but no optimizer state
    peaks = [torch.cuda.max_memory_allocated(i) for i in (0, 1)]
    assert peaks[0] > peaks[1] > weights_bytes
    assert {parameter.grad.device for parameter in net.parameters() if parameter.grad is not None} == {torch.device("cuda", 0)}


def test_evaluation_without_gradients_has_only_the_forward_stages() -> None:
    _, log = _use(load(find("p100x2-no-cudnn")))
    model = nn.DataParallel(_net()).eval()
    with torch.no_grad():
        for (x,) in DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=32):
            assert model(x).get_device() == 0
    state.gpu().steps.stop()
    names = Counter(row[1] for row in log.parts)
    assert names == {"scatter": 2, "replicate": 2, "parallel_apply": 4, "gather": 2}


class _Replica(nn.Module):
    """Runs two ops. If `waits` is true, the ops wait until the other replica has launched both of its ops."""

    def __init__(self, other_done: threading.Event, waits: bool) -> None:
        super().__init__()
        self.other_done, self.waits = other_done, waits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.waits:
            assert self.other_done.wait(10)
        y = torch.exp(torch.relu(x))
        self.other_done.set()
        return y


@pytest.mark.parametrize("waiting", [0, 1])
def test_on_the_recorded_clock_the_launches_of_replicas_alternate(waiting: int) -> None:
    """GIVEN two replicas on one device WHEN one replica launches all of its ops first THEN the launches of both replicas still
    alternate."""
    gpu, log = _use(load(find("p100x2-no-cudnn")), StandingClock())
    x, done = torch.randn(4, 64).cuda(), threading.Event()
    gpu.launches.flush()
    before = len(log.host)
    replicas = [_Replica(done, number == waiting) for number in range(2)]
    nn.parallel.parallel_apply(replicas, [(x,), (x,)])
    rows = [(gpu.current.threads[row[0]].name, log.strings[row[2]]) for row in log.host[before:]]
    assert rows == [(f"replica {number}", op) for op in ("aten::relu", "aten::exp") for number in (0, 1)], rows


def test_threads_take_turns_in_proportion_to_their_launches() -> None:
    assert turn_order([1, 1, 0, 0, 0]) == [2, 0, 3, 1, 4]


def test_data_parallel_works_with_shared_or_single_devices() -> None:
    _, log = _use(load(find("p100x2-no-cudnn")))
    _train(nn.DataParallel(_net(), device_ids=[0, 0]), 2)
    assert Counter(row[1] for row in log.parts)["parallel_apply"] == 4
    _train(nn.DataParallel(_net(), device_ids=[1]), 0)
    alone = nn.DataParallel(_net(), device_ids=[1])
    assert alone(torch.randn(4, 64)).get_device() == 1


def test_wrong_devices_and_failed_replicas_raise_the_usual_errors() -> None:
    _use(load(find("p100x2-no-cudnn")))
    with pytest.raises(RuntimeError, match=r"parameters and buffers on device cuda:1 \(device_ids\[0\]\) but found one"):
        nn.DataParallel(_net(), device_ids=[1, 0])(torch.randn(4, 64))

    class Failing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.get_device() == 1:
                raise ValueError("in a replica")
            return super().forward(x)

    model = nn.DataParallel(Failing(64, 8).cuda())
    with pytest.raises(ValueError, match="Caught ValueError in replica 1 on device 1"):
        model(torch.randn(4, 64))
    assert not [thread for thread in threading.enumerate() if "worker" in thread.name]


# --- predicted from one recorded GPU


def _one_gpu(rows: int) -> Trace:
    """Return a recording of `_net` on one GPU. All kernel times depend on the batch size, except those of the optimizer."""
    each = rows * 100  # in microseconds
    forward = [
        Op("aten::addmm", 1_100, 50, kernel=(1_200, each), shapes=((HIDDEN,), (rows, 64), (64, HIDDEN))),
        Op("aten::relu", 1_200, 50, kernel=(1_300 + each, each), shapes=((rows, HIDDEN),)),
        Op("aten::addmm", 1_300, 50, kernel=(1_400 + 2 * each, each), shapes=((8,), (rows, HIDDEN), (HIDDEN, 8))),
    ]
    at = 2_000
    backward = [
        Op("aten::mm", at, 50, kernel=(at + 3 * each, each), shapes=((8, rows), (rows, HIDDEN))),
        Op("aten::mm", at + 100, 50, kernel=(at + 4 * each, each), shapes=((rows, 8), (8, HIDDEN))),
        Op("aten::threshold_backward", at + 200, 50, kernel=(at + 5 * each, each), shapes=((rows, HIDDEN), (rows, HIDDEN))),
        Op("aten::mm", at + 300, 50, kernel=(at + 6 * each, each), shapes=((HIDDEN, rows), (rows, 64))),
    ]
    optimizer = [Op("aten::_foreach_mul_", 3_100, 50, kernel=(at + 8 * each, 700), shapes=((HIDDEN, 64),))]
    phases = [("loader", 0, 1_000), ("forward", 1_000, 2_000), ("backward", 2_000, 3_000), ("optimizer", 3_000, 4_000)]
    return make_recording(phases, [*forward, *backward, *optimizer], steps=2, period_us=20 * each)


def _work(log: Any, kind: DeviceKind, device: int) -> list[tuple[str, dict[str, int]]]:
    """Return the names and rows of one kind of work on a device, in the order of launches."""
    return [(log.strings[r["name"]], r) for r in log.device if (r["kind"], r["device"]) == (kind, device)]


def _computed(log: Any, device: int) -> list[dict[str, int]]:
    """Return the kernels of the forward and the backward pass whose times come from recorded kernels."""
    kernels = _work(log, DeviceKind.KERNEL, device)
    return [row for name, row in kernels if name.startswith("kernel of") and "_foreach" not in name]


def test_the_kernels_of_one_gpu_predict_two_gpus() -> None:
    """GIVEN a recording of one GPU WHEN its batch is split over two GPUs THEN each GPU computes half as long. The time of a
    copy depends on its bytes."""
    _, log = _use(_one_gpu(64), gpus=2, link_gbps=10)
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_name(1) == torch.cuda.get_device_name(0) == "Tesla P100-PCIE-16GB"
    assert torch.cuda.mem_get_info(1)[1] == torch.cuda.mem_get_info(0)[1]
    _train(nn.DataParallel(_net()), STEPS, rows=64)
    for device in (0, 1):
        computed = _computed(log, device)
        assert len(computed) == STEPS * 7
        assert [row["duration_ns"] / US for row in computed] == [pytest.approx(6_400 / 2, rel=0.1)] * len(computed)
        assert {row["origin"] for row in computed} == {Origin.SCALED}
    optimizer = [[name for name, _ in _work(log, DeviceKind.KERNEL, device) if "_foreach" in name] for device in (0, 1)]
    assert optimizer[0] and not optimizer[1]  # only the first device runs the optimizer
    weights_bytes, output_bytes = (64 * HIDDEN + HIDDEN + HIDDEN * 8 + 8) * 4, 32 * 8 * 4
    for device, sizes in enumerate(
        [
            [weights_bytes, output_bytes],  # weights are broadcast, and gradients of the output are scattered
            [output_bytes, weights_bytes],  # outputs are gathered, and gradients of the weights are added up
        ]
    ):
        copies = [row for name, row in _work(log, DeviceKind.MEMCPY, device) if name.startswith("Memcpy PtoP")]
        assert [(row["bytes"], row["duration_ns"]) for row in copies] == [(n, n // 10 + KERNEL_FLOOR_NS) for n in sizes] * STEPS
        assert {row["origin"] for row in copies} == {Origin.ROOFLINE}  # copy times are marked as estimates
        scattered = [row["bytes"] for name, row in _work(log, DeviceKind.MEMCPY, device) if "HtoD" in name]
        assert scattered.count(32 * 64 * 4) == STEPS


def test_two_devices_overlap_and_nearly_halve_the_step_time() -> None:
    _, log = _use(_one_gpu(64), gpus=2, link_gbps=10)
    _train(nn.DataParallel(_net()), STEPS, rows=64)
    spans = []
    for device in (0, 1):
        rows = _computed(log, device)[-7:]  # these are the rows of the last step
        spans.append((rows[0]["start_ns"], rows[-1]["start_ns"] + rows[-1]["duration_ns"]))
    (begin, end), (other_begin, other_end) = spans
    assert min(end, other_end) - max(begin, other_begin) > 0.9 * (end - begin)
    _, log_of_one = _use(_one_gpu(64))
    _train(_OnDevice(_net()), STEPS, rows=64)
    rows = _computed(log_of_one, 0)[-7:]
    assert 0.5 < (end - begin) / (rows[-1]["start_ns"] + rows[-1]["duration_ns"] - rows[0]["start_ns"]) < 0.7


def test_copies_between_gpus_use_the_default_link_of_the_device() -> None:
    _, log = _use(_one_gpu(64), gpus=2)
    torch.zeros(1 << 20, device="cuda").to("cuda:1")
    [copy] = [row for name, row in _work(log, DeviceKind.MEMCPY, 0) if "PtoP" in name]
    assert copy["duration_ns"] == int((4 << 20) / 12.6) + KERNEL_FLOOR_NS  # the default link is PCI Express 3


def test_replay_on_more_gpus_than_recorded_needs_recorded_kernels() -> None:
    _use(load(find("p100x2-no-cudnn")), gpus=1)
    assert torch.cuda.device_count() == 1
    with pytest.raises(TraceError, match=r"--gpus 3 needs .* but this recording has 2 GPUs"):
        _use(load(find("p100x2-no-cudnn")), gpus=3)
    with pytest.raises(TraceError, match=r"--gpus 2 needs .* this recording has phases only"):
        _use(load(find("p100-no-cudnn")), gpus=2)


class _OnDevice(nn.Module):
    """A model that takes its batch to the GPU itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x.cuda())
