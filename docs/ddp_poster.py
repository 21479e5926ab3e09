"""Writes the page ddp_poster.md and its picture, which compare training on one GPU and on two GPUs.

    python docs/ddp_poster.py ../shared/traces/v100_resnet50_workers0.json.gz [--results FOLDER]

The figures come from runs of examples/train_vit.py on virtual GPUs. The whole benchmark takes ten to thirty minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs.pages import write  # noqa: E402

SCRIPT = DOCS.parent / "examples" / "train_vit.py"
MEMORY, STEPS = "7.79GiB", 6
NETS = {"vit": ((2, 6, 12), (64, 256, 1024)), "wide": ((4, 8, 12), (1024, 4096, 8192))}  # depths, widths
NAMES = {"vit": "Vision transformer", "wide": "Deep and wide perceptron"}
ONE, NCCL, GLOO, SPLIT = "one GPU", "two, NCCL", "two, gloo", "two, layers split"
MODES = {"vit": (ONE, NCCL, GLOO), "wide": (ONE, NCCL, GLOO, SPLIT)}
# by batch size: steps of an MNIST epoch, and published bytes of gradients and losses
PUBLISHED_BYTES = {
    32: (1875, 39_915_000, 7_500),
    64: (938, 19_968_144, 3_752),
    128: (469, 9_984_072, 1_876),
}
LOSS_BYTES = 4
_DONE = re.compile(r"step (?P<ms>[\d.]+) ms, peak (?P<mib>\d+) MiB, loss (?P<loss>[\d.]+)")
_FAILED = re.compile(r"OutOfMemoryError: (?P<words>CUDA out of memory\..*?(?= Of the allocated)|CUDA out of memory\.[^.]*\.)")


@dataclass(frozen=True)
class Run:
    net: str
    depth: int
    width: int
    mode: str
    values: str = "recorded"
    batch: int = 128
    steps: int = STEPS

    @property
    def file(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", "-".join(map(str, astuple(self))).lower()) + ".json"


@dataclass(frozen=True)
class Cell:
    step_ms: float | None  # None: out of memory
    peak_mib: int | None  # of the GPU that holds more
    loss: str  # of the last step, as printed
    reduced_bytes: int  # per step and rank: gradients, and the loss
    words: str = ""  # of the error

    @property
    def text(self) -> str:
        return "out of memory" if self.step_ms is None else f"{self.step_ms:.1f} ms, {self.peak_mib} MiB"


Cells = dict[Run, Cell]


def wanted() -> list[Run]:
    sizes = [(net, depth, width) for net, (depths, widths) in NETS.items() for depth in depths for width in widths]
    grid = [Run(*size, mode) for size in sizes for mode in MODES[size[0]] if is_run(*size, mode)]
    losses = [computed(net, mode) for net in NETS for mode in (ONE, NCCL, GLOO)]
    return grid + losses + [tiny(batch) for batch in PUBLISHED_BYTES]


def is_run(net: str, depth: int, width: int, mode: str) -> bool:
    """Return whether the benchmark includes a run."""
    depths, widths = NETS[net]
    return {GLOO: depth == depths[1], SPLIT: width == widths[-1]}.get(mode, True)


def computed(net: str, mode: str) -> Run:
    return Run(net, *{"vit": (2, 64), "wide": (4, 256)}[net], mode, "compute", steps=20)


def tiny(batch: int) -> Run:
    return Run("tiny", 0, 0, NCCL, batch=batch)


def made(trace: Path, run: Run) -> Cell:
    """Run the script. If the script runs out of GPU memory, return the error message; exit after any other error."""
    how = {ONE: [], SPLIT: ["--gpus", 2]}.get(run.mode, ["--nproc", 2])
    script: list[Any] = [SCRIPT, "--net", run.net, "--depth", run.depth, "--width", run.width, "--steps", run.steps]
    script += ["--batch-size", run.batch, *(["--backend", "gloo"] if run.mode == GLOO else [])]
    script += ["--split"] if run.mode == SPLIT else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--gpu-memory", MEMORY, "--clock", "recorded", "--values", run.values, "--report", report]
        command = [sys.executable, "-m", "trace_replay", "replay", "--trace", trace, *options, *how, *script]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
        told = _DONE.search(done.stdout)
        if told is None:
            if (failed := _FAILED.search(done.stderr)) is None:
                raise SystemExit(f"{run}: {done.stderr[-2000:]}")
            return Cell(None, None, "", 0, failed["words"])
        between = (json.loads(report.read_text()).get("communication") or {}).get("replayed") or {"operations": []}
    reduced = sum(row["bytes"] for row in between["operations"] if row["name"] == "all_reduce")
    return Cell(float(told["ms"]), int(told["mib"]), told["loss"], reduced // (2 * run.steps))


def cells(recording: Path, results: Path) -> Cells:
    trace = results / "recording.msgpack"
    if not trace.exists():
        subprocess.run([sys.executable, "-m", "trace_replay", "import", recording, "-o", trace], check=True)
    missing = [run for run in wanted() if not (results / run.file).exists()]
    begin_s = time.monotonic()
    for number, run in enumerate(missing):
        left = f", {(time.monotonic() - begin_s) / number * (len(missing) - number) / 60:.0f} min left" if number else ""
        print(f"{number + 1} of {len(missing)}{left}: {run.net} {run.depth} x {run.width}, {run.mode}", file=sys.stderr)
        text = json.dumps(vars(made(trace, run)))
        (results / run.file).write_text(text)
    return {run: Cell(**json.loads((results / run.file).read_text())) for run in wanted()}


def page(found: Cells) -> Iterator[str]:
    yield "# One GPU or two\n"
    yield (
        "Does a network fit on one GPU, and is training on two GPUs faster? This page compares three ways to run "
        "examples/train_vit.py on virtual GPUs: on one GPU, on two GPUs with DistributedDataParallel (NCCL or gloo), and "
        "with the layers split over two GPUs. Each step trains 128 images of 28 x 28 pixels in total, with Adam in fp32. "
        "To repeat the runs, use `python docs/ddp_poster.py RECORDING`.\n"
        "\n"
        "The figures on this page are estimates for a GPU with 7.79 GiB of memory, not measurements. The kernel times and "
        "the CPU time per operation come from a recording of a V100. If the recording has no kernel for tensors of the "
        "same size, the kernel time is estimated. The times of transfers between GPUs are estimated from data sheets. The "
        "backend gloo is slow, because it sends data over TCP and through host memory. The virtual GPU follows PyTorch's "
        "rules for memory allocation and out-of-memory errors. The last section compares the bytes sent per epoch with "
        "published figures.\n"
    )
    yield "![Step time and peak memory by network size, on one GPU and on two](ddp_poster.svg)\n"
    yield from _sentences(found)
    for net in NETS:
        yield from _table(found, net)
    yield from _losses(found)
    yield from _bytes(found)


def _table(found: Cells, net: str) -> Iterator[str]:
    (depths, widths), modes = NETS[net], MODES[net]
    yield f"## {NAMES[net]}: step time and peak memory per GPU\n"
    yield (
        "Each cell shows the step time and the peak memory of one GPU. `-` means that there is no figure. Depth is the "
        "number of layers, and width is their size. The last column is the size of the gradients that each step adds up "
        "across the GPUs.\n"
    )
    yield f"| depth | width | {' | '.join(modes)} | gradients per step |\n|---|---|{'---|' * (len(modes) + 1)}"
    for depth in depths:
        for width in widths:
            row = [found.get(Run(net, depth, width, mode)) for mode in modes]
            reduced = max(cell.reduced_bytes for cell in row if cell is not None)
            size = f"{(reduced - LOSS_BYTES) / 2**20:.1f} MiB" if reduced else "-"
            yield f"| {depth} | {width} | {' | '.join('-' if cell is None else cell.text for cell in row)} | {size} |"
    yield ""


def _sentences(found: Cells) -> Iterator[str]:
    grid = [run for run in found if run.net in NETS and run.values == "recorded" and run.mode == ONE]

    def ms(run: Run, mode: str) -> float | None:
        cell = found.get(Run(run.net, run.depth, run.width, mode))
        return None if cell is None else cell.step_ms

    fit = [run for run in grid if ms(run, ONE) is not None and ms(run, NCCL) is not None]
    slower = [run for run in fit if (ms(run, NCCL) or 0) > (ms(run, ONE) or 0)]
    tried = [run for run in fit if ms(run, GLOO) is not None]
    by_gloo = [run for run in tried if (ms(run, GLOO) or 0) > (ms(run, NCCL) or 0)]
    alone = [run for run in grid if ms(run, ONE) is not None and ms(run, NCCL) is None]
    split = [run for run in grid if run.net == "wide" and ms(run, ONE) is None and ms(run, SPLIT) is not None]
    yield "## Results\n"
    yield (
        f"* {len(slower)} of the {len(fit)} networks that fit on one GPU and on two GPUs are slower on two GPUs than on one:"
        f" {_names(slower)}."
    )
    except_for = [run for run in tried if run not in by_gloo]
    but = f", but not for {_names(except_for)}" if except_for else ""
    yield f"* gloo takes longer than NCCL for {len(by_gloo)} of {len(tried)} networks that ran with both backends{but}."
    if alone:
        yield (
            f"* DistributedDataParallel keeps the gradients a second time, in its buckets: {_names(alone)} fit on one GPU, not"
            " under DistributedDataParallel."
        )
    if split:
        yield f"* Networks too large for one GPU were trained with the layers split over two GPUs: {_names(split)}."
    if words := next((cell.words for cell in found.values() if cell.words), ""):
        yield f"* If a network does not fit, the script gets PyTorch's usual error message: `{words}`"
    yield ""


def _names(runs: list[Run]) -> str:
    return ", ".join(f"{run.net} {run.depth} x {run.width}" for run in runs) or "none"


def _losses(found: Cells) -> Iterator[str]:
    yield "## Losses after 20 steps\n"
    yield (
        "The table compares training losses on one GPU and on two GPUs, with values computed on the CPU. With two GPUs, "
        "each GPU trains on half of the same batch, so the losses differ only because of rounding and dropout. The "
        "backends NCCL and gloo add up the same numbers, so they give the same losses.\n"
    )
    yield f"| network | {' | '.join((ONE, NCCL, GLOO))} |\n|---|---|---|---|"
    for net in NETS:
        losses = [found[computed(net, mode)].loss for mode in (ONE, NCCL, GLOO)]
        yield f"| {_names([computed(net, ONE)])} | {' | '.join(losses)} |"
    yield ""


def _bytes(found: Cells) -> Iterator[str]:
    yield "## Bytes per step, and per epoch of MNIST\n"
    yield (
        "The network has 5 322 parameters. A replay counted how many bytes each step sends between the GPUs: the "
        "gradients and the loss. The number of bytes per epoch is the number of bytes per step times the number of steps "
        "in an epoch (60 000 images). Each column `published` shows the published figure for the column on its left.\n"
    )
    yield "| batch | steps | all-reduced per step | gradients per epoch | published | losses per epoch | published |"
    yield "|---|---|---|---|---|---|---|"
    for batch, (steps, gradients, losses) in PUBLISHED_BYTES.items():
        step_bytes = found[tiny(batch)].reduced_bytes - LOSS_BYTES
        ours = (steps * step_bytes, gradients, steps * LOSS_BYTES, losses)
        yield f"| {batch} | {steps} | {step_bytes} + {LOSS_BYTES} | {' | '.join(f'{number:,}' for number in ours)} |"
    yield ""


def picture(found: Cells, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ddp_poster"
    from matplotlib import pyplot

    modes = (ONE, NCCL)
    figure, axes = pyplot.subplots(len(NETS), len(modes), figsize=(10, 8), layout="constrained")
    for row, (net, (depths, widths)) in enumerate(NETS.items()):
        for column, mode in enumerate(modes):
            shown = axes[row][column]
            here = [[found[Run(net, depth, width, mode)] for width in widths] for depth in depths]
            drawn = [[float("nan") if cell.peak_mib is None else cell.peak_mib / 1024 for cell in line] for line in here]
            shown.patch.set(facecolor="1", edgecolor="0.75", hatch="//")  # what is behind a cell that is out of memory
            image = shown.imshow(drawn, cmap="Greys", vmin=0, vmax=8, aspect="auto")
            for y, line in enumerate(here):
                for x, cell in enumerate(line):
                    dark = cell.peak_mib is not None and cell.peak_mib > 4096
                    text = "out of\nmemory" if cell.step_ms is None else f"{cell.step_ms:.1f} ms\n{cell.peak_mib} MiB"
                    on = {"facecolor": "white", "edgecolor": "none"} if cell.peak_mib is None else None
                    shown.text(x, y, text, ha="center", va="center", color="white" if dark else "black", bbox=on)
            shown.set_xticks(range(len(widths)), map(str, widths))
            shown.set_yticks(range(len(depths)), map(str, depths))
            shown.set(title=f"{NAMES[net]}, {mode}", xlabel="width", ylabel="depth, layers")
            figure.colorbar(image, ax=shown, label="peak memory of a GPU, GiB")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recording", type=Path, help="a recording of one GPU, made by torch.profiler")
    parser.add_argument("--results", type=Path, default=DOCS.parent / "out" / "poster", help="folder for the results")
    parser.add_argument("--output", type=Path, default=DOCS / "ddp_poster.md")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    found = cells(options.recording.resolve(), options.results)
    write(page(found), partial(picture, found), options.output)


if __name__ == "__main__":
    main()
