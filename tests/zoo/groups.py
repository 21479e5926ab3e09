"""Groups of operations: small functions of a device, by family.

A group does with tensors on `device` what programs do and returns what came out: tensors, numbers, and lists of them. Run on a
virtual GPU it must give what it gives on the CPU: the same shapes and dtypes, and under `--values compute` the same numbers.

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
    """`sentence` is how the refusal begins of what is refused by name. `values`: under which `--values` it is run."""

    name: str
    run: Run
    sentence: str = ""
    values: tuple[str, ...] = ("recorded", "compute")
    close: float | None = 1e-5  # how far numbers may be from the CPU's, relative and absolute; None: the GPU draws its own
    needs: str = ""  # a package that it imports


class Family:
    """The groups of one file."""

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
    """Of all files in families/, by name."""
    names = sorted(path.stem for path in (Path(__file__).parent / "families").glob("[a-z]*.py"))
    families = [import_module(f"tests.zoo.families.{name}").family for name in names]
    return {group.name: group for family in families for group in family.groups}
