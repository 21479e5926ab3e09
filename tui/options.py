"""Declares the arguments and options of commands in dataclasses, with one field for each option.

    ReplayOptions(["train.py", "--lr", "0.1"], trace="v100.msgpack", speed=2.0)

The field `gpu_memory` becomes the option `--gpu-memory`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from traces.stalls.storage_model import CachePolicy


def trace_names(incomplete: str) -> list[str]:
    from traces.library import SUFFIX, entries  # imports numpy

    names = [entry.name for entry in entries() if entry.name.startswith(incomplete)]
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    head = incomplete[: incomplete.rfind("/") + 1]
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            name = head + path.name
            if name.startswith(incomplete) and not path.name.startswith("."):
                names += [name + "/"] if path.is_dir() else [name] if SUFFIX in path.suffixes else []
    return names


NAMES_OF_TRACES = "A trace file, a torch.profiler recording, or a name from the bundled library."
# Groups of the options of `trace replay`.
OUTPUT, TIME, WHAT_IF = "Output", "Time and values", "What if"


def argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text)


def trace_argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, autocompletion=trace_names)


def flag(name: str, text: str, group: str | None = None) -> Any:
    return typer.Option(name, help=text, rich_help_panel=group)


def option(metavar: str | None, text: str, *names: str, group: str | None = None, **limits: Any) -> Any:
    """Declare an option with a value. `limits` is passed to typer."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=group, **limits)


def share(text: str, name: str) -> float:
    """Return 0.05 for "5%" or "0.05". Raise BadParameter for numbers from 1 without a percent sign."""
    number, percent = text.strip().removesuffix("%").rstrip(), text.strip().endswith("%")
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", number):
        raise typer.BadParameter(f"{text!r} is not a percentage; write 5% or 0.05", param_hint=name)
    if not percent and float(number) >= 1:
        raise typer.BadParameter(f"{number} has no unit; write {number}%, or a fraction such as 0.05", param_hint=name)
    return float(number) / (100 if percent else 1)


JsonOption = Annotated[bool, flag("--json", "Print JSON instead of text.")]
DetailsOption = Annotated[bool, flag("--details", "Print all sections.")]
EstimateOption = Annotated[
    bool, flag("--estimate", "With --gpu: estimate step times that were not measured. Estimates are marked.")
]
ScriptArgument = Annotated[list[str], argument("SCRIPT", "The script and its arguments.")]


class _RankOptions:
    nproc: int | None

    @property
    def ranks(self) -> int:
        return self.nproc or 0


@dataclass(frozen=True)
class ReplayOptions(_RankOptions):
    script: ScriptArgument  # the arguments that would follow `python`
    trace: Annotated[
        str,
        option(
            "T", "The recording: a trace file, a torch.profiler recording, or a name from the library, such as v100/resnet50.",
            autocompletion=trace_names,
        ),
    ] = ""  # fmt: skip
    gpu: Annotated[
        str, option("GPU", "Instead of --trace: use the library's measurements of SCRIPT's model on this GPU, such as v100.")
    ] = ""
    estimate: EstimateOption = False
    output: Annotated[
        Path | None,
        option("REPLAY.msgpack", "Save the replay's timeline to this file.", "-o", "--output", group=OUTPUT),
    ] = None
    report: Annotated[Path | None, option("R.json", "Save the comparison with the recording to this file.", group=OUTPUT)] = (
        None
    )
    details: DetailsOption = False
    loader: Annotated[
        Literal["real", "recorded"],
        option(
            None, "Data loading takes the time this machine needs (real), or at least the recorded time (recorded).", group=TIME
        ),
    ] = "real"
    strict: Annotated[bool, flag("--strict", "Stop at the first GPU operation that is not in the recording.", TIME)] = False
    values: Annotated[
        Literal["recorded", "constant", "compute"],
        option(
            None,
            "Values that the script reads from GPU tensors. recorded: recorded values, or plausible ones if there are none."
            " constant: recorded values, or 1.0, 0 and False. compute: real results, computed on the CPU.",
            group=TIME,
        ),
    ] = "recorded"
    clock: Annotated[
        Literal["wall", "virtual", "recorded"],
        option(
            None,
            "wall: wait in real time. virtual: do not wait, but set a simulated clock forward. recorded: like virtual, and"
            " exclude this machine's own overhead.",
            group=TIME,
        ),
    ] = "wall"
    view: Annotated[bool, flag("--view", "Open the timeline app and follow the replay step by step.", OUTPUT)] = False
    speed: Annotated[float, option("X", "Run X times as fast as recorded.", group=TIME, min=0.001, max=1000)] = 1.0
    gpu_memory: Annotated[
        str,
        option(
            "SIZE[,SIZE]",
            "Check whether the script fits into this GPU memory, such as 7.79GiB."
            " If the GPUs have different sizes, give one size per GPU.",
            group=WHAT_IF,
        ),
    ] = ""
    nproc: Annotated[
        int | None, option("N", "Run SCRIPT as N ranks with one GPU each, like torchrun.", group=WHAT_IF, min=1, max=1024)
    ] = None
    gpus: Annotated[
        int | None, option("N", "Predict nn.DataParallel on N GPUs of the recorded kind.", group=WHAT_IF, min=1, max=64)
    ] = None
    link_gbps: Annotated[
        float, option("X", "Bandwidth between GPUs in GB/s. [default: as recorded]", group=WHAT_IF, min=0, show_default=False)
    ] = 0
    slow: Annotated[
        str,
        option("rank=N:X", "Slow down a rank: its GPU work takes X times as long, such as rank=3:1.2,rank=5:2.", group=WHAT_IF),
    ] = ""
    on_gpu: Annotated[str, option("NAME", "Estimate the recording for another GPU and replay the estimate.", group=WHAT_IF)] = (
        ""
    )
    host_speed: Annotated[
        float, option("X", "Assume a host X times as fast as the recorded one.", group=WHAT_IF, min=0.01, max=100)
    ] = 1.0


@dataclass(frozen=True)
class RecordOptions:
    script: ScriptArgument
    output: Annotated[
        Path | None,
        option("T.msgpack", "The file to write. [default: named after SCRIPT, in the current folder]", "-o", "--output"),
    ] = None
    grain: Annotated[
        Literal["kernel", "phase"],
        option(
            None,
            "Record every kernel of some steps (kernel), or only the times of phases such as forward and backward (phase).",
        ),
    ] = "kernel"
    warmup: Annotated[int, option("N", "Number of warm-up steps.", min=0)] = 3
    clean_steps: Annotated[int, option("N", "Number of steps without the profiler before the profiled ones.", min=0)] = 10
    profiled_steps: Annotated[int, option("N", "Number of steps that torch.profiler records, with --grain kernel.", min=1)] = 5
    stacks: Annotated[bool, flag("--stacks", "Record the Python call stack of each op in the profiled steps.")] = False
    on: Annotated[str | None, option("T", "Run on the virtual GPU of this recording instead of a real GPU.")] = None
    sweep: Annotated[
        str,
        option(
            "OPTION=VALUES",
            "Run SCRIPT once per batch size, and write the step times to a .cells file for the library. '--batch-size=1..256'"
            " means 1, 2, 4 up to 256; 8..64+8 means 8, 16 up to 64; 16,24,32 is a list. The sweep stops when memory runs out."
            " Implies --grain phase.",
        ),
    ] = ""


@dataclass(frozen=True)
class FitOptions(_RankOptions):
    script: ScriptArgument
    gpus: Annotated[str, option("GPU[,GPU...]", "The GPUs to try: v100,a100-80gb,4090.")] = ""  # "" means all GPUs
    every: Annotated[bool, flag("--all", "Try all known GPUs.")] = False
    batch_option: Annotated[
        str,
        option(
            "--OPTION",
            "The script's option for the batch size. For arguments such as NAME=8, pass NAME. For a positional argument, pass"
            " its position (1, 2, ...)."
            " [default: a common name found in its arguments or source]",
        ),
    ] = ""
    verify: Annotated[bool, flag("--verify", "Run the script with the largest batch, and with one sample more.")] = False
    steps: Annotated[int, option("N", "Number of training steps to run.", min=2, max=1000)] = 4
    count: Annotated[int, option("N", "Number of GPUs that the script sees.", min=1, max=64)] = 1
    nproc: Annotated[int | None, option("N", "Run SCRIPT as N ranks with one GPU each, like torchrun.", min=1, max=1024)] = None
    json: JsonOption = False


@dataclass(frozen=True)
class StallsOptions:
    script: ScriptArgument
    trace: Annotated[
        str, option("T", "Where GPU times come from: a recording, or a name from the library.", autocompletion=trace_names)
    ] = ""
    gpu: Annotated[str, option("GPU", "Instead of --trace: use the library's measurements of SCRIPT's model on this GPU.")] = ""
    estimate: EstimateOption = False
    disk: Annotated[
        str,
        option(
            "DISK",
            "Model a disk: ssd, hdd, a rate and latency such as 160MB/s,8ms, or own (this machine's disk with a cold cache).",
        ),
    ] = ""
    cached: Annotated[str, option("SHARE", "Share of the data set that fits in the cache, such as 35%.")] = "0%"
    policy: Annotated[
        CachePolicy, option(None, "Cache policy: evict the least recently used (lru), or never evict (minio).")
    ] = CachePolicy.LRU
    cores: Annotated[
        str, option("N,N", "Also model machines with these numbers of cores, such as 1,2,4,8. Each core runs one worker.")
    ] = ""
    steps: Annotated[int, option("N", "Stop each run after this many training steps.", min=8)] = 60
    json: JsonOption = False


@dataclass(frozen=True)
class PredictOptions:
    trace: Annotated[str, trace_argument("TRACE", NAMES_OF_TRACES)]
    on_gpu: Annotated[str, option("NAME", "The GPU to predict for, such as A100 or T4.")] = ""
    batch: Annotated[int | None, option("N", "The batch size to predict for.")] = None
    recorded_batch: Annotated[int | None, option("N", "The recorded batch size, if it is not in the recording.")] = None
    length: Annotated[str, option("OLD=NEW", "Change the sequence length from OLD to NEW.")] = ""
    gpus: Annotated[int | None, option("N", "Predict nn.DataParallel on N GPUs.")] = None
    nproc: Annotated[int | None, option("N", "Predict training on N ranks; --parallel selects the kind of parallelism.")] = None
    parallel: Annotated[
        str | None,
        option(
            "ddp|fsdp|tp",
            "Data parallel, fully sharded data parallel, or tensor parallel (transformer blocks). [default: ddp]",
        ),
    ] = None
    link_gbps: Annotated[float | None, option("X", "Bandwidth between GPUs in GB/s.")] = None
    host_speed: Annotated[float, option("X", "Assume a host X times as fast as the recorded one.", min=0.01, max=100)] = 1.0
    sweep: Annotated[str, option("gpus,batch", "Print a table and a plot over gpus, nproc or batch.")] = ""
    price: Annotated[float, option("X", "Price of one GPU hour; adds the cost per sample.", min=0, show_default=False)] = 0
    strict: Annotated[bool, flag("--strict", "Fail if the recording lacks the tensor shapes of some kernels.")] = False
    output: Annotated[Path | None, option("P.msgpack", "Save the predicted trace to this file.", "-o", "--output")] = None
    json: JsonOption = False
