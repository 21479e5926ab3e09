"""Makes ddp_poster.md and its picture: which of two networks fit on one and on two 7.79 GiB GPUs, and which is faster there.

    python docs/ddp_poster.py ../shared/traces/v100_resnet50_workers0.json.gz [--results FOLDER]

Each cell is one run of examples/train_vit.py under `trace replay` on the GPU of that recording, with 7.79 GiB of memory and
this machine's own time left out: a small vision transformer and a deep and wide perceptron, over depth and width, alone and as
two ranks of DistributedDataParallel by NCCL and by gloo. Cells that `--results` holds are not run again. It takes ten minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SCRIPT = DOCS.parent / "examples" / "train_vit.py"
MEMORY = "7.79GiB"
NETS = {"vit": ((2, 6, 12), (64, 256, 1024)), "wide": ((4, 8, 12), (1024, 4096, 8192))}  # depths, widths
MODES = {"one GPU": (0, "nccl"), "two, NCCL": (2, "nccl"), "two, gloo": (2, "gloo")}
_DONE = re.compile(r"step (?P<ms>[\d.]+) ms, peak (?P<mib>\d+) MiB, loss (?P<loss>[\d.]+)")
_FAILED = re.compile(r"OutOfMemoryError: (?P<words>CUDA out of memory\.[^.]*\.)")


@dataclass(frozen=True)
class Cell:
    step_ms: float | None  # None: out of memory
    peak_mib: int | None
    loss: float | None
    words: str = ""  # of the error

    @property
    def text(self) -> str:
        return "out of memory" if self.step_ms is None else f"{self.step_ms:.1f} ms, {self.peak_mib} MiB"


def run(trace: Path, net: str, depth: int, width: int, ranks: int, backend: str) -> Cell:
    how = ["--trace", trace, "--gpu-memory", MEMORY, "--clock", "recorded", *(["--nproc", ranks] if ranks else [])]
    script = [SCRIPT, "--net", net, "--depth", depth, "--width", width, "--backend", backend, "--steps", 6]
    command = [sys.executable, "-m", "trace_replay", "replay", *how, *script]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
    if (failed := _FAILED.search(done.stderr)) is not None:
        return Cell(None, None, None, failed["words"])
    told = _DONE.search(done.stdout)
    if told is None:
        raise SystemExit(f"{' '.join(map(str, script))}: {done.stderr[-2000:]}")
    return Cell(float(told["ms"]), int(told["mib"]), float(told["loss"]))


def cells(recording: Path, results: Path) -> dict[tuple[str, int, int, str], Cell]:
    trace = results / "recording.msgpack"
    if not trace.exists():
        subprocess.run([sys.executable, "-m", "trace_replay", "import", recording, "-o", trace], check=True)
    sizes = [(net, depth, width) for net, (depths, widths) in NETS.items() for depth in depths for width in widths]
    wanted = [(*size, mode) for size in sizes for mode in MODES]
    found = {}
    for number, (net, depth, width, mode) in enumerate(wanted, start=1):
        file = results / f"{net}-{depth}-{width}-{mode.replace(', ', '-').replace(' ', '-')}.json"
        if not file.exists():
            print(f"{number} of {len(wanted)}: {net}, depth {depth}, width {width}, {mode}", file=sys.stderr)
            file.write_text(json.dumps(vars(run(trace, net, depth, width, *MODES[mode]))))
        found[net, depth, width, mode] = Cell(**json.loads(file.read_text()))
    return found


def page(found: dict[tuple[str, int, int, str], Cell]) -> Iterator[str]:
    yield "# One GPU or two\n"
    yield (
        f"Made by `python docs/ddp_poster.py RECORDING`: examples/train_vit.py on virtual GPUs of {MEMORY}, 128 images per step"
        " in all, alone and under DistributedDataParallel. **Measured**: nothing on such a GPU. **Estimated**: kernels' times,"
        " from the recording of a V100 by op and size, and transfers between ranks. **As PyTorch's rules have it**: memory.\n"
    )
    yield "![which cells fit, and where two GPUs are faster](ddp_poster.svg)\n"
    for net, (depths, widths) in NETS.items():
        name = "Vision transformer" if net == "vit" else "Deep and wide perceptron"
        yield f"## {name}: step and peak memory of a GPU\n"
        yield f"| depth | width | {' | '.join(MODES)} |\n|---|---|{'---|' * len(MODES)}"
        for depth in depths:
            for width in widths:
                yield f"| {depth} | {width} | {' | '.join(found[net, depth, width, mode].text for mode in MODES)} |"
        yield ""
    fit = [key[:3] for key, cell in found.items() if key[3] == "one GPU" and cell.step_ms is not None]
    slower = [key for key in fit if _ms(found, key, "two, NCCL") > _ms(found, key, "one GPU")]
    by_gloo = [key for key in fit if _ms(found, key, "two, gloo") > _ms(found, key, "two, NCCL")]
    equal = [key for key in fit if found[(*key, "two, gloo")].loss == found[(*key, "two, NCCL")].loss]
    words = next((cell.words for cell in found.values() if cell.words), "")
    yield (
        f"* {len(slower)} of {len(fit)} networks that fit on one GPU are slower on two.\n"
        f"* gloo takes longer than NCCL for {len(by_gloo)} of {len(fit)}, and the values are equal for {len(equal)}.\n"
        f"* What does not fit says so in PyTorch's words: `{words}`\n"
    )


def _ms(found: dict[tuple[str, int, int, str], Cell], key: tuple[str, int, int], mode: str) -> float:
    step_ms = found[(*key, mode)].step_ms
    return float("inf") if step_ms is None else step_ms


def picture(found: dict[tuple[str, int, int, str], Cell], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ddp_poster"
    from matplotlib import pyplot

    modes = ("one GPU", "two, NCCL")
    figure, axes = pyplot.subplots(len(NETS), len(modes), figsize=(10, 8), layout="constrained")
    for row, (net, (depths, widths)) in enumerate(NETS.items()):
        for column, mode in enumerate(modes):
            shown = axes[row][column]
            peaks = [[found[net, depth, width, mode].peak_mib for width in widths] for depth in depths]
            drawn = [[float("nan") if peak is None else peak / 1024 for peak in line] for line in peaks]
            image = shown.imshow(drawn, cmap="Greys", vmin=0, vmax=8, aspect="auto")
            for y, depth in enumerate(depths):
                for x, width in enumerate(widths):
                    cell = found[net, depth, width, mode]
                    dark = cell.peak_mib is not None and cell.peak_mib > 4096
                    text = "out of\nmemory" if cell.step_ms is None else f"{cell.step_ms:.1f} ms"
                    shown.text(x, y, text, ha="center", va="center", color="white" if dark else "black")
            shown.set_xticks(range(len(widths)), map(str, widths))
            shown.set_yticks(range(len(depths)), map(str, depths))
            shown.set(title=f"{net}, {mode}", xlabel="width", ylabel="depth")
            figure.colorbar(image, ax=shown, label="peak memory of a GPU, GiB")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recording", type=Path, help="of one GPU, in kernels: a profiler's JSON")
    parser.add_argument("--results", type=Path, default=DOCS.parent / "out" / "poster", help="the folder for the cells")
    parser.add_argument("--output", type=Path, default=DOCS / "ddp_poster.md")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    found = cells(options.recording.resolve(), options.results)
    options.output.write_text("\n".join(page(found)), encoding="utf-8")
    picture(found, options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
