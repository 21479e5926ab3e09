"""Defines the commands and options of the `trace` command line.

    trace import worker0.pt.trace.json.gz -o v100.msgpack
    trace replay train.py --trace v100.msgpack --epochs 1

`trace --help` is fast, because this module imports neither torch nor numpy.
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

from traces.comparison.thresholds import DEFAULT_TOLERANCE
from tui.argv import ScriptCommand
from tui.errors import line_for
from tui.formatting import printable
from tui.help import CHECK, COMMON, FILES, LOOK, RUN, Commands, from_options
from tui.options import (
    NAMES_OF_TRACES,
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
    share,
    trace_argument,
)
from tui.outputs import open_standard_streams
from tui.terminal import is_verbose

app = Commands(
    epilog="""
    $ trace record train.py --epochs 1                          # on a machine with a GPU: writes train.msgpack
    $ trace replay train.py --trace train.msgpack --epochs 1    # on any machine
    $ trace view train.msgpack

    Where a command needs a trace, you can pass a trace file, a torch.profiler recording, or a name from the bundled library.
    Errors are one line on stderr with exit code 2; set TRACE_DEBUG=1 to see the traceback.
    """,
)


TraceArgument = Annotated[str, trace_argument("TRACE", NAMES_OF_TRACES)]
SecondArgument = Annotated[str | None, trace_argument("[B]", "A second trace to compare with: a replay or a recording.")]
ToleranceOption = Annotated[str, option("SHARE", "Largest difference that still counts as the same: 5% or 0.05.")]


@app.callback(invoke_without_command=True)
def _trace(version: Annotated[bool, flag("--version", "Print the version and exit.")] = False) -> None:
    """Record GPU training once, then replay the unmodified PyTorch script anywhere, without a GPU."""
    if version:
        from importlib.metadata import version as version_of

        print("trace", version_of("trace-replay"))
        raise typer.Exit


@app.command(
    "import",
    rich_help_panel=FILES,
    epilog="$ trace import worker0.pt.trace.json.gz -o v100.msgpack\n"
    "$ trace import profiles/    # one file per rank\n$ trace import rank0.json rank1.json",
)
def import_(
    recordings: Annotated[
        list[Path],
        argument("FILE|DIR", "A torch.profiler trace (.json or .json.gz), or one per rank: files, a folder or an archive."),
    ],
    output: Annotated[
        Path | None,
        option("T.msgpack", "The file to write. [default: the first file's name, in the current folder]", "-o", "--output"),
    ] = None,
    json: Annotated[bool, flag("--json", "Print a summary of the import as JSON.")] = False,
) -> int:
    """Convert a torch.profiler recording to a trace file."""
    from tui.commands.import_ import run

    return run(recordings, output, json)


@app.command(
    rich_help_panel=FILES,
    epilog="$ trace export v100.msgpack -o v100.json.gz\n$ trace export v100.msgpack replay.msgpack -o both.json.gz",
)
def export(
    first: TraceArgument,
    output: Annotated[Path, option("X.json.gz", "The file to write.", "-o", "--output")],
    second: SecondArgument = None,
    all_ranks: Annotated[bool, flag("--all-ranks", "Write all ranks, even if more than 8 ranks are similar.")] = False,
    json: Annotated[bool, flag("--json", "Print the names of the written files as JSON.")] = False,
) -> int:
    """Export a trace for Perfetto, chrome://tracing and Holistic Trace Analysis.

    If two traces are given, the file shows each trace as a process, and arrows connect matching kernels.
    """
    from tui.commands.export import run

    return run(first, second, output, json, all_ranks=all_ranks)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace info v100.msgpack --details\n$ trace info v100.msgpack --json | jq .step_median_ns",
)
def info(trace: TraceArgument, json: JsonOption = False, details: DetailsOption = False) -> int:
    """Summarize a trace: origin, steps, phases, top kernels, memory, and missing data."""
    from tui.commands.info import run

    return run(trace, json, details or is_verbose())


@app.command(
    rich_help_panel=LOOK,
    epilog="""
    $ trace diff v100.msgpack replay.msgpack
    $ trace diff before.msgpack after.msgpack --details
    $ trace diff v100.msgpack replay.msgpack --tolerance 2%
    $ trace diff -q main.msgpack branch.msgpack --gate budgets.toml    # in CI, see docs/ci.md
    $ trace diff main.msgpack branch.msgpack --markdown --junit diff.xml
    """,
)
def diff(
    first: Annotated[str, trace_argument("A", "The recording: a trace file, or a name from the library.")],
    second: Annotated[str, trace_argument("B", "The trace to compare with it: a replay or another recording.")],
    json: JsonOption = False,
    tolerance: ToleranceOption = f"{DEFAULT_TOLERANCE:.0%}",
    details: DetailsOption = False,
    gate: Annotated[Path | None, option("BUDGETS.toml", "Check B against the limits in this file (exit code 0: met).")] = None,
    markdown: Annotated[bool, flag("--markdown", "Print Markdown, for example for a build summary.")] = False,
    junit: Annotated[Path | None, option("FILE.xml", "Also write JUnit XML, with one test for each budget.")] = None,
    by: Annotated[
        Literal["function"] | None,
        option(None, "Compare the GPU time of each Python function instead of the programs and steps."),
    ] = None,
) -> int:
    """Compare two traces.

    Exit codes: 0 if program and times agree, 1 if the program or the times differ, 2 for errors, 3 if undecided.
    """
    if by is not None:
        from tui.commands.diff import by_function

        return by_function(first, second, json)
    from tui.commands.diff import run

    return run(first, second, json, share(tolerance, "--tolerance"), details or is_verbose(), gate, markdown, junit)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace explain one_gpu.msgpack two_gpus.msgpack\n$ trace explain p100-no-cudnn p100x2-no-cudnn --json",
)
def explain(
    first: Annotated[str, trace_argument("A", NAMES_OF_TRACES)],
    second: Annotated[str, trace_argument("B", "The trace to compare with it.")],
    json: JsonOption = False,
    details: Annotated[bool, flag("--details", "Also print idle times, and the kernels of each op.")] = False,
) -> int:
    """Explain why trace B is slower or faster than trace A. The largest effects come first."""
    from tui.commands.explain import run

    return run(first, second, json, details or is_verbose())


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace predict v100.msgpack --on-gpu A100\n$ trace predict v100.msgpack --sweep gpus,batch --price 2.5",
)
@from_options(PredictOptions)
def predict(options: PredictOptions) -> int:
    """Predict a recording's step time for another GPU, batch size or number of GPUs, with an error estimate."""
    from tui.commands.predict import run

    return run(options)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace view v100.msgpack replay.msgpack\n$ trace view v100.msgpack --screenshot v100.svg --size 200x60",
)
def view(
    first: Annotated[str, trace_argument("A", NAMES_OF_TRACES)],
    second: SecondArgument = None,
    screenshot: Annotated[Path | None, option("X.svg", "Save a picture of the app instead of opening it.")] = None,
    size: Annotated[str, option("COLUMNSxLINES", "The size of the terminal in the picture.")] = "130x40",
) -> int:
    """Show one or two traces as timelines in the terminal. Press ? to list the keys.

    If stdout is not a terminal, the command prints text instead: the output of `trace info` for one trace, or `trace diff` for
    two traces.
    """
    from tui.commands.view import run, size_of

    return run(first, second, screenshot, size_of(size))


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace plot v100.msgpack replay.msgpack --what memory -o memory.svg\n$ trace plot v100.msgpack --what idle",
)
def plot(
    first: Annotated[str, trace_argument("A", NAMES_OF_TRACES)],
    second: SecondArgument = None,
    what: Annotated[Literal["steps", "phases", "idle", "memory", "kernels"], option(None, "What the figure shows.")] = "steps",
    output: Annotated[Path, option("X.svg", "The file to write.", "-o", "--output")] = Path("plot.svg"),
) -> int:
    """Write a chart of one or two traces to an SVG file."""
    from tui.commands.plot import run

    return run(first, second, what, output)


@app.command(
    rich_help_panel=LOOK,
    epilog="$ trace report v100.msgpack replay.msgpack -o report.html\n$ trace report v100.msgpack",
)
def report(
    first: Annotated[str, trace_argument("A", "The recording: a trace file, or a name from the library.")],
    second: SecondArgument = None,
    output: Annotated[Path, option("X.html", "The file to write.", "-o", "--output")] = Path("report.html"),
    tolerance: ToleranceOption = f"{DEFAULT_TOLERANCE:.0%}",
    all_ranks: Annotated[bool, flag("--all-ranks", "Include all ranks, even if more than 8 ranks are similar.")] = False,
) -> int:
    """Write a self-contained HTML report about one or two traces."""
    from tui.commands.report import run

    return run(first, second, output, share(tolerance, "--tolerance"), all_ranks=all_ranks)


@app.command(
    cls=ScriptCommand,
    rich_help_panel=RUN,
    epilog="""
    $ trace replay --trace v100.msgpack train.py --epochs 1
    $ trace replay --trace v100.msgpack -o replay.msgpack --details train.py
    $ trace replay --trace v100.msgpack --gpu-memory 16GiB train.py --batch-size 64
    $ trace replay --trace v100.msgpack --nproc 8 train_ddp.py
    $ trace replay --gpu v100 train.py --batch-size 32

    Put options before SCRIPT; everything after it is passed to the script, except the first --trace FILE. `-m MODULE` and
    `-c CODE` work as in `python`. After `--`, write exactly what you would write after `python`.
    """,
)
@from_options(ReplayOptions)
def replay(options: ReplayOptions) -> int:
    """Run an unmodified script on this machine without a GPU, at the speed of a recorded GPU.

    When the script ends, compare the replay with its recording and print the comparison on stderr. The script's exit code is
    passed through.
    """
    from tui.commands.replay import run

    if not (options.trace or options.gpu):
        message = "Missing option '--trace' T (the recording to replay) or '--gpu' NAME (a GPU from the library)"
        if any(word.partition("=")[0] == "--gpu" for word in options.script):
            message = "--gpu was passed to the script; put options of trace replay before the script"
        raise UsageError(message, get_current_context())
    return run(options)


@app.command(
    cls=ScriptCommand,
    rich_help_panel=RUN,
    epilog="""
    $ trace record train.py --epochs 1
    $ trace record -o v100.msgpack --profiled-steps 3 -m package.train
    $ trace record --sweep "--batch-size=1..256" train.py --epochs 1

    Put options before SCRIPT; everything after it is passed to the script. `-m MODULE` and `-c CODE` work as in
    `python`. After `--`, write exactly what you would write after `python`.
    """,
)
@from_options(RecordOptions)
def record(options: RecordOptions) -> int:
    """Record the steps, phases, kernels, memory and data loading of an unmodified script on a machine with GPUs.

    A few training steps are recorded by torch.profiler. The steps without torch.profiler are timed with CUDA events. The
    script's exit code is passed through.
    """
    if options.sweep:
        from tui.commands.record_sweep import run_sweep

        return run_sweep(options)
    from tui.commands.record import run

    return run(options)


@app.command(
    cls=ScriptCommand,
    rich_help_panel=RUN,
    epilog="""
    $ trace fit --gpus v100,a100,t4 train.py --batch-size 64
    $ trace fit --all --json train.py --batch-size 64 | jq '.gpus[] | select(.fits) | .gpu'
    $ trace fit --gpus h100 --verify train.py
    $ trace fit --gpus l4 --nproc 4 train_ddp.py

    Put options before SCRIPT; everything after it is passed to the script. Exit codes: 0 the script fits on at least one GPU,
    1 it fits on none, 2 error. Not included: growth in later steps with other shapes, other processes on the GPU, and NCCL's
    buffers.
    """,
)
@from_options(FitOptions)
def fit(options: FitOptions) -> int:
    """Find out which GPUs a script fits on, and the largest batch size for each.

    Run the script's first steps with two batch sizes on a virtual GPU with unlimited memory. Then repeat the script's memory
    requests on a virtual GPU of each kind, such as an A100, to find out whether they succeed.
    """
    from tui.commands.fit import run

    if bool(options.gpus) == options.every:
        raise typer.BadParameter("name the GPUs to try, or use --all", param_hint="--gpus")
    return run(options)


gate_files = Commands()
app.add_typer(
    gate_files,
    name="gate",
    rich_help_panel=FILES,
    help="Write limits on step time and memory to a file for `trace diff --gate`.",
    epilog="$ trace gate init v100.msgpack -o budgets.toml",
)


@gate_files.command("init", epilog="$ trace gate init v100.msgpack -o budgets.toml")
def gate_init(
    recording: Annotated[str, trace_argument("RECORDING", NAMES_OF_TRACES)],
    output: Annotated[Path, option("BUDGETS.toml", "The file to write.", "-o", "--output")] = Path("budgets.toml"),
) -> int:
    """Write a file with limits on step time and memory for replays of a recording.

    The limits are slightly higher than the step time and the memory of the recording.
    """
    from tui.commands.gate import init

    return init(recording, output)


library = Commands()
app.add_typer(
    library,
    name="library",
    rich_help_panel=FILES,
    help="Show or extend the library of recordings and measured step times of networks on several GPUs.",
    epilog="""
    $ trace library list --gpu v100
    $ trace library show v100/resnet50
    $ trace library add train.cells
    $ trace library check train.cells

    Your own entries are files in your platform's data folder; you can copy and send them. TRACE_LIBRARY names more folders,
    separated as in PATH.
    """,
)

EntryArgument = Annotated[str, argument("NAME", "An entry, such as v100/resnet50.")]
ShownArgument = Annotated[str, argument("NAME", "An entry, such as v100/resnet50, or a file with one entry.")]


@library.command("list", epilog="$ trace library list --gpu v100 --model resnet\n$ trace library list --json")
def library_list(
    gpu: Annotated[str, option("WORD", "Only GPUs with this word in their name, or with a name like 'v*'.")] = "",
    model: Annotated[str, option("WORD", "Only networks with this word in their name, or with a name like 'wide*'.")] = "",
    grain: Annotated[str, option("WORD", "Only entries with times of phases (phase), or with times of kernels (kernel).")] = "",
    source: Annotated[str, option("WORD", "Only entries with this word in their source.")] = "",
    json: JsonOption = False,
) -> int:
    """List the models and recordings in the bundled library, in your own library and in the folders of TRACE_LIBRARY."""
    from tui.commands.library import Filters, list_

    return list_(Filters(gpu, model, grain, source), json)


@library.command("show", epilog="$ trace library show v100/resnet50\n$ trace library show v100/resnet50 --json")
def library_show(name: ShownArgument, json: JsonOption = False) -> int:
    """Show the measurements of one model in the library: GPU, software, source, batch sizes, memory limit, and which values are
    estimates."""
    from tui.commands.library import show

    return show(name, json)


@library.command("add", epilog="$ trace library add train.cells\n$ trace library add v100.msgpack --name v100/my-net")
def library_add(
    file: Annotated[Path, argument("FILE", "A file of measured entries (.cells), or a recording.")],
    name: Annotated[str, option("GPU/MODEL", "The name of the entry. [default: from the file]")] = "",
    json: JsonOption = False,
) -> int:
    """Copy a file of measurements (.cells) or a recording into your own library. Existing entries are never overwritten."""
    from tui.commands.library import add

    return add(file, name, json)


@library.command("check", epilog="$ trace library check train.cells\n$ trace library check traces/library/*.cells")
def library_check(
    files: Annotated[list[Path], argument("FILE...", "Files of measured entries (.cells), or recordings.")],
    json: JsonOption = False,
) -> int:
    """Check whether `trace library add` would accept files of measurements or recordings.

    Exit codes: 0 if all files are accepted, 1 if a file is rejected, 2 if a file cannot be read.
    """
    from tui.commands.library import check

    return check(files, json)


@library.command("remove", epilog="$ trace library remove v100/my-net")
def library_remove(name: EntryArgument, json: JsonOption = False) -> int:
    """Remove one of your own entries."""
    from tui.commands.library import remove

    return remove(name, json)


@app.command(
    cls=ScriptCommand,
    rich_help_panel=LOOK,
    epilog="""
    $ trace stalls --gpu v100 train.py images --workers 4
    $ trace stalls --gpu v100 --disk ssd --cached 35% train.py images
    $ trace stalls --trace v100.msgpack --disk 160MB/s,8ms --cores 1,2,4,8 train.py images

    The script runs two or three times in real time. The first steps are not measured, because their data was loaded in
    advance. Put options before SCRIPT.
    """,
)
@from_options(StallsOptions)
def stalls(options: StallsOptions) -> int:
    """Measure how long a script waits for data, find the cause (storage, preprocessing or pinning), and suggest a fix.

    The data loader runs as usual, but no kernels run. GPU times come from a recording, or from trace-replay's library of
    measurements. The script's output goes to stderr.
    """
    from tui.commands.stalls import run

    return run(options)


@app.command(rich_help_panel=CHECK, epilog="$ trace doctor\n$ trace doctor --json")
def doctor(json: JsonOption = False) -> int:
    """Check what works on this machine, and suggest fixes for problems. The exit code is 1 if this machine cannot run
    replays."""
    from tui.commands.doctor import run

    return run(json)


def run(words: Sequence[str]) -> int:
    """Run one command line, and return the exit code. Expected errors become one line on stderr."""
    command = typer.main.get_command(app.with_command(words[0]) if words else app)
    assert isinstance(command, TyperGroup)
    try:
        code = command.main(list(words) or ["--help"], prog_name="trace", standalone_mode=False)
        sys.stdout.flush()  # detects a closed pipe here, and not when the interpreter exits
        return int(code or 0)
    except typer.TyperException as error:
        context = error.ctx if isinstance(error, UsageError) else None
        command_path = context.command_path if context is not None else "trace"
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        if words and words[0].partition("=")[0] in COMMON:
            message = f"{words[0]} goes after the command's name, as in trace info {words[0]}"
        print(f"trace: {message}; see {command_path} --help", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Redirect stdout to /dev/null, because Python would otherwise fail when it flushes the broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
