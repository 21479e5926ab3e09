"""Hides the recorder's wrappers from torch.compile, so that compiled code is the same as without the recorder."""

from __future__ import annotations

from types import ModuleType

from traces.script.compiled_functions import see_through_wrappers


def install(torch: ModuleType) -> None:
    see_through_wrappers()
