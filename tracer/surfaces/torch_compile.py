"""Hides the recorder's wrappers from torch.compile, so that recording does not change the compiled code. A step in which
torch.compile compiles a function counts as a warm-up step.

    compiled(x)     # Dynamo compiles a function: recorder().compilation_begins()
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tracer.state import started
from traces.script.compiled_functions import see_through_wrappers
from traces.script.patching import patch_around, when_imported


def install(torch: ModuleType) -> None:
    see_through_wrappers()
    when_imported("torch._dynamo.callback", _report_compilations)


def _report_compilations(module: Any) -> None:
    # Wrap `run_start_callbacks`, because torch.compiler.reset() removes registered callbacks.
    def begin(begin: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        if (to := started()) is not None:
            to.compilation_begins()
        begin(self, *args, **kwargs)

    patch_around(module.CompilationCallbackHandler, run_start_callbacks=begin)
