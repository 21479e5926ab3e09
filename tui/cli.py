"""The `trace` command: what it can be told, and how errors become exit codes. What a command does is in `tui.commands`.

    trace import worker0.pt.trace.json.gz -o v100.msgpack
    trace replay train.py --trace v100.msgpack --epochs 1

stdout is data, stderr is narration. This module imports neither torch nor numpy nor textual: `trace --help` answers at
once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer._click.exceptions import UsageError
from typer._click.globals import get_current_context
from typer.core import TyperGroup

from tui.argv import ScriptCommand
from tui.errors import line_for
from tui.figures import printable
from tui.help import CHECK, COMMON, FILES, LOOK, RUN, Commands, from_options
from tui.options import (
    DetailsOption,
    FitOptions,
    JsonOption,
    PredictOptions,
    RecordOptions,
    ReplayOptions,
    StallsOptions,
    argument,
    flag,
    option,
    trace_argument,
)
from tui.outputs import open_standard_streams
from tui.shares import share
from tui.terminal import is_verbose

app = Commands(
    epilog="""
    $ trace record train.py --epochs 1                          # where the GPU is: writes train.msgpack
    $ trace replay train.py --trace train.msgpack --epochs 1    # where none is
    $ trace view train.msgpack

    A trace is named by its file, or by its name in the bundled library. Trouble is one line on stderr and exit code 2;
    TRACE_DEBUG=1 shows the traceback.
    """,
)


TraceArgument = Annotated[str, trace_argument("TRACE", "A trace file, or a name in the bundled library.")]
SecondArgument = Annotated[str | None, trace_argument("[B]", "What to lay beside it: a replay, or a recording.")]
ToleranceOption = Annotated[str, option("SHARE", "The step-time error up to which both count as alike: 5%, or 0.05.")]


@app.callback(invoke_without_command=True)
def _trace(version: Annotated[bool, flag("--version", "Print the version and exit.")] = False) -> None:
    """Replay recorded GPU training anywhere: an unmodified PyTorch script trains at the recorded GPU's pace."""
    if version:
        from importlib.metadata import version as version_of

        print("trace", version_of("trace-replay"))
        raise typer.Exit


@app.command(
    "import",
    rich_help_panel=FILES,
    epilog="$ trace import worker0.pt.trace.json.gz -o v100.msgpack\n$ trace import profiles/    # one file per rank",
)
def import_(
    recording: Annotated[
        Path, argument("FILE|DIR", "A Kineto trace (.json or .json.gz), or a folder or archive of one per rank.")
    ],
    output: Annotated[
        Path | None, option("T.msgpack", "The file to write. [default: FILE's name, here]", "-o", "--output")
    ] = None,
    json: Annotated[bool, flag("--json", "Print what was imported as JSON on stdout.")] = False,
) -> int:
    """Make a trace file of a recording that torch.profiler wrote."""
    from tui.commands.import_ import run

    return run(recording, output, json)


@app.command(
    rich_help_panel=FILES,
    epilog="$ trace export v100.msgpack -o v100.json.gz\n$ trace export v100.msgpack replay.msgpack -o both.json.gz",
)
def export(
    first: TraceArgument,
    output: Annotated[Path, option("X.json.gz", "The file to write.", "-o", "--output")],
    second: SecondArgument = None,
    json: Annotated[bool, flag("--json", "Print the written files as JSON on stdout.")] = False,
) -> int:
    """Write a trace as a Chrome trace, for Perfetto, chrome://tracing and Holistic Trace Analysis.

    Of two traces one file: side by side as processes, with arrows between counterparts.
    """
    from tui.commands.export import run

    return run(first, second, output, json)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace info v100.msgpack --details\n$ trace info v100.msgpack --json | jq .step_median_ns",
)
def info(trace: TraceArgument, json: JsonOption = False, details: DetailsOption = False) -> int:
    """Say what is in a trace: where it comes from, steps, phases, top kernels, memory, and what it lacks."""
    from tui.commands.info import run

    return run(trace, json, details or is_verbose())


@app.command(
    rich_help_panel=LOOK,
    epilog="""
    $ trace diff v100.msgpack replay.msgpack
    $ trace diff before.msgpack after.msgpack --details
    $ trace diff v100.msgpack replay.msgpack --tolerance 2%
    $ trace diff -q main.msgpack branch.msgpack --gate budgets.toml    # in continuous integration: docs/ci.md
    """,
)
def diff(
    first: Annotated[str, argument("A", "The recording: a trace file or a name in the library.")],
    second: Annotated[str, argument("B", "What to compare with it: a replay, or a recording.")],
    json: JsonOption = False,
    tolerance: ToleranceOption = "5%",
    details: DetailsOption = False,
    gate: Annotated[
        Path | None, option("BUDGETS.toml", "Hold B against these budgets, and let them decide the exit code.")
    ] = None,
    by: Annotated[
        Literal["function"] | None,
        option(None, "List instead where the GPU's time went, by the Python function that launched it."),
    ] = None,
) -> int:
    """Say how far apart two traces are.

    Exit code 0: the same program within the tolerance, 1: beyond it or another program, 2: trouble, 3: cannot be told.
    """
    if by is not None:
        from tui.commands.diff_by import by_function

        return by_function(first, second, json)
    from tui.commands.diff import run

    return run(first, second, json, share(tolerance, "--tolerance"), details or is_verbose(), gate)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace explain one_gpu.msgpack two_gpus.msgpack\n$ trace explain p100-no-cudnn p100x2-no-cudnn --json",
)
def explain(
    first: Annotated[str, argument("A", "A trace file, or a name in the library.")],
    second: Annotated[str, argument("B", "What to compare with it.")],
    json: JsonOption = False,
) -> int:
    """Say in sentences what makes B slower or faster than A, each with its figure, the largest first."""
    from tui.commands.explain import run

    return run(first, second, json)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace predict v100.msgpack --on-gpu A100\n$ trace predict v100.msgpack --sweep gpus,batch --price 2.5",
)
@from_options(PredictOptions)
def predict(asked: PredictOptions) -> int:
    """Estimate a recording on another GPU, at another batch, on more GPUs, and say how far that can be believed."""
    from tui.commands.predict import run

    return run(asked)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace view v100.msgpack replay.msgpack\n$ trace view v100.msgpack --screenshot v100.svg --size 200x60",
)
def view(
    first: Annotated[str, argument("A", "A trace file, or a name in the bundled library.")],
    second: SecondArgument = None,
    screenshot: Annotated[Path | None, option("X.svg", "Write a picture of the app instead of opening it.")] = None,
    size: Annotated[str, option("COLUMNSxLINES", "The size of the terminal in the picture.")] = "130x40",
) -> int:
    """Look at a trace, or at a recording and its replay laid over each other, in the terminal; ? lists the keys.

    Where there is no terminal, prints what `trace info` or `trace diff` says.
    """
    from tui.commands.view import run, size_of

    return run(first, second, screenshot, size_of(size))


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace plot v100.msgpack replay.msgpack --what memory -o memory.pdf\n$ trace plot v100.msgpack --what idle",
)
def plot(
    first: Annotated[str, trace_argument("A", "A trace file, or a name in the library.")],
    second: SecondArgument = None,
    what: Annotated[Literal["steps", "phases", "idle", "memory", "kernels"], option(None, "What the figure shows.")] = "steps",
    output: Annotated[Path, option("X.svg", "The file to write: .svg, .png or .pdf.", "-o", "--output")] = Path("plot.svg"),
) -> int:
    """Draw one figure about a trace, or about two, for a paper or a slide. Needs matplotlib, the extra [plots]."""
    from tui.commands.plot import run

    return run(first, second, what, output)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace report v100.msgpack replay.msgpack -o report.html\n$ trace report v100.msgpack",
)
def report(
    first: Annotated[str, argument("A", "The recording: a trace file or a name in the library.")],
    second: SecondArgument = None,
    output: Annotated[Path, option("X.html", "The file to write.", "-o", "--output")] = Path("report.html"),
    tolerance: ToleranceOption = "5%",
) -> int:
    """Write one self-contained page about a trace, or about two side by side: verdict, charts, tables, provenance."""
    from tui.commands.report import run

    return run(first, second, output, share(tolerance, "--tolerance"))


@app.command(
    cls=ScriptCommand,
    rich_help_panel=RUN,
    epilog="""
    $ trace replay --trace v100.msgpack train.py --epochs 1
    $ trace replay --trace v100.msgpack -o replay.msgpack --details train.py
    $ trace replay --trace v100.msgpack --gpu-memory 16GiB train.py --batch-size 64
    $ trace replay --trace v100.msgpack --nproc 8 train_ddp.py
    $ trace replay --gpu v100 train.py --batch-size 32

    Options go before SCRIPT; what follows it is the script's, but for the first --trace FILE. `-m MODULE` runs a module as
    `python -m` does. After `--` comes, to the letter, what would follow `python`.
    """,
)
@from_options(ReplayOptions)
def replay(asked: ReplayOptions) -> int:
    """Run an unmodified script at the pace of a recorded GPU, on this machine, without a GPU.

    Ends with a comparison with the recording on stderr. The exit code is the script's.
    """
    from tui.commands.replay import run

    if not (asked.trace or asked.gpu):
        raise UsageError(
            "Missing option '--trace' T, the recording to replay; or --gpu NAME, times of the library", get_current_context()
        )
    return run(asked)


@app.command(
    cls=ScriptCommand,
    rich_help_panel=RUN,
    epilog="""
    $ trace record train.py --epochs 1
    $ trace record -o v100.msgpack --profiled-steps 3 -m package.train
    $ trace record --sweep "--batch-size=1..256" train.py --epochs 1

    Options go before SCRIPT; what follows it is the script's. `-m MODULE` runs a module as `python -m` does. After `--` comes,
    to the letter, what would follow `python`.
    """,
)
@from_options(RecordOptions)
def record(asked: RecordOptions) -> int:
    """Record an unmodified script on a machine with GPUs: steps, phases, kernels, memory, loading, and values read.

    Steps before and after the profiled ones are timed by CUDA events alone. The exit code is the script's.
    """
    if asked.sweep:
        from tui.commands.record_sweep import run_sweep

        return run_sweep(asked)
    from tui.commands.record import run

    return run(asked)


@app.command(
    cls=ScriptCommand,
    rich_help_panel=RUN,
    epilog="""
    $ trace fit --gpus v100,a100,t4 train.py --batch-size 64
    $ trace fit --all --json train.py --batch-size 64 | jq '.gpus[] | select(.fits) | .gpu'
    $ trace fit --gpus h100 --verify train.py
    $ trace fit --gpus l4 --nproc 4 train_ddp.py

    Options go before SCRIPT; what follows it is the script's. The exit code is 0 if the script fits on one of the cards at
    least, 1 if on none, 2 on trouble. What cannot be told: what later steps need where shapes change, what other processes hold
    on the card, and what NCCL takes.
    """,
)
@from_options(FitOptions)
def fit(asked: FitOptions) -> int:
    """Say which cards a script fits on and with what batch, without any of them: which card do I need?

    Runs the first steps on a virtual GPU with room for everything, twice, and PyTorch's allocator with each card's memory.
    """
    from tui.commands.fit import run

    if bool(asked.gpus) == asked.every:
        raise typer.BadParameter("name the cards to try, or all of them with --all", param_hint="--gpus")
    return run(asked)


library = Commands()
app.add_typer(
    library,
    name="library",
    rich_help_panel=FILES,
    help="The library of GPUs: measured times of networks by GPU and batch size, and recordings.",
    epilog="""
    $ trace library list --gpu v100
    $ trace library show v100/resnet50
    $ trace library add train.cells
    $ trace library check train.cells

    Your own entries lie in a folder of your platform's data folder, as files that can be copied and sent. TRACE_LIBRARY names
    further folders, separated as in PATH.
    """,
)

EntryArgument = Annotated[str, argument("NAME", "An entry, as v100/resnet50.")]
ShownArgument = Annotated[str, argument("NAME", "An entry, as v100/resnet50, or a file of one cell.")]


@library.command("list", epilog="$ trace library list --gpu v100 --model resnet\n$ trace library list --json")
def library_list(
    gpu: Annotated[str, option("WORD", "Entries of GPUs with this in their name, or that match a pattern as 'v*'.")] = "",
    model: Annotated[str, option("WORD", "Of networks with this in their name, or that match a pattern as 'wide*'.")] = "",
    grain: Annotated[str, option("WORD", "Of this grain: phase or kernel.")] = "",
    source: Annotated[str, option("WORD", "With this in what they say of their source.")] = "",
    json: JsonOption = False,
) -> int:
    """List what the library holds: the entries that ship with the tool, yours, and those of TRACE_LIBRARY."""
    from tui.commands.library import Filters, list_

    return list_(Filters(gpu, model, grain, source), json)


@library.command("show", epilog="$ trace library show v100/resnet50\n$ trace library show v100/resnet50 --json")
def library_show(name: ShownArgument, json: JsonOption = False) -> int:
    """Print board, software, protocol, source, measured batch sizes, where memory ran out, and what is estimated."""
    from tui.commands.library import show

    return show(name, json)


@library.command("add", epilog="$ trace library add train.cells\n$ trace library add v100.msgpack --name v100/my-net")
def library_add(
    file: Annotated[Path, argument("FILE", "A file of cells, or a recording.")],
    name: Annotated[str, option("GPU/MODEL", "What to call it. [default: its own]")] = "",
    json: JsonOption = False,
) -> int:
    """Copy a file of cells, or a recording, into your own part of the library. Nothing there is written over."""
    from tui.commands.library import add

    return add(file, name, json)


@library.command("check", epilog="$ trace library check train.cells\n$ trace library check traces/library/*.cells")
def library_check(
    files: Annotated[list[Path], argument("FILE...", "Files of cells, or recordings.")], json: JsonOption = False
) -> int:
    """Judge what someone sends: schema, personal data, noise, memory, signature, duplicates.

    Exit code 0: fit for the library, 1: something keeps it out, 2: a file cannot be read.
    """
    from tui.commands.library import check

    return check(files, json)


@library.command("remove", epilog="$ trace library remove v100/my-net")
def library_remove(name: EntryArgument, json: JsonOption = False) -> int:
    """Take one of your own entries out of the library."""
    from tui.commands.library import remove

    return remove(name, json)


@app.command(
    cls=ScriptCommand,
    rich_help_panel=LOOK,
    epilog="""
    $ trace stalls --gpu v100 train.py images --workers 4
    $ trace stalls --gpu v100 --disk ssd --cached 35% train.py images
    $ trace stalls --trace v100.msgpack --disk 160MB/s,8ms --cores 1,2,4,8 train.py images

    The script runs two or three times, in real time; the first steps live on what was prefetched. Options go before SCRIPT.
    """,
)
@from_options(StallsOptions)
def stalls(asked: StallsOptions) -> int:
    """Say how much of a script's steps is waiting for data, whether storage, preparing or pinning is why, and what ends it.

    The script's own loader runs for real, on the pace of a GPU that is not there; what it prints goes to stderr.
    """
    from tui.commands.stalls import run

    return run(asked)


@app.command(rich_help_panel=CHECK, epilog="$ trace doctor\n$ trace doctor --json")
def doctor(json: JsonOption = False) -> int:
    """Say what of the tool works on this machine, and what to do about the rest. Exit code 1: replays do not work."""
    from tui.commands.doctor import run

    return run(json)


def run(words: Sequence[str]) -> int:
    """Run one command line; return the exit code. Every error that is not a mistake of ours is one line on stderr."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    try:
        code = command.main(list(words) or ["--help"], prog_name="trace", standalone_mode=False)
        sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last moments
        return int(code or 0)
    except typer.TyperException as error:
        command_name = words[0] + " " if words and words[0] in command.commands else ""
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        if words and words[0].partition("=")[0] in COMMON:
            message = f"{words[0]} goes after the command's name, as in trace info {words[0]}"
        print(f"trace: {message}; see trace {command_name}--help", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains when it flushes
        return 1
    except Exception as error:
        line = line_for(error)
        if line is None or os.environ.get("TRACE_DEBUG") == "1":
            raise
        print(f"trace: {printable(line, colour=False)}", file=sys.stderr)
        return 2


def main() -> None:
    open_standard_streams()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
