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
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperGroup

from traces.storage_model import CachePolicy
from tui.argv import ScriptCommand
from tui.completion import trace_names
from tui.errors import line_for
from tui.figures import printable
from tui.help import CHECK, COMMON, FILES, LOOK, RUN, Commands, Group
from tui.outputs import open_standard_streams
from tui.shares import share
from tui.terminal import is_verbose

app = Commands(
    cls=Group,
    rich_markup_mode=None,  # `tui.help` makes the pages: rich takes longer to import than all of this
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""
    $ trace record train.py --epochs 1                          # where the GPU is: writes train.msgpack
    $ trace replay train.py --trace train.msgpack --epochs 1    # where none is
    $ trace view train.msgpack

    A trace is named by its file, or by its name in the bundled library. Trouble is one line on stderr and exit code 2;
    TRACE_DEBUG=1 shows the traceback.
    """,
)


SecondArgument = Annotated[
    str | None,
    typer.Argument(metavar="[B]", help="What to lay beside it: a replay, or a recording.", autocompletion=trace_names),
]
ToleranceOption = Annotated[
    str,
    typer.Option("--tolerance", metavar="SHARE", help="The step-time error up to which both count as alike: 5%, or 0.05."),
]

# Groups of the options of `trace replay`.
OUTPUT, TIME, WHAT_IF = "What comes of it", "Time and values", "What if"


class Figure(StrEnum):
    steps = "steps"
    phases = "phases"
    idle = "idle"
    memory = "memory"
    kernels = "kernels"


class Grain(StrEnum):
    kernel = "kernel"
    phase = "phase"


class LoaderChoice(StrEnum):
    real = "real"
    recorded = "recorded"


class ValuesChoice(StrEnum):
    recorded = "recorded"
    constant = "constant"
    compute = "compute"


class ClockChoice(StrEnum):
    wall = "wall"
    virtual = "virtual"
    recorded = "recorded"


class By(StrEnum):
    function = "function"


TraceArgument = Annotated[
    str,
    typer.Argument(metavar="TRACE", help="A trace file, or a name in the bundled library.", autocompletion=trace_names),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts on stdout instead of text.")]
DetailsOption = Annotated[bool, typer.Option("--details", help="All sections, not only the verdict and what to know first.")]


@app.callback(invoke_without_command=True)
def _trace(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
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
        Path,
        typer.Argument(metavar="FILE|DIR", help="A Kineto trace (.json or .json.gz), or a folder or archive of one per rank."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="T.msgpack", help="The file to write. [default: FILE's name, here]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was imported as JSON on stdout.")] = False,
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
    output: Annotated[Path, typer.Option("-o", "--output", metavar="X.json.gz", help="The file to write.")],
    second: SecondArgument = None,
    json: Annotated[bool, typer.Option("--json", help="Print the written files as JSON on stdout.")] = False,
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
    first: Annotated[str, typer.Argument(metavar="A", help="The recording: a trace file or a name in the library.")],
    second: Annotated[str, typer.Argument(metavar="B", help="What to compare with it: a replay, or a recording.")],
    json: JsonOption = False,
    tolerance: ToleranceOption = "5%",
    details: DetailsOption = False,
    gate: Annotated[
        Path | None,
        typer.Option("--gate", metavar="BUDGETS.toml", help="Hold B against these budgets, and let them decide the exit code."),
    ] = None,
    by: Annotated[
        By | None, typer.Option("--by", help="List instead where the GPU's time went, by the Python function that launched it.")
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
    first: Annotated[str, typer.Argument(metavar="A", help="A trace file, or a name in the library.")],
    second: Annotated[str, typer.Argument(metavar="B", help="What to compare with it.")],
    json: JsonOption = False,
) -> int:
    """Say in sentences what makes B slower or faster than A, each with its figure, the largest first."""
    from tui.commands.explain import run

    return run(first, second, json)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace predict v100.msgpack --on-gpu A100\n$ trace predict v100.msgpack --sweep gpus,batch --price 2.5",
)
def predict(
    trace: TraceArgument,
    on_gpu: Annotated[str, typer.Option("--on-gpu", metavar="NAME", help="Another GPU, by its name: A100, T4...")] = "",
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Another batch than the recorded one.")] = None,
    recorded_batch: Annotated[
        int | None, typer.Option("--recorded-batch", metavar="N", help="The recorded batch, if the recording does not tell it.")
    ] = None,
    length: Annotated[
        str, typer.Option("--length", metavar="OLD=NEW", help="Another length of sequences than the recorded one.")
    ] = "",
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", help="nn.DataParallel on N GPUs.")] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", metavar="N", help="N ranks, under what --parallel says.")] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            "--parallel",
            metavar="ddp|fsdp|tp",
            help="What ranks do: data parallel, fully sharded data parallel, or transformer blocks split. [default: ddp]",
        ),
    ] = None,
    link_gbps: Annotated[float | None, typer.Option("--link-gbps", metavar="X", help="GB/s of the link between GPUs.")] = None,
    host_speed: Annotated[
        float, typer.Option("--host-speed", min=0.01, max=100, metavar="X", help="A host X times as fast as the recorded one.")
    ] = 1.0,
    sweep: Annotated[
        str, typer.Option("--sweep", metavar="gpus,batch", help="A table and a plot over gpus, nproc and batch.")
    ] = "",
    price: Annotated[float, typer.Option("--price", min=0, metavar="X", help="What an hour of one GPU costs.")] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse recordings that tell no shapes of some kernels.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="P.msgpack", help="Keep the predicted trace in this file.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Estimate a recording on another GPU, at another batch, on more GPUs, and say how far that can be believed."""
    from replayer.prediction.conditions import conditions_of
    from tui.commands.predict import Predict, run

    swept = "nproc" in sweep
    asked = conditions_of(on_gpu, batch, length, gpus, nproc, link_gbps, host_speed, recorded_batch, parallel, swept)
    return run(Predict(trace, asked, strict, sweep, price, output), json)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace view v100.msgpack replay.msgpack\n$ trace view v100.msgpack --screenshot v100.svg --size 200x60",
)
def view(
    first: Annotated[str, typer.Argument(metavar="A", help="A trace file, or a name in the bundled library.")],
    second: SecondArgument = None,
    screenshot: Annotated[
        Path | None,
        typer.Option("--screenshot", metavar="X.svg", help="Write a picture of the app instead of opening it."),
    ] = None,
    size: Annotated[
        str, typer.Option("--size", metavar="COLUMNSxLINES", help="The size of the terminal in the picture.")
    ] = "130x40",
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
    first: Annotated[
        str, typer.Argument(metavar="A", help="A trace file, or a name in the library.", autocompletion=trace_names)
    ],
    second: SecondArgument = None,
    what: Annotated[Figure, typer.Option("--what", help="What the figure shows.")] = Figure.steps,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="X.svg", help="The file to write: .svg, .png or .pdf.")
    ] = Path("plot.svg"),
) -> int:
    """Draw one figure about a trace, or about two, for a paper or a slide. Needs matplotlib, the extra [plots]."""
    from tui.commands.plot import run

    return run(first, second, str(what), output)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace report v100.msgpack replay.msgpack -o report.html\n$ trace report v100.msgpack",
)
def report(
    first: Annotated[str, typer.Argument(metavar="A", help="The recording: a trace file or a name in the library.")],
    second: SecondArgument = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="X.html", help="The file to write.")] = Path("report.html"),
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
def replay(
    context: typer.Context,
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="The script and its arguments."),
    ],
    trace: Annotated[
        str,
        typer.Option(
            "--trace",
            metavar="T",
            help="The recording: a trace file, or a name in the library, a cell as v100/resnet50 included.",
            autocompletion=trace_names,
        ),
    ] = "",
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            metavar="GPU",
            help="Take the times from the library: of what SCRIPT trains, on this GPU, as v100. In place of --trace.",
        ),
    ] = "",
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="With the library: estimate what nobody measured, marked, instead of stopping."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="REPLAY.msgpack",
            rich_help_panel=OUTPUT,
            help="Keep the replay's own timeline in this file.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="R.json", rich_help_panel=OUTPUT, help="Write the comparison with the recording to this file."
        ),
    ] = None,
    details: DetailsOption = False,
    loader: Annotated[
        LoaderChoice,
        typer.Option(
            "--loader", rich_help_panel=TIME, help="Waits for data: as this machine loads, or padded to the recorded waits."
        ),
    ] = LoaderChoice.real,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", rich_help_panel=TIME, help="Stop at the first GPU work that the recording does not hold exactly."
        ),
    ] = False,
    values: Annotated[
        ValuesChoice,
        typer.Option(
            "--values",
            rich_help_panel=TIME,
            help="What tensors hold: the values that were recorded, and else those of a run that makes progress; or else 1.0, 0"
            " and False (constant); or what this CPU computes (compute).",
        ),
    ] = ValuesChoice.recorded,
    clock: Annotated[
        ClockChoice,
        typer.Option(
            "--clock",
            rich_help_panel=TIME,
            help="Really wait for the GPU; only move the clock that the script reads (virtual); or leave this machine's"
            " own time out altogether (recorded).",
        ),
    ] = ClockChoice.wall,
    view: Annotated[
        bool,
        typer.Option(
            "--view", rich_help_panel=OUTPUT, help="Open the timeline app beside the replay, and follow it step by step."
        ),
    ] = False,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", metavar="X", min=0.001, max=1000, rich_help_panel=TIME, help="Make all recorded times X times as fast."
        ),
    ] = 1.0,
    gpu_memory: Annotated[
        str,
        typer.Option(
            "--gpu-memory",
            metavar="SIZE[,SIZE]",
            rich_help_panel=WHAT_IF,
            help="Would it fit? Give all GPUs this memory, or each its own: 7.79GiB.",
        ),
    ] = "",
    nproc: Annotated[
        int,
        typer.Option(
            "--nproc",
            min=0,
            max=1024,
            metavar="N",
            rich_help_panel=WHAT_IF,
            help="Run SCRIPT as N ranks with a GPU each, as torchrun.",
        ),
    ] = 0,
    gpus: Annotated[
        int,
        typer.Option(
            "--gpus",
            min=0,
            max=64,
            metavar="N",
            rich_help_panel=WHAT_IF,
            help="Predict nn.DataParallel on N of the recorded GPU.",
        ),
    ] = 0,
    link_gbps: Annotated[
        float,
        typer.Option(
            "--link-gbps",
            min=0,
            metavar="X",
            rich_help_panel=WHAT_IF,
            help="GB/s of copies from GPU to GPU. [default: as recorded]",
        ),
    ] = 0,
    on_gpu: Annotated[
        str,
        typer.Option(
            "--on-gpu", metavar="NAME", rich_help_panel=WHAT_IF, help="Estimate the recording on another GPU, and replay that."
        ),
    ] = "",
    host_speed: Annotated[
        float,
        typer.Option(
            "--host-speed",
            min=0.01,
            max=100,
            metavar="X",
            rich_help_panel=WHAT_IF,
            help="A host X times as fast as the recorded one.",
        ),
    ] = 1.0,
) -> int:
    """Run an unmodified script at the pace of a recorded GPU, on this machine, without a GPU.

    Ends with a comparison with the recording on stderr. The exit code is the script's.
    """
    from traces.configuration import ReplayConfig
    from tui.commands.replay import Replay, run

    assert isinstance(context.command, ScriptCommand)
    names = context.command.option_names(context)
    how = ReplayConfig(str(loader), strict, str(values), str(clock), speed, gpus, link_gbps)
    if not (trace or gpu):
        raise UsageError("Missing option '--trace' T, the recording to replay; or --gpu NAME, times of the library", context)
    conditions = None
    if on_gpu or host_speed != 1 or link_gbps:
        from replayer.prediction.conditions import Conditions

        conditions = Conditions(on_gpu, link_gbps=link_gbps, host_speed=host_speed)  # which refuses what cannot be
        conditions = conditions if on_gpu or host_speed != 1 else None
    what = Replay(
        script, trace, how, gpu_memory, nproc, view, output, report, details or is_verbose(), gpu, estimate, conditions
    )
    return run(what, names)


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
def record(
    context: typer.Context,
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="The script and its arguments."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="T.msgpack", help="The file to write. [default: SCRIPT's name, here]"),
    ] = None,
    grain: Annotated[
        Grain,
        typer.Option("--grain", help="Every kernel of some steps, by torch.profiler; or only the phases of every step."),
    ] = Grain.kernel,
    warmup: Annotated[int, typer.Option("--warmup", min=0, metavar="N", help="Steps that count as warm-up.")] = 3,
    clean: Annotated[
        int, typer.Option("--clean-steps", min=0, metavar="N", help="Steps timed without profiler before the profiled ones.")
    ] = 10,
    profiled: Annotated[
        int, typer.Option("--profiled-steps", min=1, metavar="N", help="Steps under torch.profiler, in the kernel grain.")
    ] = 5,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also note which Python functions called each op, in the profiled steps.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="T", help="Run on the virtual GPU of this recording: a trace file or a library name."),
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(
            "--sweep",
            metavar="OPTION=VALUES",
            help="Run SCRIPT once per batch size and write one file of cells for the library: '--batch-size=1..256' doubles,"
            " 8..64+8 goes in steps, 16,24,32 lists. Out of memory ends it. Records phases.",
        ),
    ] = "",
) -> int:
    """Record an unmodified script on a machine with GPUs: steps, phases, kernels, memory, loading, and values read.

    Steps before and after the profiled ones are timed by CUDA events alone. The exit code is the script's.
    """
    from traces.configuration import RecordConfig
    from tui.commands.record import Record, run

    assert isinstance(context.command, ScriptCommand)
    names = context.command.option_names(context)
    if sweep:
        from tui.commands.record_sweep import run_sweep

        return run_sweep(Record(script, output, RecordConfig("phase", warmup, clean, profiled), on), sweep, names)
    return run(Record(script, output, RecordConfig(str(grain), warmup, clean, profiled, stacks), on), names)


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
def fit(
    context: typer.Context,
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT", help="The script and its arguments.")],
    gpus: Annotated[
        str,
        typer.Option("--gpus", metavar="GPU[,GPU...]", help="The cards to try, by name: v100,a100-80gb,4090."),
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Try all cards that are known by memory and properties.")] = False,
    batch_option: Annotated[
        str,
        typer.Option(
            "--batch-option",
            metavar="--OPTION",
            help="The script's option for its batch size, to find the largest: an option, the name of NAME=8, or which of its"
            " arguments it is, counted from 1. [default: a usual name among its arguments or in its text]",
        ),
    ] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Run the script at each limit, and at one more.")] = False,
    steps: Annotated[int, typer.Option("--steps", min=2, max=1000, metavar="N", help="Training steps to run.")] = 4,
    count: Annotated[
        int, typer.Option("--count", min=1, max=64, metavar="N", help="How many of the card the script sees.")
    ] = 1,
    nproc: Annotated[
        int, typer.Option("--nproc", min=0, max=1024, metavar="N", help="Run SCRIPT as N ranks with a GPU each, as torchrun.")
    ] = 0,
    json: JsonOption = False,
) -> int:
    """Say which cards a script fits on and with what batch, without any of them: which card do I need?

    Runs the first steps on a virtual GPU with room for everything, twice, and PyTorch's allocator with each card's memory.
    """
    from tui.commands.fit import Fit, run

    if bool(gpus) == every:
        raise typer.BadParameter("name the cards to try, or all of them with --all", param_hint="--gpus")
    return run(Fit(script, gpus, batch_option, max(count, nproc), nproc, steps, verify, json))


library = Commands(cls=Group, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
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

EntryArgument = Annotated[str, typer.Argument(metavar="NAME", help="An entry, as v100/resnet50.")]


@library.command("list", epilog="$ trace library list --gpu v100 --model resnet\n$ trace library list --json")
def library_list(
    gpu: Annotated[str, typer.Option("--gpu", metavar="WORD", help="Entries of GPUs with this in their name.")] = "",
    model: Annotated[str, typer.Option("--model", metavar="WORD", help="Of networks with this in their name.")] = "",
    grain: Annotated[str, typer.Option("--grain", metavar="WORD", help="Of this grain: phase or kernel.")] = "",
    source: Annotated[str, typer.Option("--source", metavar="WORD", help="With this in what they say of their source.")] = "",
    json: JsonOption = False,
) -> int:
    """List what the library holds: the entries that ship with the tool, yours, and those of TRACE_LIBRARY."""
    from tui.commands.library import Filters, list_

    return list_(Filters(gpu, model, grain, source), json)


@library.command("show", epilog="$ trace library show v100/resnet50\n$ trace library show v100/resnet50 --json")
def library_show(name: EntryArgument, json: JsonOption = False) -> int:
    """Print board, software, protocol, source, measured batch sizes, where memory ran out, and what is estimated."""
    from tui.commands.library import show

    return show(name, json)


@library.command("add", epilog="$ trace library add train.cells\n$ trace library add v100.msgpack --name v100/my-net")
def library_add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of cells, or a recording.")],
    name: Annotated[str, typer.Option("--name", metavar="GPU/MODEL", help="What to call it. [default: its own]")] = "",
    json: JsonOption = False,
) -> int:
    """Copy a file of cells, or a recording, into your own part of the library. Nothing there is written over."""
    from tui.commands.library import add

    return add(file, name, json)


@library.command("check", epilog="$ trace library check train.cells\n$ trace library check traces/library/*.cells")
def library_check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files of cells, or recordings.")],
    json: JsonOption = False,
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
def stalls(
    context: typer.Context,
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT", help="The script and its arguments.")],
    trace: Annotated[
        str,
        typer.Option(
            "--trace", metavar="T", help="The GPU's pace: a recording, or a name in the library.", autocompletion=trace_names
        ),
    ] = "",
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="GPU", help="Or take it from the library: of what SCRIPT trains, on this GPU.")
    ] = "",
    estimate: Annotated[
        bool, typer.Option("--estimate", help="With --gpu: estimate what nobody measured there, marked, instead of stopping.")
    ] = False,
    disk: Annotated[
        str,
        typer.Option(
            "--disk", metavar="DISK", help="A modelled disk: ssd, hdd, or a rate and a latency, 160MB/s,8ms; or own, uncached."
        ),
    ] = "",
    cached: Annotated[
        str, typer.Option("--cached", metavar="SHARE", help="How much of the data set a cache in front of the disk holds: 35%.")
    ] = "0%",
    policy: Annotated[
        CachePolicy, typer.Option("--policy", help="What the cache does: evict what was read longest ago, or never evict.")
    ] = CachePolicy.LRU,
    cores: Annotated[
        str, typer.Option("--cores", metavar="N,N", help="Also model machines of so many cores, a worker on each: 1,2,4,8.")
    ] = "",
    steps: Annotated[
        int, typer.Option("--steps", min=8, metavar="N", help="End the script after so many training steps, each time.")
    ] = 60,
    json: JsonOption = False,
) -> int:
    """Say how much of a script's steps is waiting for data, whether storage, preparing or pinning is why, and what ends it.

    The script's own loader runs for real, on the pace of a GPU that is not there; what it prints goes to stderr.
    """
    from tui.commands.stalls import StallsRun, counts_of, run

    assert isinstance(context.command, ScriptCommand)
    asked = StallsRun(
        script, trace, gpu, estimate, disk, share(cached, "--cached"), policy, counts_of(cores), steps, json
    )
    return run(asked, context.command.option_names(context))


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
