"""Reproduces figures of "Analyzing and Mitigating Data Stalls in DNN Training" (VLDB 2021) and writes them to data_stalls.md.

    python docs/data_stalls.py [--steps 60] [--images FOLDER] [--costs FILE.json]

`trace stalls` measures how long a DataLoader worker needs for one batch on this machine. The GPU times were measured on a
V100, and are stored in the library of this package.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from docs.pages import write  # noqa: E402
from traces.library.catalogue import cell  # noqa: E402
from traces.stalls.loader_model import BatchCost, simulate_loader  # noqa: E402
from traces.stalls.storage_model import CachePolicy, Disk, steady_hit_share  # noqa: E402

GPU, BATCH = "v100", 128
NETWORKS = ("shufflenet_v2_x1_0", "alexnet", "resnet18", "squeezenet1_0", "mobilenet_v2", "resnet50", "vgg11")
CORES = (1, 2, 3, 6, 12, 24)
CACHED = (0.4, 0.6, 0.8, 0.9, 1.0)
EPOCH_SAMPLES, SAMPLE_BYTES = 64_000, 110_000  # the reproduction's epoch; ImageNet's mean file

# In the paper on data stalls, the eight GPUs of a server share the CPU cores and the SSD. Each GPU has three cores and 1/8 of
# the SSD's bandwidth.
CORES_PER_GPU = 3
SSD = Disk(530e6 / 8)
HDD = Disk(160e6, 8_000_000)

# from GPEmu's reproductions (github.com/mengwanguc/gpemu 27e9534) and from figures of the paper
PUBLISHED_CPU = {
    "alexnet": (174.3, 299.7, 458.4, 939.7, 1657.0, 2349.2),
    "resnet18": (171.2, 303.6, 473.3, 870.4, 1000.4, 993.1),
    "mobilenet_v2": (171.0, 305.8, 472.3, 806.1, 798.1, 798.6),
    "resnet50": (173.4, 299.0, 338.2, 337.6, 337.3, 337.4),
}  # images/s with 1, 2, 3, 6, 12, 24 cores
PUBLISHED_FETCH = {
    "alexnet": (0.262, 0.41), "resnet18": (0.240, 0.35), "squeezenet1_0": (0.195, 0.20), "mobilenet_v2": (0.105, 0.08),
    "resnet50": (0.009, 0.06), "vgg11": (0.008, 0.02),
}  # fmt: skip  # share of an epoch: reproduced, paper
PUBLISHED_CACHE = {0.4: 270.9, 0.6: 228.0, 0.8: 127.9, 0.9: 96.8, 1.0: 0.0}  # seconds of fetching per epoch, hard disk
PUBLISHED_PREPARATION = {
    "shufflenet_v2_x1_0": 0.65, "alexnet": 0.63, "resnet18": 0.53, "squeezenet1_0": 0.43, "mobilenet_v2": 0.35,
    "resnet50": 0.05, "vgg11": 0.01,
}  # fmt: skip  # paper
PUBLISHED_PIN = {64: 13.1, 128: 23.1, 256: 36.0, 512: 55.9, 1024: 74.4}  # ms of a batch of 224 x 224 images
# per image and core of the published server (figure 5 with one core)
PUBLISHED_CPU_NS = 1e9 / statistics.median(points[0] for points in PUBLISHED_CPU.values())
BATCHES = (16, 32, 64, 128, 256)
ROUNDS = 7
# Runs with one and two workers alternate, because a slow period of the machine then affects both.
RUNS = [("alexnet", workers) for _ in range(ROUNDS) for workers in (1, 2)] + [("resnet18", 1)]


@dataclass(frozen=True)
class Measured:
    """Holds the results of one run of `trace stalls` on this machine. Rates are in images/s."""

    network: str
    workers: int
    rate: float
    modelled: float
    taken_cores: float  # by other programs
    cpu_ns_per_sample: float
    pin_cpu_ms: float


@dataclass
class Cost:
    runs: list[Measured] = field(default_factory=list)
    pin_ms: dict[int, float] = field(default_factory=dict)  # by batch size

    @property
    def cpu_ns_per_sample(self) -> float:
        return statistics.median(run.cpu_ns_per_sample for run in self.of("alexnet", 1))

    def of(self, network: str, workers: int) -> list[Measured]:
        return [run for run in self.runs if (run.network, run.workers) == (network, workers)]

    @classmethod
    def kept(cls, file: Path) -> Cost:
        told = json.loads(file.read_text())
        return cls([Measured(**run) for run in told["runs"]], {int(batch): ms for batch, ms in told["pin_ms"].items()})


def measure(cost: Cost, images: Path | None, steps: int, costs: Path | None) -> None:
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = images or Path(made)
        if images is None and len(cost.runs) < len(RUNS):
            subprocess.run([sys.executable, ROOT / "examples" / "image_folder.py", folder, "--count", "2000"], check=True)
        before = len(cost.runs)
        for number, (network, workers) in enumerate(RUNS[before:], start=before):
            done = number - before
            left = f", {(time.monotonic() - begin_s) / done * (len(RUNS) - number) / 60:.0f} min left" if done else ""
            print(f"run {number + 1} of {len(RUNS)}{left}: {network}, workers: {workers}", file=sys.stderr)
            cost.runs.append(_stalls(folder, network, workers, steps))
            _keep(cost, costs)
    if not cost.pin_ms:
        command = [sys.executable, "-m", "trace_replay", "replay", "--trace", "p100-no-cudnn"]
        command.append(str(ROOT / "examples" / "pin_batches.py"))
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        cost.pin_ms = {int(batch): float(ms) for batch, ms in re.findall(r"batch (\d+): ([\d.]+) ms", printed)}
        _keep(cost, costs)


def _keep(cost: Cost, costs: Path | None) -> None:
    if costs is not None:
        text = json.dumps(asdict(cost))
        costs.write_text(text)


def _stalls(folder: Path, network: str, workers: int, steps: int) -> Measured:
    script = [ROOT / "examples" / "train_folder.py", folder, "--model", network, "--batch-size", BATCH, "--workers", workers]
    command = [sys.executable, "-m", "trace_replay", "stalls", "--gpu", GPU, "--json", "--steps", steps, *script]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"`trace stalls` ended with exit code {done.returncode}; no page was written")
    facts: dict[str, Any] = json.loads(done.stdout)
    return Measured(
        network,
        workers,
        rate=facts["prepared"]["samples_per_s"],
        modelled=facts["check"]["samples_per_s"],
        taken_cores=facts["taken_cores"],
        cpu_ns_per_sample=facts["batch_cpu_ns"] / facts["batch_samples"],
        pin_cpu_ms=facts["batch_pin_cpu_ns"] / 1e6,
    )


def gpu_ns(network: str, batch: int = BATCH) -> int:
    return sum(cell(GPU, network).for_batch(batch).phases_ns.values())


def _rates(*networks: str) -> str:
    return ", ".join(f"{BATCH / gpu_ns(network) * 1e9:.0f} ({network})" for network in networks)


class Model:
    """Predicts the time of a training step that waits for CPU cores or the disk."""

    def __init__(self, cpu_ns_per_sample: float) -> None:
        self._cpu_ns_per_sample = cpu_ns_per_sample

    def step_ns(
        self, network: str, cores: int, disk: Disk | None = None, cached: float = 0, policy: CachePolicy = CachePolicy.LRU,
        batch: int = BATCH,
    ) -> int:  # fmt: skip
        missed = 1 - steady_hit_share(cached, policy)
        of_disk = None if disk is None or not missed else Disk(disk.bytes_per_s, disk.latency_ns)
        cost = BatchCost(round(batch * self._cpu_ns_per_sample), round(batch * missed * SAMPLE_BYTES), round(batch * missed))
        return simulate_loader(cost, workers=cores, cores=cores, step_ns=gpu_ns(network, batch), disk=of_disk).step_ns

    def rate(self, network: str, cores: int) -> float:
        return BATCH / self.step_ns(network, cores) * 1e9

    def preparation_stall(self, network: str) -> float:
        return 1 - gpu_ns(network) / self.step_ns(network, CORES_PER_GPU)

    def fetch_stall(self, network: str) -> float:
        """Return the fraction of a training step in which the GPU waits for data from an SSD. The page cache holds 35 % of the
        data, as in figure 3 of the paper by Mohan et al."""
        cores = CORES[-1]
        return 1 - self.step_ns(network, cores) / self.step_ns(network, cores, SSD, 0.35)

    def epoch_s(self, disk: Disk, cached: float, policy: CachePolicy) -> float:
        return EPOCH_SAMPLES / BATCH * self.step_ns("resnet18", CORES[-1], disk, cached, policy) / 1e9

    def epoch_by_batch(self, batch: int) -> tuple[float, float]:
        """Return the GPU time and the total time of a MobileNetV2 epoch in seconds."""
        batches = EPOCH_SAMPLES / batch
        step_ns = self.step_ns("mobilenet_v2", CORES_PER_GPU, batch=batch)
        return batches * gpu_ns("mobilenet_v2", batch) / 1e9, batches * step_ns / 1e9


def page(cost: Cost) -> Iterator[str]:
    model = Model(cost.cpu_ns_per_sample)
    yield "# Data stalls\n"
    yield (
        'This page shows how long a training step waits for data, and repeats the experiments of the paper "Analyzing and '
        'Mitigating Data Stalls in DNN Training" (VLDB 2021) without a GPU. In short, training waits if the CPU cores '
        "prepare fewer images per second than the GPU can process, or if the disk is too slow. The last section shows "
        "[what agrees with the paper, and what does not](#what-agrees-and-what-does-not). Figure numbers in headings refer "
        "to the paper.\n\n"
        "To repeat the experiments, run `python docs/data_stalls.py`. To measure how long your own script waits for data, "
        "run `trace stalls SCRIPT --gpu v100`.\n"
    )
    yield "![Stalls, throughput, epoch times and pinning times by network](data_stalls.svg)\n"
    yield (
        "The figures have four sources:\n\n* **Measured on this machine**: a DataLoader worker needs "
        f"{cost.cpu_ns_per_sample / 1e6:.2f} ms of CPU time to load, decode, crop, mirror and normalise a JPEG image of "
        "500 x 375 pixels. The time to pin a batch was also measured on this machine.\n* **Library**: the authors of GPEmu "
        f"measured the GPU times on a {GPU.upper()} at batch size {BATCH}.\n"
        "* **Modelled**: all other figures in columns named *ours* are "
        "computed from the measured times and the library.\n* **Published**: GPEmu's reproductions "
        "(github.com/mengwanguc/gpemu 27e9534) and the paper provide the figures for comparison.\n"
    )
    yield from _validation(cost)
    yield "\n## Throughput by CPU cores per GPU (figure 5), images/s\n"
    yield (
        "The columns show how many images per second a script trains with 1, 2, 3, 6, 12 or 24 CPU cores. The last column "
        "shows the rate of the GPU without waits for data.\n"
    )
    yield f"| network | | {' | '.join(map(str, CORES))} | GPU alone |\n|{'---|' * (len(CORES) + 3)}"
    for network, points in PUBLISHED_CPU.items():
        rates = [f"{model.rate(network, cores):.0f}" for cores in CORES]
        yield f"| {network} | ours | {' | '.join(rates)} | {BATCH / gpu_ns(network) * 1e9:.0f} |"
        yield f"| | published | {' | '.join(f'{point:.0f}' for point in points)} | |"
    yield f"\n## Preparation stall, {CORES_PER_GPU} cores per GPU (figure 6), share of a step\n"
    yield (
        "In a preparation stall, the GPU waits for CPU cores to prepare images. The authors of the paper used slower cores, so "
        "one of our columns assumes cores of that speed.\n"
    )
    theirs = Model(PUBLISHED_CPU_NS)
    yield "| network | ours | ours, with the paper's core speed | paper |\n|---|---|---|---|"
    for network, share in PUBLISHED_PREPARATION.items():
        stalls = f"{model.preparation_stall(network):.0%} | {theirs.preparation_stall(network):.0%}"
        yield f"| {network} | {stalls} | {share:.0%} |"
    yield "\n## Fetch stall with 35 % cached (figure 3), share of a step\n"
    yield (
        "In a fetch stall, the GPU waits for files from the disk. The cache holds 35 % of the data.\n"
    )
    yield "| network | ours | reproduced by GPEmu | paper |\n|---|---|---|---|"
    for network, (reproduced, paper) in PUBLISHED_FETCH.items():
        yield f"| {network} | {model.fetch_stall(network):.0%} | {reproduced:.0%} | {paper:.0%} |"
    yield f"\n## Epoch of {EPOCH_SAMPLES:,} images by cached share, ResNet-18 (figure 4), seconds\n"
    yield (
        "If a page cache is full, it removes the files that were not read for the longest time. The paper's cache, MinIO, "
        "never removes files. The last column shows how long reading from the disk took in the published experiment.\n"
    )
    yield "| cached | SSD, page cache | SSD, MinIO | HDD, page cache | HDD, MinIO | published fetching, HDD |"
    yield "|---|---|---|---|---|---|"
    for cached in CACHED:
        cells = [model.epoch_s(disk, cached, policy) for disk in (SSD, HDD) for policy in CachePolicy]
        yield f"| {cached:.0%} | {' | '.join(f'{value:.0f}' for value in cells)} | {PUBLISHED_CACHE[cached]:.0f} |"
    yield f"\n## Larger batches, MobileNetV2 on {CORES_PER_GPU} cores (figure 9), seconds per epoch\n"
    yield "`GPU computes` is the time in which the GPU computes in an epoch. `epoch` also includes waits for data.\n"
    yield "| batch | GPU computes | epoch | epoch with the paper's core speed |\n|---|---|---|---|"
    for batch in BATCHES:
        computes, whole = model.epoch_by_batch(batch)
        yield f"| {batch} | {computes:.0f} | {whole:.0f} | {theirs.epoch_by_batch(batch)[1]:.0f} |"
    yield from _pinning(cost)
    yield "\n## What agrees, and what does not\n"
    yield from _agreement(model, theirs, cost)
    yield (
        "\n"
        "* With many cores, a script trains as many images per second as the GPU in the library. With few cores, it trains "
        "as many images per second as the cores prepare. In our results, more cores increase the throughput linearly until "
        "the GPU is the bottleneck. The published throughput grows more slowly when the GPU is almost the bottleneck, because "
        "cores share caches and memory.\n"
        "* If the GPU processes a network faster, a larger share of each step is spent waiting for data, both for "
        "preprocessing and for reads from the disk. Our ranking of the networks differs from the ranking in the paper, because "
        f"the GPUs have different speeds. The {GPU.upper()} in the library trains this many images per second: "
        f"{_rates('alexnet', 'shufflenet_v2_x1_0', 'squeezenet1_0', 'resnet18')}. The paper used other software.\n"
        "* A core of this machine may be faster than a core of the published server, which needs 5.8 ms per image (figure "
        "5, one core). If the CPU cores are faster, fewer cores are enough. The tables for figures 6 and 9 "
        "therefore have a column for slow cores, like those in the paper. With slow cores, larger batches reduce the GPU "
        "time, but not the time of the epoch.\n"
        "* On this page, the share of waiting time sometimes differs from the paper. The paper decodes images with DALI, "
        "partly on the GPU, so the CPU time per image differs.\n"
        "* If 40 % of the data fit in a page cache, the cache serves only 9 % of randomly ordered reads, because it removes "
        "most files before they are read again. A cache that never removes files serves 40 % of the reads. The table for "
        "figure 4 has a column for each combination of cache and disk. The published times agree with those of a cache that "
        "never removes files.\n"
        "* Each batch is copied into the same locked pages. The pinning time therefore depends on the number of "
        "bytes, not on the network or the number of workers. Our pinning time is proportional to the batch size, but the "
        "published time grows more slowly than the batch size.\n"
        "* The paper measured AlexNet on a server with little memory: an epoch takes 21 % longer if memory pages are not "
        "locked. On this machine, pages are locked, or a message explains why not. In our experiment with little memory "
        "and a swap file, an epoch took 2.9 times as long with unlocked pages "
        "(`python benchmarks/locked_pages.py --rounds 2`, as root).\n"
        "* The model does not include read-ahead across files, several jobs on one server, or variance between images.\n"
    )


def _agreement(model: Model, theirs: Model, cost: Cost) -> Iterator[str]:
    off = max(abs(model.rate(name, CORES[-1]) * gpu_ns(name) / 1e9 / BATCH - 1) for name in PUBLISHED_CPU)
    far = max(abs(BATCH / gpu_ns(name) * 1e9 / points[-1] - 1) for name, points in PUBLISHED_CPU.items())
    fetch, paper = ({name: shares[at] for name, shares in PUBLISHED_FETCH.items()} for at in (0, 1))
    preparing = {name: theirs.preparation_stall(name) for name in PUBLISHED_PREPARATION}
    fetching = {name: model.fetch_stall(name) for name in PUBLISHED_FETCH}
    epochs = [
        [[model.epoch_s(disk, cached, policy) for cached in CACHED] for policy in (CachePolicy.LRU, CachePolicy.MINIO)]
        for disk in (SSD, HDD)
    ]
    falls = all(seconds == sorted(seconds, reverse=True) for of_disk in epochs for seconds in of_disk)
    minio = all(never <= page for of_disk in epochs for page, never in zip(*of_disk, strict=True))
    computes, whole = zip(*(theirs.epoch_by_batch(batch) for batch in BATCHES), strict=True)
    spread = max(whole) / min(whole) - 1
    per_image = [cost.pin_ms[batch] / batch for batch in PUBLISHED_PIN]
    yield "| expected agreement with the publication | result on this machine | verdict |\n|---|---|---|"
    for what, here, agrees in (
        ("with many cores, the throughput equals the GPU's rate (figure 5)", f"differs by at most {off:.1%}", off < 0.01),
        (
            "with many cores, the throughput is as published (figure 5)",
            f"differs by at most {far:.0%}, on another V100",
            far < 0.15,
        ),
        (
            "same order of networks by preparation stall, with the paper's core speed (figure 6)",
            *_in_order(preparing, PUBLISHED_PREPARATION),
        ),
        ("same order of networks by fetch stall as reproduced by GPEmu (figure 3)", *_in_order(fetching, fetch)),
        ("same order of networks by fetch stall as in the paper (figure 3)", *_in_order(fetching, paper)),
        ("more cached data make an epoch shorter (figure 4)", "true for each disk and cache", falls),
        ("a cache that never evicts is not slower (figure 4)", "true for each disk and cached share", minio),
        (
            "larger batches reduce the GPU time of an epoch (figure 9)",
            f"from {computes[0]:.0f} to {computes[-1]:.0f} s",
            computes[0] > computes[-1],
        ),
        (
            "larger batches do not change the epoch time, with the paper's core speed (figure 9)",
            f"differs by at most {spread:.1%}",
            spread < 0.02,
        ),
        (
            "the pinning time depends only on the number of bytes",
            f"{min(per_image) * 1e3:.0f} to {max(per_image) * 1e3:.0f} µs per image",
            max(per_image) < 1.2 * min(per_image),
        ),
    ):
        yield f"| {what} | {here} | {'agrees' if agrees else 'does not agree'} |"


def _in_order(ours: dict[str, float], published: dict[str, float]) -> tuple[str, bool]:
    """Check whether our results rank the networks in the published order. Differences up to 0.02 are ignored."""
    pairs = [(a, b) for a, b in combinations(published, 2) if min(abs(of[a] - of[b]) for of in (ours, published)) > 0.02]
    other = [f"{a} and {b}" for a, b in pairs if (ours[a] > ours[b]) != (published[a] > published[b])]
    but = f"; different order: {'; '.join(other)}" if other else ""
    return f"{len(pairs) - len(other)} of {len(pairs)} pairs of networks{but}", not other


def _validation(cost: Cost) -> Iterator[str]:
    yield "## The model against this machine\n"
    yield (
        "`trace stalls` predicts when a script receives each batch from the DataLoader. The prediction is based on the "
        "measured CPU time of each batch, the step time, the GPU time, and the CPU time of other programs. The prediction "
        "also depends on the number of DataLoader workers and of CPU cores: the script and the workers share the cores, "
        "and workers load batches in advance. The tables show images per second, not counting the first steps of each "
        f"run. Each row of the first table shows one run with {BATCH} images per batch, and names the number of workers and "
        "the network. The second table shows medians of these runs.\n"
    )
    yield "| workers | measured | modelled | error | cores used by other programs |"
    yield "|---|---|---|---|---|"
    for run in cost.runs:
        yield (
            f"| {run.workers} ({run.network}) | {run.rate:.1f} | {run.modelled:.1f} |"
            f" {run.modelled / run.rate - 1:+.1%} | {run.taken_cores:.2f} |"
        )
    yield "\n| | median measured | median modelled | error of the modelled median | median of the errors |"
    yield "|---|---|---|---|---|"
    for workers, named in ((1, "1 worker"), (2, "2 workers")):
        runs = [run for run in cost.runs if run.workers == workers]
        rate, modelled = (statistics.median(column) for column in zip(*((run.rate, run.modelled) for run in runs), strict=True))
        off = statistics.median(run.modelled / run.rate - 1 for run in runs)
        yield f"| {named} | {rate:.1f} | {modelled:.1f} | {modelled / rate - 1:+.1%} | {off:+.1%} |"


def _pinning(cost: Cost) -> Iterator[str]:
    yield "\n## Pinning a batch, ms\n"
    yield (
        "Pinning copies a batch into locked memory pages, because the GPU can read locked pages directly. The row `ours, "
        "core time` shows CPU time.\n"
    )
    yield f"| batch | {' | '.join(map(str, PUBLISHED_PIN))} |\n|{'---|' * (len(PUBLISHED_PIN) + 1)}"
    yield f"| ours, core time | {' | '.join(f'{cost.pin_ms[batch]:.1f}' for batch in PUBLISHED_PIN)} |"
    yield f"| published | {' | '.join(f'{ms:.1f}' for ms in PUBLISHED_PIN.values())} |"
    pins_ms = [statistics.median(run.pin_cpu_ms for run in cost.of(*row)) for row in dict.fromkeys(RUNS)]
    yield f"\nPinning {BATCH} images took {min(pins_ms):.1f} to {max(pins_ms):.1f} ms (medians of {len(pins_ms)} runs)."


def picture(cost: Cost, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "data_stalls"
    from matplotlib import pyplot

    model, theirs = Model(cost.cpu_ns_per_sample), Model(PUBLISHED_CPU_NS)
    figure, axes = pyplot.subplots(3, 2, figsize=(11, 12), layout="constrained")
    of_cores, of_stalls, of_fetching, of_cache, of_batch, of_pinning = axes.flat
    for (network, points), marker in zip(PUBLISHED_CPU.items(), "os^D", strict=True):
        [line] = of_cores.plot(CORES, [model.rate(network, cores) for cores in CORES], marker=marker, label=network)
        of_cores.plot(CORES, points, marker=marker, linestyle=":", color=line.get_color(), fillstyle="none")
    of_cores.set(title="throughput (dotted: published)", xlabel="CPU cores per GPU", ylabel="images/s", yscale="log")
    _over_counts(of_cores, CORES)
    _bars(
        of_stalls,
        {
            "ours": {name: model.preparation_stall(name) for name in PUBLISHED_PREPARATION},
            "ours, published cores": {name: theirs.preparation_stall(name) for name in PUBLISHED_PREPARATION},
            "paper": PUBLISHED_PREPARATION,
        },
    )
    of_stalls.set_title(f"preparation stall, {CORES_PER_GPU} cores per GPU")
    _bars(
        of_fetching,
        {
            "ours": {name: model.fetch_stall(name) for name in PUBLISHED_FETCH},
            "reproduced by GPEmu": {name: reproduced for name, (reproduced, _) in PUBLISHED_FETCH.items()},
            "paper": {name: paper for name, (_, paper) in PUBLISHED_FETCH.items()},
        },
    )
    of_fetching.set_title("fetch stall, 35 % cached")
    for (disk, name), marker in zip(((SSD, "SSD / 8"), (HDD, "hard disk")), "os", strict=True):
        for policy, style in zip(CachePolicy, ("-", "--"), strict=True):
            seconds = [model.epoch_s(disk, cached, policy) for cached in CACHED]
            of_cache.plot([100 * c for c in CACHED], seconds, style, marker=marker, label=f"{name}, {policy.value}")
    of_cache.plot(
        [100 * c for c in PUBLISHED_CACHE], [*PUBLISHED_CACHE.values()], "k:", marker="x", label="published fetching, hard disk"
    )
    of_cache.set(title="epoch by cached share, ResNet-18", xlabel="% of the data set cached", ylabel="s per epoch")
    of_cache.set_ylim(0, 1.4 * of_cache.get_ylim()[1])  # the legend stands above the lines
    epochs = {batch: (*model.epoch_by_batch(batch), theirs.epoch_by_batch(batch)[1]) for batch in BATCHES}
    lines = (("GPU computes", "o--"), ("epoch", "s-"), ("epoch, published cores", "^:"))
    for (label, style), seconds in zip(lines, zip(*epochs.values(), strict=True), strict=True):
        of_batch.plot(BATCHES, seconds, style, label=label, fillstyle="none")
    of_batch.set(title=f"MobileNetV2 by batch size, {CORES_PER_GPU} cores", xlabel="batch size", ylabel="s per epoch", ylim=0)
    _over_counts(of_batch, BATCHES)
    pinned = tuple(PUBLISHED_PIN)
    of_pinning.plot(pinned, [cost.pin_ms[batch] for batch in pinned], "o-", label="ours, of a core")
    of_pinning.plot(pinned, [*PUBLISHED_PIN.values()], "kx:", label="published")
    of_pinning.set(title="pinning a batch", xlabel="batch size", ylabel="ms per batch", ylim=0)
    _over_counts(of_pinning, pinned)
    for each in axes.flat:
        each.legend()
    figure.savefig(path, metadata={"Date": None})


def _over_counts(axes: Any, counts: tuple[int, ...]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(counts, map(str, counts))
    axes.set_xticks([], minor=True)


def _bars(axes: Any, columns: dict[str, dict[str, float]]) -> None:
    looks: tuple[dict[str, str], ...] = ({"color": "0.35"}, {"color": "0.65"}, {"color": "0.9", "hatch": "//"})
    names = list(next(iter(columns.values())))
    for column, ((label, shares), look) in enumerate(zip(columns.items(), looks, strict=True)):
        places = [place + 0.27 * (column - 1) for place in range(len(names))]
        axes.bar(places, [100 * shares[name] for name in names], 0.27, label=label, edgecolor="0.2", **look)
    axes.set_xticks(range(len(names)), [name.partition("_")[0] for name in names], rotation=30)
    axes.set_ylabel("% of a step")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="training steps of each run")
    parser.add_argument(
        "--images", type=Path,
        help="a folder with one subfolder of JPEG files per class [default: synthetic images]",
    )
    parser.add_argument(
        "--costs", type=Path,
        help="read the measurements from this file, or write them to it if it does not exist",
    )
    parser.add_argument("--output", type=Path, default=DOCS / "data_stalls.md")
    options = parser.parse_args()
    cost = Cost() if options.costs is None or not options.costs.exists() else Cost.kept(options.costs)
    measure(cost, options.images, options.steps, options.costs)
    print("\n".join(_validation(cost)))
    write(page(cost), partial(picture, cost), options.output)


if __name__ == "__main__":
    main()
