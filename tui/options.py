"""What the commands can be told that have many options: a dataclass each, whose fields are its arguments and options.

    ReplayOptions(["train.py", "--lr", "0.1"], trace="v100.msgpack", speed=2.0)

`tui.cli` declares the commands with them (`tui.help.from_options`), and what carries a command out takes them as they are. An
option is called after its field, with dashes, unless names are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from traces.storage_model import CachePolicy
from tui.completion import trace_names

# Groups of the options of `trace replay`.
OUTPUT, TIME, WHAT_IF = "What comes of it", "Time and values", "What if"


def argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text)


def trace_argument(metavar: str, text: str) -> Any:
    """The shell completes it with names of traces."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=trace_names)


def flag(name: str, text: str, group: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=group)


def option(metavar: str | None, text: str, *names: str, group: str | None = None, **limits: Any) -> Any:
    """An option with a value. `limits` are its `min` and `max`, and what completes it."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=group, **limits)


JsonOption = Annotated[bool, flag("--json", "Print JSON for scripts on stdout instead of text.")]
DetailsOption = Annotated[bool, flag("--details", "All sections, not only the verdict and what to know first.")]
ScriptArgument = Annotated[list[str], argument("SCRIPT", "The script and its arguments.")]


@dataclass(frozen=True)
class ReplayOptions:
    script: ScriptArgument  # the words that would follow `python`
    trace: Annotated[
        str,
        option(
            "T", "The recording: a trace file, or a name in the library, a cell as v100/resnet50 included.",
            autocompletion=trace_names,
        ),
    ] = ""  # fmt: skip
    gpu: Annotated[
        str, option("GPU", "Take the times from the library: of what SCRIPT trains, on this GPU, as v100. In place of --trace.")
    ] = ""
    estimate: Annotated[
        bool, flag("--estimate", "With the library: estimate what nobody measured, marked, instead of stopping.")
    ] = False
    output: Annotated[
        Path | None,
        option("REPLAY.msgpack", "Keep the replay's own timeline in this file.", "-o", "--output", group=OUTPUT),
    ] = None
    report: Annotated[Path | None, option("R.json", "Write the comparison with the recording to this file.", group=OUTPUT)] = (
        None
    )
    details: DetailsOption = False
    loader: Annotated[
        Literal["real", "recorded"],
        option(None, "Waits for data: as this machine loads, or padded to the recorded waits.", group=TIME),
    ] = "real"
    strict: Annotated[bool, flag("--strict", "Stop at the first GPU work that the recording does not hold exactly.", TIME)] = (
        False
    )
    values: Annotated[
        Literal["recorded", "constant", "compute"],
        option(
            None,
            "What tensors hold: the values that were recorded, and else those of a run that makes progress; or else 1.0, 0"
            " and False (constant); or what this CPU computes (compute).",
            group=TIME,
        ),
    ] = "recorded"
    clock: Annotated[
        Literal["wall", "virtual", "recorded"],
        option(
            None,
            "Really wait for the GPU; only move the clock that the script reads (virtual); or leave this machine's"
            " own time out altogether (recorded).",
            group=TIME,
        ),
    ] = "wall"
    view: Annotated[bool, flag("--view", "Open the timeline app beside the replay, and follow it step by step.", OUTPUT)] = (
        False
    )
    speed: Annotated[float, option("X", "Make all recorded times X times as fast.", group=TIME, min=0.001, max=1000)] = 1.0
    gpu_memory: Annotated[
        str, option("SIZE[,SIZE]", "Would it fit? Give all GPUs this memory, or each its own: 7.79GiB.", group=WHAT_IF)
    ] = ""
    nproc: Annotated[
        int, option("N", "Run SCRIPT as N ranks with a GPU each, as torchrun.", group=WHAT_IF, min=0, max=1024)
    ] = 0
    gpus: Annotated[int, option("N", "Predict nn.DataParallel on N of the recorded GPU.", group=WHAT_IF, min=0, max=64)] = 0
    link_gbps: Annotated[float, option("X", "GB/s of copies from GPU to GPU. [default: as recorded]", group=WHAT_IF, min=0)] = 0
    on_gpu: Annotated[str, option("NAME", "Estimate the recording on another GPU, and replay that.", group=WHAT_IF)] = ""
    host_speed: Annotated[
        float, option("X", "A host X times as fast as the recorded one.", group=WHAT_IF, min=0.01, max=100)
    ] = 1.0


@dataclass(frozen=True)
class RecordOptions:
    script: ScriptArgument
    output: Annotated[
        Path | None, option("T.msgpack", "The file to write. [default: SCRIPT's name, here]", "-o", "--output")
    ] = None
    grain: Annotated[
        Literal["kernel", "phase"],
        option(None, "Every kernel of some steps, by torch.profiler; or only the phases of every step."),
    ] = "kernel"
    warmup: Annotated[int, option("N", "Steps that count as warm-up.", min=0)] = 3
    clean_steps: Annotated[int, option("N", "Steps timed without profiler before the profiled ones.", min=0)] = 10
    profiled_steps: Annotated[int, option("N", "Steps under torch.profiler, in the kernel grain.", min=1)] = 5
    stacks: Annotated[bool, flag("--stacks", "Also note which Python functions called each op, in the profiled steps.")] = False
    on: Annotated[str | None, option("T", "Run on the virtual GPU of this recording: a trace file or a library name.")] = None
    sweep: Annotated[
        str,
        option(
            "OPTION=VALUES",
            "Run SCRIPT once per batch size and write one file of cells for the library: '--batch-size=1..256' doubles,"
            " 8..64+8 goes in steps, 16,24,32 lists. Out of memory ends it. Records phases.",
        ),
    ] = ""


@dataclass(frozen=True)
class FitOptions:
    script: ScriptArgument
    gpus: Annotated[str, option("GPU[,GPU...]", "The cards to try, by name: v100,a100-80gb,4090.")] = ""  # "": all
    every: Annotated[bool, flag("--all", "Try all cards that are known by memory and properties.")] = False
    batch_option: Annotated[
        str,
        option(
            "--OPTION",
            "The script's option for its batch size, to find the largest: an option, the name of NAME=8, or which of its"
            " arguments it is, counted from 1. [default: a usual name among its arguments or in its text]",
        ),
    ] = ""
    verify: Annotated[bool, flag("--verify", "Run the script at each limit, and at one more.")] = False
    steps: Annotated[int, option("N", "Training steps to run.", min=2, max=1000)] = 4
    count: Annotated[int, option("N", "How many of the card the script sees.", min=1, max=64)] = 1
    nproc: Annotated[int, option("N", "Run SCRIPT as N ranks with a GPU each, as torchrun.", min=0, max=1024)] = 0
    json: JsonOption = False


@dataclass(frozen=True)
class StallsOptions:
    script: ScriptArgument
    trace: Annotated[str, option("T", "The GPU's pace: a recording, or a name in the library.", autocompletion=trace_names)] = (
        ""
    )
    gpu: Annotated[str, option("GPU", "Or take it from the library: of what SCRIPT trains, on this GPU.")] = ""
    estimate: Annotated[
        bool, flag("--estimate", "With --gpu: estimate what nobody measured there, marked, instead of stopping.")
    ] = False
    disk: Annotated[
        str, option("DISK", "A modelled disk: ssd, hdd, or a rate and a latency, 160MB/s,8ms; or own, uncached.")
    ] = ""
    cached: Annotated[str, option("SHARE", "How much of the data set a cache in front of the disk holds: 35%.")] = "0%"
    policy: Annotated[CachePolicy, option(None, "What the cache does: evict what was read longest ago, or never evict.")] = (
        CachePolicy.LRU
    )
    cores: Annotated[str, option("N,N", "Also model machines of so many cores, a worker on each: 1,2,4,8.")] = ""
    steps: Annotated[int, option("N", "End the script after so many training steps, each time.", min=8)] = 60
    json: JsonOption = False


@dataclass(frozen=True)
class PredictOptions:
    trace: Annotated[str, trace_argument("TRACE", "A trace file, or a name in the bundled library.")]
    on_gpu: Annotated[str, option("NAME", "Another GPU, by its name: A100, T4...")] = ""
    batch: Annotated[int | None, option("N", "Another batch than the recorded one.")] = None
    recorded_batch: Annotated[int | None, option("N", "The recorded batch, if the recording does not tell it.")] = None
    length: Annotated[str, option("OLD=NEW", "Another length of sequences than the recorded one.")] = ""
    gpus: Annotated[int | None, option("N", "nn.DataParallel on N GPUs.")] = None
    nproc: Annotated[int | None, option("N", "N ranks, under what --parallel says.")] = None
    parallel: Annotated[
        str | None,
        option(
            "ddp|fsdp|tp",
            "What ranks do: data parallel, fully sharded data parallel, or transformer blocks split. [default: ddp]",
        ),
    ] = None
    link_gbps: Annotated[float | None, option("X", "GB/s of the link between GPUs.")] = None
    host_speed: Annotated[float, option("X", "A host X times as fast as the recorded one.", min=0.01, max=100)] = 1.0
    sweep: Annotated[str, option("gpus,batch", "A table and a plot over gpus, nproc and batch.")] = ""
    price: Annotated[float, option("X", "What an hour of one GPU costs.", min=0)] = 0
    strict: Annotated[bool, flag("--strict", "Refuse recordings that tell no shapes of some kernels.")] = False
    output: Annotated[Path | None, option("P.msgpack", "Keep the predicted trace in this file.", "-o", "--output")] = None
    json: JsonOption = False
