"""Implements the IPython commands `%%gpu v100`, `%gpu start v100` and `%gpu stop`."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from trace_replay import virtual_gpu
from trace_replay.virtual_gpu import InProcessGpu


class _MagicOptions(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%gpu: {message}")


def _options() -> argparse.ArgumentParser:
    parser = _MagicOptions(prog="%gpu", add_help=False)
    parser.add_argument("what", help="a GPU or a recording")
    parser.add_argument("--values", default="compute", choices=("compute", "recorded", "constant"))
    parser.add_argument("--clock", default="wall", choices=("wall", "virtual", "recorded"))
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--memory", default="")
    return parser


def load(shell: Any) -> None:
    def gpu(line: str, cell: str | None = None) -> object:
        if cell is not None:
            started = _start(shlex.split(line))
            try:
                result = shell.run_cell(cell)
            finally:
                started.stop()
            result.raise_error()
            print("\n".join(started.summary_lines()))
            return None
        command, *words = shlex.split(line) or [""]
        if command == "start":
            return _start(words)
        if command == "stop" and not words:
            running = virtual_gpu.running()
            if running is None:
                raise ValueError("`%gpu stop`: no virtual GPU is running")
            running.stop()
            return running
        raise ValueError("write `%gpu start NAME` or `%gpu stop`, or `%%gpu NAME` in the first line of a cell")

    shell.register_magic_function(gpu, "line_cell")


def _start(words: list[str]) -> InProcessGpu:
    return virtual_gpu.start(**vars(_options().parse_args(words)))
