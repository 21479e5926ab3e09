"""Hides the wrappers of the recorder from torch.compile, so that recording does not change the compiled code."""

from __future__ import annotations

from types import ModuleType

from traces.script.compiled_functions import see_through_wrappers


def install(torch: ModuleType) -> None:
    see_through_wrappers()
