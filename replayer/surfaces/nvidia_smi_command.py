"""Implements the `nvidia-smi` command that subprocesses of a replayed script call.

    nvidia-smi -L
    nvidia-smi --query-gpu=name,memory.used --format=csv,noheader,nounits -i 0
    nvidia-smi                                          # a table of the devices
    nvidia-smi -q -d MEMORY

The command prints "[N/A]" for temperature, power, clocks and utilization. This file runs without the replayer.
"""

import argparse
import json
import sys
import time
from typing import TypedDict

_UNKNOWN = "[N/A]"
_OPTIONS = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
for _names in (("-i", "--id"), ("-d", "--display"), ("--query-gpu",), ("--query-compute-apps", "--query-apps")):
    _OPTIONS.add_argument(*_names, default="")
for _names in (("-q", "--query"), ("-L", "--list-gpus")):
    _OPTIONS.add_argument(*_names, action="store_true")
_OPTIONS.add_argument("--format", default="csv")


class SmiDevice(TypedDict):
    name: str
    total_mib: int
    used_mib: int
    capability: str  # compute capability such as "7.0"


class SmiFacts(TypedDict):
    driver: str
    cuda: str
    devices: list[SmiDevice]


def main(words: list[str]) -> int:
    facts, *options = words
    try:
        with open(facts, encoding="utf-8") as file:
            smi_facts: SmiFacts = json.load(file)
    except FileNotFoundError:
        print("trace: under replay, nvidia-smi works only after the script has used its GPU", file=sys.stderr)
        return 2
    try:
        print("\n".join(answer(smi_facts, options)))
    except ValueError as unknown:
        print(
            f"trace: nvidia-smi under replay does not support {unknown}; it supports -L, -q, --query-gpu and -i",
            file=sys.stderr,
        )
        return 2
    return 0


def answer(facts: SmiFacts, options: list[str]) -> list[str]:
    """Return the lines to print. Raise ValueError for an unknown option."""
    parsed, unknown = _OPTIONS.parse_known_args(options)
    if unknown:
        raise ValueError(unknown[0])
    indices = map(int, filter(str.isdigit, map(str.strip, parsed.id.split(",")))) if parsed.id else range(len(facts["devices"]))
    devices = [(index, facts["devices"][index]) for index in indices if index < len(facts["devices"])]
    styles = parsed.format.split(",")
    if parsed.query_gpu:
        return _table(facts, devices, [field.strip() for field in parsed.query_gpu.split(",")], styles)
    if parsed.query_compute_apps:
        return [] if "noheader" in styles else [parsed.query_compute_apps.replace(",", ", ")]
    if parsed.list_gpus:
        return [f"GPU {index}: {device['name']} (UUID: {_uuid(index)})" for index, device in devices]
    return _memory(facts, devices) if parsed.query or parsed.display else _summary(facts, devices)


def _uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def _field(facts: SmiFacts, index: int, device: SmiDevice, field: str) -> tuple[str, str]:
    total, used = device["total_mib"], device["used_mib"]
    texts = {
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "index": str(index),
        "count": str(len(facts["devices"])),
        "name": device["name"],
        "uuid": _uuid(index),
        "driver_version": facts["driver"],
        "compute_cap": device["capability"],
        "pci.bus_id": f"00000000:{index + 1:02X}:00.0",
    }
    amounts = {"memory.total": total, "memory.used": used, "memory.free": total - used, "memory.reserved": 0}
    field = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}.get(field, field)
    return (str(amounts[field]), "MiB") if field in amounts else (texts.get(field, _UNKNOWN), "")


def _table(facts: SmiFacts, devices: list[tuple[int, SmiDevice]], fields: list[str], styles: list[str]) -> list[str]:
    units = "nounits" not in styles
    lines = []
    if "noheader" not in styles:
        lines.append(", ".join(f"{field} [MiB]" if field.startswith("memory.") else field for field in fields))
    for index, device in devices:
        found = [_field(facts, index, device, field) for field in fields]
        lines.append(", ".join(f"{text} {unit}" if unit and units else text for text, unit in found))
    return lines


def _memory(facts: SmiFacts, devices: list[tuple[int, SmiDevice]]) -> list[str]:
    lines = ["", "==============NVSMI LOG==============", "", f"Driver Version                            : {facts['driver']}"]
    lines += [f"CUDA Version                              : {facts['cuda']}", ""]
    lines.append(f"Attached GPUs                             : {len(devices)}")
    for index, device in devices:
        total, used = device["total_mib"], device["used_mib"]
        lines += [f"GPU 00000000:{index + 1:02X}:00.0", "    FB Memory Usage"]
        for name, mib in (("Total", total), ("Used", used), ("Free", total - used)):
            lines.append(f"        {name:<33} : {mib} MiB")
    return lines


def _summary(facts: SmiFacts, devices: list[tuple[int, SmiDevice]]) -> list[str]:
    rule = "+" + "-" * 77 + "+"
    head = f"NVIDIA-SMI {facts['driver']}   Driver Version: {facts['driver']}   CUDA Version: {facts['cuda']}"
    lines = [rule, f"| {head:<75} |", rule]
    for index, device in devices:
        memory = f"{device['used_mib']}MiB / {device['total_mib']}MiB"
        lines.append(f"| {index:>3}  {device['name']:<40} {memory:>24} {'N/A':>4} |")
    return [*lines, rule]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
