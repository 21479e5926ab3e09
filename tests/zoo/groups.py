"""Defines groups of operations. A group is a small function that takes a device, and belongs to a family.

A group uses tensors on `device` as programs do, and returns the results: tensors, numbers, and lists of both. On a virtual
GPU, a group must return the same shapes and dtypes as on the CPU, and with `--values compute` the same numbers.

    family = Family("shapes")

    @family.group
    def cat(device):
        return torch.cat([torch.ones(2, device=device)] * 3)

    @family.refused("Tensor.__dlpack__ is not emulated by the virtual GPU")
    def dlpack(device):
        return torch.utils.dlpack.to_dlpack(torch.ones(2, device=device))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

Run = Callable[[str], Any]


@dataclass(frozen=True)
class Group:
    """A group of operations. If it raises NotEmulated, `sentence` is the beginning of the message. `values` contains the
    `--values` with which the group runs."""

    name: str
    run: Run
    sentence: str = ""
    values: tuple[str, ...] = ("recorded", "compute")
    # The relative and absolute tolerance to the CPU's numbers, or None if the GPU draws different numbers.
    close: float | None = 1e-5
    needs: str = ""  # the group imports this package


class Family:
    """The groups of operations of one file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.groups: list[Group] = []

    def group(self, run: Run) -> Run:
        return self.special()(run)

    def refused(self, sentence: str, **how: Any) -> Callable[[Run], Run]:
        return self.special(sentence=sentence, **how)

    def special(self, **how: Any) -> Callable[[Run], Run]:
        def add(run: Run) -> Run:
            self.groups.append(Group(f"{self.name}.{run.__name__}", run, **how))
            return run

        return add


def all_groups() -> dict[str, Group]:
    """Return the groups of all files in families/, by name."""
    names = sorted(path.stem for path in (Path(__file__).parent / "families").glob("[a-z]*.py"))
    families = [import_module(f"tests.zoo.families.{name}").family for name in names]
    return {group.name: group for family in families for group in family.groups}
