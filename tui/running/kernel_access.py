"""Finds out why torch.profiler records no kernels on a machine, and suggests a fix.

    why_no_kernels(["function ... failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"])
    # Obstacle("the process lacks the privilege to record kernels ...", "run as root ...")
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Obstacle(NamedTuple):
    reason: str
    remedy: str


_UNKNOWN = Obstacle("torch.profiler reported no device work", "run trace doctor, or record with --grain phase")


def why_no_kernels(warnings: Iterable[str]) -> Obstacle:
    text = "\n".join(warnings)
    by_error = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for error in sorted(by_error, key=len, reverse=True):  # longest name first, because some names contain other names
        if error in text:
            return Obstacle(**by_error[error])
    first = next((line for line in text.splitlines() if "CUPTI" in line), "")
    return Obstacle(first, _UNKNOWN.remedy) if first else _UNKNOWN
