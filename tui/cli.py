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
from typer.core import TyperGroup

from tui.argv import ScriptCommand
from tui.errors import line_for
from tui.figures import printable
from tui.outputs import open_standard_streams

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # plain help: reads well in a pipe, and rich takes longer to import than all of this
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Grain(StrEnum):
    kernel = "kernel"
    phase = "phase"


class Loader(StrEnum):
    real = "real"
    recorded = "recorded"


class Values(StrEnum):
    recorded = "recorded"
    compute = "compute"


class Clock(StrEnum):
    wall = "wall"
    virtual = "virtual"
    recorded = "recorded"


TraceArgument = Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or a name in the bundled library.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts on stdout instead of text.")]


@app.callback(invoke_without_command=True)
def _trace(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Replay recorded GPU training anywhere: an unmodified PyTorch script trains at the recorded GPU's pace."""
    if version:
        from importlib.metadata import version as version_of

        print("trace", version_of("trace-replay"))
        raise typer.Exit


@app.command("import")
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


@app.command()
def export(
    trace: TraceArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="X.json.gz", help="The file to write.")],
    json: Annotated[bool, typer.Option("--json", help="Print the written files as JSON on stdout.")] = False,
) -> int:
    """Write a trace as a Chrome trace, for Perfetto, chrome://tracing and Holistic Trace Analysis."""
    from tui.commands.export import run

    return run(trace, output, json)


@app.command()
def info(trace: TraceArgument, json: JsonOption = False) -> int:
    """Say what is in a trace: where it comes from, steps, phases, top kernels, memory, and what it lacks."""
    from tui.commands.info import run

    return run(trace, json)


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="The recording: a trace file or a name in the library.")],
    second: Annotated[str, typer.Argument(metavar="B", help="What to compare with it: a replay, or a recording.")],
    json: JsonOption = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="The step-time error up to which the two count as alike.")
    ] = 0.05,
) -> int:
    """Say how far apart two traces are. Exit code 0: within the tolerance, 1: beyond it, 2: trouble."""
    from tui.commands.diff import run

    return run(first, second, json, tolerance)


@app.command()
def view(
    first: Annotated[str, typer.Argument(metavar="A", help="A trace file, or a name in the bundled library.")],
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="What to lay over it: a replay, or a recording.")] = None,
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
    cls=ScriptCommand,
    epilog="Options go before SCRIPT; what follows it is the script's, but for the first --trace FILE. `-m MODULE` runs"
    " a module as `python -m` does. After `--` comes, to the letter, what would follow `python`.",
)
def replay(
    context: typer.Context,
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT", help="The script and its arguments."),
    ],
    trace: Annotated[
        str, typer.Option("--trace", metavar="T", help="The recording: a trace file, or a name in the bundled library.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="REPLAY.msgpack", help="Keep the replay's own timeline in this file."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="R.json", help="Write the comparison with the recording to this file."),
    ] = None,
    loader: Annotated[
        Loader,
        typer.Option("--loader", help="Waits for data: as this machine loads, or padded to the recorded waits."),
    ] = Loader.real,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first GPU work that the recording does not hold exactly.")
    ] = False,
    values: Annotated[
        Values,
        typer.Option("--values", help="What tensors hold: the values that were recorded, or what this CPU computes."),
    ] = Values.recorded,
    clock: Annotated[
        Clock,
        typer.Option(
            "--clock",
            help="Really wait for the GPU; only move the clock that the script reads (virtual); or leave this machine's"
            " own time out altogether (recorded).",
        ),
    ] = Clock.wall,
    view: Annotated[
        bool, typer.Option("--view", help="Open the timeline app beside the replay, and follow it step by step.")
    ] = False,
    speed: Annotated[
        float,
        typer.Option("--speed", metavar="X", min=0.001, max=1000, help="Make all recorded times X times as fast."),
    ] = 1.0,
    gpu_memory: Annotated[
        str,
        typer.Option(
            "--gpu-memory", metavar="SIZE[,SIZE]", help="Would it fit? Give all GPUs this memory, or each its own: 7.79GiB."
        ),
    ] = "",
    nproc: Annotated[
        int, typer.Option("--nproc", min=0, max=1024, metavar="N", help="Run SCRIPT as N ranks with a GPU each, as torchrun.")
    ] = 0,
    gpus: Annotated[
        int, typer.Option("--gpus", min=0, max=64, metavar="N", help="Predict nn.DataParallel on N of the recorded GPU.")
    ] = 0,
    link_gbps: Annotated[
        float, typer.Option("--link-gbps", min=0, metavar="X", help="GB/s of copies from GPU to GPU. [default: as recorded]")
    ] = 0,
) -> int:
    """Run an unmodified script at the pace of a recorded GPU, on this machine, without a GPU.

    Ends with a comparison with the recording on stderr. The exit code is the script's.
    """
    from traces.configuration import ReplayConfig
    from tui.commands.replay import Replay, run

    assert isinstance(context.command, ScriptCommand)
    names = context.command.option_names(context)
    how = ReplayConfig(str(loader), strict, str(values), str(clock), speed, gpus, link_gbps)
    return run(Replay(script, trace, how, gpu_memory, nproc, view, output, report), names)


@app.command(
    cls=ScriptCommand,
    epilog="Options go before SCRIPT; what follows it is the script's. `-m MODULE` runs a module as `python -m` does. After"
    " `--` comes, to the letter, what would follow `python`.",
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
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="T", help="Run on the virtual GPU of this recording: a trace file or a library name."),
    ] = None,
) -> int:
    """Record an unmodified script on a machine with GPUs: steps, phases, kernels, memory, loading, and values read.

    Steps before and after the profiled ones are timed by CUDA events alone. The exit code is the script's.
    """
    from traces.configuration import RecordConfig
    from tui.commands.record import Record, run

    assert isinstance(context.command, ScriptCommand)
    names = context.command.option_names(context)
    return run(Record(script, output, RecordConfig(str(grain), warmup, clean, profiled), on), names)


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
