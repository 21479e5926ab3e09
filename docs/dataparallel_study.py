"""Makes the tables and the picture of dataparallel_study.md: cells of examples/dataparallel_study.py on a V100's recording.

    python docs/dataparallel_study.py ../shared/traces/v100_resnet50_workers0.json.gz

It takes half an hour; run it on a machine that does nothing else, for the host's time is part of the figures. Cells that
`--results` holds from an earlier run are not measured again.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
STUDY = DOCS.parent / "examples" / "dataparallel_study.py"
REPLAY = "trace replay --trace {trace} --gpus 4 --clock virtual"

# The name of a table in the page; how its cells are started; and the grids that make it.
TABLES = (
    ("times", REPLAY, ("--parallels nn --gpu-counts 1,2,4 --batch-sizes 128,512",)),
    (
        "versions",
        REPLAY,
        ("--models vgg16,resnet18,squeezenet1_0 --gpu-counts 2 --batch-sizes 128 --trainables 0.25,1.0",),
    ),
    (
        "epochs",
        f"{REPLAY} --values compute",
        (
            "--models resnet18,squeezenet1_0,densenet121 --image-size 32 {learning}",
            "--models alexnet --image-size 64 {learning}",
        ),
    ),
)
LEARNING = "--parallels nn --gpu-counts 2 --batch-sizes 32 --steps 0 --epochs 20 --images 512 --lr 0.0003"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, help="of one GPU, in kernels: a trace file or a profiler's JSON")
    parser.add_argument("--results", type=Path, default=DOCS.parent / "out" / "study", help="the folder for the cells")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    recording, trace = args.recording.resolve(), args.results / "recording.msgpack"
    run("trace", "import", str(recording), "-o", str(trace))
    page = DOCS / "dataparallel_study.md"
    for name, start, grids in TABLES:
        results = str(args.results / f"{name}.jsonl")
        command = start.format(trace=shlex.quote(str(trace)))
        for grid in grids:
            words = grid.format(learning=LEARNING).split()
            run(sys.executable, str(STUDY), "grid", *words, "--results", results, "--start", command)
        picture = ("--picture", str(DOCS / "dataparallel_study.svg")) if name == "times" else ()
        table = run(sys.executable, str(STUDY), "table", "--results", results, *picture, quiet=True)
        page.write_text(with_table(page.read_text(), name, table))


def run(*command: str, quiet: bool = False) -> str:
    """Run a command to its end; what it printed, if that is not for the terminal."""
    done = subprocess.run(command, stdout=subprocess.PIPE if quiet else None, text=True, check=True)
    return done.stdout or ""


def with_table(page: str, name: str, table: str) -> str:
    """The page with this table between the two comments that name its place."""
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise SystemExit(f"dataparallel_study.md has no place for the table {name}")
    return f"{before}{begin}{table}{end}{after}"


if __name__ == "__main__":
    main()
