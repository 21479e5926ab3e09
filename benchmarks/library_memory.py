"""Compares memory use with published measurements: memory peaks of 36 networks on six GPUs, and the first batch size that does
not fit.

    python benchmarks/library_memory.py [--all] [--networks resnet50,vgg16] [--json figures.json]

Needs torchvision. For each network, the virtual GPU runs `benchmarks/programs/torchvision_memory.py` at two batch sizes. From
these two runs, the allocator then executes the memory requests for any batch size on any GPU (memory/rerun_requests.py). The
runs are repeated for each PyTorch release in the published measurements, because autograd stores other tensors since PyTorch
1.11. Since PyTorch 1.11, for example, MobileNetV2 needs 1.4 times as much memory.

A published peak is the largest value of `memory_allocated` in the hooks of all modules. The published limits were measured
without hooks, by a process that increased the batch size by one until memory ran out. The limit is the first batch size that
does not fit. A larger batch size may fit again.

The benchmark prints two errors of predicted limits. The limits of the allocator alone are predictions without measurements of
the GPU. If the memory requests show that a script's program was measured, `trace fit` prints the measured limits
(traces/library/limits.py).

Note [What the kernels take]
    Until CUDA 11.7, a context contained all kernels of PyTorch and cuDNN. For each limit, one amount of kernel memory explains
    the limit best. For each compute capability, the median of these amounts over all networks, including the VGGs, is used. The
    benchmark prints these medians. It also prints the medians over every second network, and the errors of the other networks'
    limits with these medians. One amount was measured: the M40 had 10 753 MiB left (according to its log), so its kernels took
    590 MiB. The median is 630 MiB.

Note [What was there before]
    The log of the M40 has the messages of 24 failures (GPEmu, profiler/compute/profile.log at 4d83544). For the eight VGGs, our
    allocated memory agrees within 0.02 GiB, but more memory was reserved. There are two reasons. First, gradients and optimizer
    states were allocated at batch 1. These blocks are located between cached blocks, whose segments therefore cannot be
    released. In this benchmark, each network therefore also runs its first steps at batch 1. Second, some of these segments are
    cuDNN's workspaces (replayer/memory/winograd_workspaces.py). The sizes of the workspaces come from another recording, and
    nothing is fitted to the VGGs.

Note [Limits that stay far]
    For each limit with a large error, the benchmark prints other published values of the network.

    The result of VGG-13 on the RTX 6000 contradicts the results of similar networks. VGG-13 failed at batch 238 in the run with
    growing batches. VGG-16 and VGG-19 begin with the same layers and need more memory, but they reached 256. In a run of its
    own, VGG-13 fitted at batch 256. The steps of VGG-13 did not slow down before the failure. The steps of all other VGGs
    without batch norm slow down when the allocator begins to return its cache.

    On the P100, VGG-11 was run separately. It fitted at batch 224 and not at 240, which does not contradict the results of
    similar networks. VGG-11 has blocks of 2.7 GiB, and the limit depends on which of them is split first. On the M40, the
    log shows what was requested and cached, and our blocks are split differently. VGG-11 failed at 170 when it requested
    1.02 GiB, with 1 011.88 MiB free and 2.35 GiB reserved in pieces. VGG-13 failed at 126 when it requested 772 MiB, with
    607.88 MiB free and 1.95 GiB in pieces. The other six VGGs failed when they requested 392 MiB for a gradient of the
    classifier, with 0.28 to 0.45 GiB in pieces. Our limits of these six are within 3 %.

    For the wide ResNets, the log shows 0.18 and 0.31 GiB in pieces, but our simulation has more. The algorithms that cuDNN
    chose on each card are unknown. Replays use the measured limit of a cell.

By default, the benchmark compares the smallest and every sixteenth batch size. With --all, the benchmark compares every
measured batch size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from replayer.memory.capacity import Capacity  # noqa: E402
from replayer.memory.device.request_log import RankRequests, RequestKind, RequestLog  # noqa: E402
from replayer.memory.device.settings import parse_settings  # noqa: E402
from replayer.memory.rerun_requests import ScaledRequests, largest_batch, run_requests  # noqa: E402
from traces.format.trace_file import save  # noqa: E402
from traces.library import catalogue  # noqa: E402
from traces.library.cells import LibraryCell  # noqa: E402
from traces.library.limits import MeasuredLimit  # noqa: E402
from traces.model.machine import Machine  # noqa: E402
from traces.model.trace import Device, StepKind, Steps, Trace  # noqa: E402
from traces.names.cards import Card, card_of  # noqa: E402
from traces.script.configuration import ReplayConfig, ReplaySession  # noqa: E402
from traces.script.launch import run_child  # noqa: E402

PROGRAM = ROOT / "benchmarks" / "programs" / "torchvision_memory.py"
BATCHES = (16, 32)  # batch sizes of the two runs of each network
SMALLEST, EVERY = (1, 2, 4, 8), 16
ROOM = Capacity(1 << 50, 0, "")
PLAIN = parse_settings("")
NEAR = 0.03
KERNELS_MIB = {3: 420, 5: 630, 6: 730, 7: 1150, 8: 1670}  # by major compute capability, see Note [What the kernels take]
STEP_BYTES = 8 << 20  # resolution in bytes


def requests_of(networks: Sequence[str], release: str) -> dict[str, ScaledRequests]:
    """Return each network's memory requests as a function of the batch size.

    Autograd keeps the tensors that the given PyTorch release keeps.
    """
    cells = [f"{network}:1,{batch}" for network in networks for batch in BATCHES]
    with tempfile.TemporaryDirectory() as folder:
        device = Device(rank=0, index=0, name="Tesla V100-PCIE-32GB", total_memory_bytes=ROOM.capacity_bytes)
        step = Steps.of(number=[0], kind=[StepKind.STEADY], rank=[0], start_ns=[0], duration_ns=[1])
        trace = Trace(grain="kernel", devices=[device], steps=step, machines={0: Machine(torch=release)})
        save(trace, Path(folder) / "card.msgpack")
        config = ReplayConfig(loader="recorded", clock="recorded", steps=len(cells) * 1000)
        session = ReplaySession(Path(folder) / "card.msgpack", Path(folder), os.getpid(), config=config)
        result = run_child({"replayer": session}, [str(PROGRAM), *cells], stdout=sys.stderr.fileno())
        if result.returncode:
            raise SystemExit(result.returncode)
        [requests] = RankRequests.read_all(Path(folder))
        logs = split(requests.devices[0])
    scaled = {}
    for network, small, large in zip(networks, logs[::2], logs[1::2], strict=True):
        found = ScaledRequests.of(small, BATCHES[0], large, BATCHES[1])
        if found is None:
            raise SystemExit(f"{network}: its requests come in another order at batch {BATCHES[1]}")
        scaled[network] = found
    return scaled


def split(log: RequestLog) -> list[RequestLog]:
    """Return the requests of each cell. The program empties the cache after each batch size, and after deleting the network."""
    cells, entries, before, made, emptied = [], [], 0, 0, 0
    for entry in log.entries:
        made += entry.kind in (RequestKind.REQUEST, RequestKind.OPTIONAL)
        entries.append(entry._replace(value=entry.value - before) if entry.kind == RequestKind.FREE else entry)
        emptied += entry.kind == RequestKind.EMPTY_CACHE
        if emptied == 3:
            cells.append(RequestLog(entries))
            entries, before, emptied = [], made, 0
    return cells


def compare(every: bool, work: tuple[str, ScaledRequests, list[LibraryCell]]) -> dict[str, list[dict[str, Any]]]:
    """Return the errors of one network's memory peaks, and the first batch size that does not fit on each GPU. All GPUs use the
    same release."""
    network, scaled, cells = work
    measured: dict[int, list[tuple[str, int]]] = {}
    for cell in cells:
        for batch, peak in zip(cell.memory_batches.tolist(), cell.peak_bytes.tolist(), strict=True):
            if every or batch in SMALLEST or batch % EVERY == 0:
                measured.setdefault(batch, []).append((cell.gpu.name, peak))
    peaks = []
    for batch, of_cards in measured.items():
        ours = run_requests(scaled.for_batch(batch), ROOM, PLAIN, has_optional=False).seen_bytes
        peaks += [{"gpu": gpu, "network": network, "batch": batch, "ours": ours, "published": peak} for gpu, peak in of_cards]
    full = []
    for cell in cells:
        published, card = cell.out_of_memory_batch, card_of(cell.gpu.device)
        if published is not None:
            row = {"gpu": cell.gpu.name, "network": network, "published": published, "major": card.architecture.capability[0]}
            outside = card.context_bytes + (KERNELS_MIB[card.architecture.capability[0]] << 20)
            ours = full_at(partial(fits, scaled, card, outside), published)
            row |= {"ours": ours, "answered": answered(cell, scaled, ours)}
            row["hooks"] = int(cell.memory_batches[-1])  # largest batch size that fitted in the runs with hooks
            full.append(row | {"explained_bytes": explained(scaled, card, published) - card.context_bytes})
    return {"peaks": peaks, "full": full}


def answered(cell: LibraryCell, scaled: ScaledRequests, ours: int) -> int:
    """Return the first batch size that does not fit according to `trace fit`, for a GPU on which the network was measured."""
    limit = MeasuredLimit.of(cell)
    peak_bytes = run_requests(scaled.for_batch(limit.fitted), ROOM, PLAIN, has_optional=False).peak_bytes
    largest = limit.largest(ours - 1) if limit.is_of(limit.fitted, peak_bytes) else ours - 1
    assert largest is not None
    return largest + 1


def judge(kernels_mib: dict[tuple[int, int], int], work: tuple[str, ScaledRequests, list[LibraryCell]]) -> list[dict[str, Any]]:
    """Return the limits of one network, using the kernel memory that was fitted on the other half of the networks."""
    network, scaled, cells = work
    full = []
    for cell in cells:
        published, card = cell.out_of_memory_batch, card_of(cell.gpu.device)
        other = 1 - half_of(network)
        if published is not None and (other, card.architecture.capability[0]) in kernels_mib:
            outside = card.context_bytes + (kernels_mib[other, card.architecture.capability[0]] << 20)
            ours = full_at(partial(fits, scaled, card, outside), published)
            full.append({"gpu": cell.gpu.name, "network": network, "ours": ours, "published": published})
    return full


def half_of(network: str) -> int:
    """Divide the networks into halves: every second network in the order of names belongs to half 1."""
    return catalogue.models("v100").index(network) % 2


def kernels_of(full: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Return the memory of loaded kernels in MiB by compute capability: the median of all values that explain a measured
    limit."""
    by_major: dict[int, list[int]] = {}
    for row in full:
        by_major.setdefault(row["major"], []).append(row["explained_bytes"])
    return {major: round(statistics.median(found) / (10 << 20)) * 10 for major, found in sorted(by_major.items())}


def full_at(fits: Callable[[int], bool], near: int) -> int:
    """Return the first batch size that does not fit, when the batch size grows by one. A larger batch may fit again."""
    largest = largest_batch(fits, near)
    return next((batch for batch in range(int(0.85 * largest), largest + 1) if not fits(batch)), largest + 1)


def explained(scaled: ScaledRequests, card: Card, full: int) -> int:
    """Return how much memory outside of PyTorch explains that this batch size is the first that does not fit, in bytes."""
    ends = []
    for batch in (full - 1, full):
        low, high = 0, card.memory_bytes
        while high - low > STEP_BYTES:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(scaled, card, middle, batch) else (low, middle)
        ends.append(low)
    return sum(ends) // 2


def fits(scaled: ScaledRequests, card: Card, outside_bytes: int, batch: int) -> bool:
    capacity = Capacity(card.memory_bytes, outside_bytes, "")
    return run_requests(scaled.for_batch(batch), capacity, PLAIN, has_optional=card.uses_winograd).fits


def errors(rows: Sequence[dict[str, Any]]) -> list[float]:
    return sorted(abs(row["ours"] / row["published"] - 1) for row in rows)


def quantile(ordered: Sequence[float], share: float) -> str:
    return f"{100 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]:8.2f} %" if ordered else f"{'-':>10}"


def show(peaks: Sequence[dict[str, Any]], full: Sequence[dict[str, Any]]) -> None:
    heads = f"{'peaks':>7}{'median':>10}{'90 %':>10}{'most':>10}   {'full':>5}{'within 3 %':>12}{'median':>10}{'most':>10}"
    print(f"{'card':10}{heads}")
    names = sorted({row["gpu"] for row in peaks})
    for name in [*names, "all"]:
        of_peaks = errors([row for row in peaks if name in (row["gpu"], "all")])
        of_full = errors([row for row in full if name in (row["gpu"], "all")])
        near = sum(error <= NEAR for error in of_full)
        print(
            f"{name:10}{len(of_peaks):7}{quantile(of_peaks, 0.5)}{quantile(of_peaks, 0.9)}{quantile(of_peaks, 1)}"
            f"   {len(of_full):5}{near:12}{quantile(of_full, 0.5)}{quantile(of_full, 1)}"
        )
    right = sum(row["answered"] == row["published"] for row in full)
    print(f"\ntrace fit finds the published largest batch of measured networks: {right} of {len(full)}")
    print("the table above shows limits of the allocator alone, as for cards without measurements; wrong by more than 3 %:")
    far = [row for row in full if abs(row["ours"] / row["published"] - 1) > NEAR]
    for row in sorted(far, key=lambda row: -abs(row["ours"] / row["published"] - 1)):
        print(f"{row['gpu']}/{row['network']}: largest batch {row['ours']}, published {row['published']}; {beside(row)}")


def beside(row: dict[str, Any]) -> str:
    """Describe other published values near a limit: memory of the runs, larger networks on the GPU, and step times below the
    limit."""
    cell, batch = catalogue.cell(row["gpu"], row["network"]), row["published"]
    needed = peak_at(cell, batch)
    others = [catalogue.cell(row["gpu"], name) for name in catalogue.models(row["gpu"])]
    larger = [of.model for of in others if of.last_batch >= batch and peak_at(of, batch) > needed]
    per_image = sum(of for name, of in cell.phases_ns.items() if name not in ("h2d", "forward")) / cell.batches
    before = per_image[int(0.7 * len(per_image)) : int(0.8 * len(per_image))]
    slower = statistics.median(per_image[-5:].tolist()) / statistics.median(before.tolist()) - 1
    told = [f"with hooks and cudnn.benchmark, batch {row['hooks']} fitted", f"last batch sizes {100 * slower:+.0f} % per image"]
    return "; ".join([*told, *([f"{' and '.join(larger)} need more memory at this batch size, but fitted"] if larger else [])])


def peak_at(cell: LibraryCell, batch: int) -> float:
    """Return the memory peak at a batch size, scaled from the nearest published batch size."""
    at = int(np.abs(cell.memory_batches - batch).argmin())
    return float(cell.peak_bytes[at]) * batch / int(cell.memory_batches[at])


def show_folds(full: Sequence[dict[str, Any]], folded: Sequence[dict[str, Any]], fitted: dict[int, dict[int, int]]) -> None:
    """Compare the limits with two fits of the kernel memory: on all networks, and only on other networks."""
    print(f"\nMiB of loaded kernels by compute capability: {kernels_of(full)}, fitted to all networks;")
    print(f"{fitted[0]}, fitted to every second network; {fitted[1]}, fitted to the others")
    for text, rows in (("fitted to all networks", full), ("fitted to the other half", folded)):
        of = errors(rows)
        near = sum(error <= NEAR for error in of)
        print(f"limits, {text:30}{len(of):5}, within 3 %{near:5}, median{quantile(of, 0.5)}, largest{quantile(of, 1)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compare all measured batch sizes")
    parser.add_argument("--networks", default="", help="only these networks, separated by commas")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    gpus = [gpu.name for gpu in catalogue.gpus() if (catalogue.BUNDLED / f"{gpu.name}.cells").exists()]
    networks = args.networks.split(",") if args.networks else catalogue.models(gpus[0])
    peaks, full = [], []
    everything: list[tuple[str, ScaledRequests, list[LibraryCell]]] = []
    releases = {gpu: str(catalogue.cell(gpu, networks[0]).source.torch) for gpu in gpus}
    for release in sorted(set(releases.values())):
        cards = [gpu for gpu in gpus if releases[gpu] == release]
        scaled = requests_of(networks, release)
        everything += [(network, scaled[network], [catalogue.cell(gpu, network) for gpu in cards]) for network in networks]
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(partial(compare, args.all), everything):
            peaks += found["peaks"]
            full += found["full"]
        fitted = {half: kernels_of([row for row in full if half_of(row["network"]) == half]) for half in (0, 1)}
        by_half = {(half, major): mib for half, of in fitted.items() for major, mib in of.items()}
        folded = [row for rows in pool.map(partial(judge, by_half), everything) for row in rows]
    show(peaks, full)
    show_folds(full, folded, fitted)
    median = statistics.median(errors(peaks))
    print(f"{len(peaks)} peaks: median error {100 * median:.2f} %")
    if args.json:
        args.json.write_text(json.dumps({"peaks": peaks, "full": full, "folded": folded}))


if __name__ == "__main__":
    main()
