"""Runs examples/dataparallel_study.py on a virtual V100, and writes the tables and the picture of dataparallel_study.md.

    python docs/dataparallel_study.py ../shared/traces/v100_resnet50_workers0.json.gz [--tables times,versions] [--vgg16]

The script takes about twenty minutes on two cores. Training VGG16 takes about an hour on one core, so its result is stored
in dataparallel_study_vgg16.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
STUDY = DOCS.parent / "examples" / "dataparallel_study.py"
VGG16 = DOCS / "dataparallel_study_vgg16.jsonl"
sys.path.insert(0, str(DOCS.parent))

from docs.pages import say_made  # noqa: E402
from traces.library.catalogue import cell  # noqa: E402
from traces.library.cells import NotMeasured  # noqa: E402

TIMES = "trace replay --trace {trace} --gpus 4 --clock recorded"
COMPUTED = "trace replay --trace {trace} --gpus 4 --clock virtual --values compute"
LEARNING = "--parallels nn --gpu-counts 2 --batch-sizes 32 --steps 0 --epochs 20 --images 512 --lr 0.0003"
LIBRARY_GPU = "v100"

# by table of the page: a command that starts its measurements, and grids of arguments
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "times": (TIMES, ("--parallels nn --gpu-counts 1,2,4 --batch-sizes 128,512",)),
    "versions": (
        TIMES,
        ("--models vgg16,resnet18,squeezenet1_0 --gpu-counts 2 --batch-sizes 128 --trainables 0.25,1.0",),
    ),
    "epochs": (
        COMPUTED,
        (
            f"--models resnet18,squeezenet1_0,densenet121 --image-size 32 {LEARNING}",
            f"--models alexnet --image-size 64 {LEARNING}",
        ),
    ),
    "vgg16": (
        COMPUTED,
        (
            "--models vgg16 --parallels nn --gpu-counts 4 --batch-sizes 1024 --image-size 32 --steps 0 --epochs 20"
            " --images 16384 --lr 0.0003",
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "recording", type=Path,
        help="a recording of one GPU: a trace file or a torch.profiler file that contains kernels",
    )
    parser.add_argument("--results", type=Path, default=DOCS.parent / "out" / "study", help="the folder for the measurements")
    tables = "times,versions,epochs"
    parser.add_argument("--tables", default=tables, metavar="A,B", help="the tables to make [default: %(default)s]")
    parser.add_argument("--vgg16", action="store_true", help="also train VGG16, which takes about an hour")
    args = parser.parse_args()
    names = [name for name in args.tables.split(",") if name] + ["vgg16"] * args.vgg16
    if unknown := set(names) - TABLES.keys():
        parser.error(f"--tables: no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    args.results.mkdir(parents=True, exist_ok=True)
    recording, trace = args.recording.resolve(), args.results / "recording.msgpack"
    run("trace", "import", str(recording), "-o", str(trace))
    page = DOCS / "dataparallel_study.md"
    for name in names:
        start, grids = TABLES[name]
        results = VGG16 if name == "vgg16" else args.results / f"{name}.jsonl"
        for grid in grids:
            words = ["--results", str(results), "--start", start.format(trace=shlex.quote(str(trace)))]
            run(sys.executable, str(STUDY), "grid", *grid.split(), *words)
        picture = ("--picture", str(DOCS / "dataparallel_study.svg")) if name == "times" else ()
        table = run(sys.executable, str(STUDY), "table", "--results", str(results), *picture, quiet=True)
        page.write_text(with_table(page.read_text(), name, table))
        if name == "times":
            beside = "\n".join(beside_the_library(results)) + "\n"
            page.write_text(with_table(page.read_text(), "library", beside))
    say_made(page)


def beside_the_library(results: Path) -> Iterator[str]:
    """Compare estimated computation times with the times that the GPEmu project measured."""
    yield "| network | batch | estimated here, ms | measured (GPEmu), ms | off |\n| --- | ---: | ---: | ---: | ---: |"
    for row in map(json.loads, results.read_text().splitlines()):
        if row["gpus"] != 1 or "computation_ms" not in row:
            continue
        try:
            phases_ns = cell(LIBRARY_GPU, row["model"]).for_batch(row["batch_size"]).phases_ns
        except NotMeasured:
            continue
        measured_ms = sum(took for name, took in phases_ns.items() if name != "h2d") / 1e6
        ours_ms = row["computation_ms"]
        off = f"{ours_ms / measured_ms - 1:+.0%}"
        yield f"| {row['model']} | {row['batch_size']} | {ours_ms:.1f} | {measured_ms:.1f} | {off} |"


def run(*command: str, quiet: bool = False) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE if quiet else None, text=True, check=True)
    return done.stdout or ""


def with_table(page: str, name: str, table: str) -> str:
    """Insert a table between two HTML comments in a page."""
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise SystemExit(f"dataparallel_study.md contains no HTML comments that mark the place of the table {name}")
    return f"{before}{begin}\n{table}{end}{after}"


if __name__ == "__main__":
    main()
