"""Provides a command `nvidia-smi` that reports the recorded GPUs to subprocesses of the script.

    install(folder)                                     # writes folder/bin/nvidia-smi and puts it on PATH
    subprocess.check_output(["nvidia-smi", "-L"])       # GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-00000000-...)
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replayer.state import describe_gpu, in_bad_fork, started
from replayer.surfaces import nvidia_smi_command
from replayer.surfaces.nvidia_smi_command import SmiDevice, SmiFacts
from replayer.surfaces.nvml import ASSUMED_DRIVER
from traces.script.patching import patch_around, patch_item

_NAME = "nvidia-smi"
_MIB = 1 << 20


def install(folder: Path) -> None:
    commands = folder / "bin"
    facts = folder / f"{_NAME}.json"
    if str(commands) not in os.environ.get("PATH", "").split(os.pathsep):
        commands.mkdir(exist_ok=True)
        words = map(shlex.quote, (sys.executable, "-I", "-S", nvidia_smi_command.__file__, str(facts)))
        command = commands / _NAME
        command.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        patch_item(os.environ, "PATH", os.pathsep.join((str(commands), *filter(None, [os.environ.get("PATH")]))))

    def start_with_facts(start: Callable[..., Any], *args: Any, **options: Any) -> Any:
        runs_nvidia_smi = _NAME in str(options.get("args") or args[start is popen :][:1])
        if not in_bad_fork() and (runs_nvidia_smi or (started() is not None and not facts.exists())):
            _write_facts(facts)
        return start(*args, **options)

    popen = subprocess.Popen.__init__
    patch_around(os, system=start_with_facts)
    patch_around(subprocess.Popen, __init__=start_with_facts)


def _write_facts(facts: Path) -> None:
    here = describe_gpu()  # nvidia-smi does not initialize CUDA in the calling process
    devices: list[SmiDevice] = [
        {
            "name": device.name,
            "total_mib": device.memory.usage.capacity_bytes // _MIB,
            "used_mib": device.memory.usage.used_bytes // _MIB,
            "capability": ".".join(map(str, device.properties.capability)),
        }
        for device in here.devices
    ]
    smi_facts: SmiFacts = {
        "driver": here.machine.driver or ASSUMED_DRIVER, "cuda": here.machine.cuda or "", "devices": devices
    }  # fmt: skip
    part = facts.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(smi_facts), encoding="utf-8")
    part.replace(facts)
