"""Loads, saves, summarizes and compares traces. Imports neither torch nor a terminal library.

    import traces

    trace = traces.load("p100-no-cudnn")            # a file, or a name in the bundled library
    traces.summarize(trace).step_median_ns          # the statistics that `trace info` prints
    traces.analyse(trace).idle                      # idle time by reason, launches, rates, modules, critical path...
    traces.compare(trace, traces.load("replay.msgpack")).steps.error    # the error that `trace diff` prints
    traces.to_pandas(trace, "phases").groupby("name").duration_ns.median()

Modules are imported when they are first used, so `import traces` is fast.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # "import X as X" marks a name as re-exported
    from traces.analyses.analyse import Analyses as Analyses
    from traces.analyses.analyse import analyse as analyse
    from traces.chrome.export import export_chrome as export_chrome
    from traces.comparison.compare import compare as compare
    from traces.comparison.comparison_figures import Comparison as Comparison
    from traces.figures.pandas_tables import to_pandas as to_pandas
    from traces.figures.summary import Summary as Summary
    from traces.figures.summary import summarize as summarize
    from traces.format.trace_file import save as save
    from traces.kineto import read_kineto as read_kineto
    from traces.library import load as load
    from traces.model.trace import NONE as NONE
    from traces.model.trace import PHASES as PHASES
    from traces.model.trace import Batches as Batches
    from traces.model.trace import BatchKind as BatchKind
    from traces.model.trace import Collectives as Collectives
    from traces.model.trace import Device as Device
    from traces.model.trace import DeviceKind as DeviceKind
    from traces.model.trace import DeviceSpans as DeviceSpans
    from traces.model.trace import Ending as Ending
    from traces.model.trace import HostKind as HostKind
    from traces.model.trace import HostSpans as HostSpans
    from traces.model.trace import MemoryEvents as MemoryEvents
    from traces.model.trace import Origin as Origin
    from traces.model.trace import Parts as Parts
    from traces.model.trace import Phases as Phases
    from traces.model.trace import PhaseTiming as PhaseTiming
    from traces.model.trace import Sizes as Sizes
    from traces.model.trace import StepKind as StepKind
    from traces.model.trace import Steps as Steps
    from traces.model.trace import Strings as Strings
    from traces.model.trace import Table as Table
    from traces.model.trace import Thread as Thread
    from traces.model.trace import Trace as Trace
    from traces.model.trace import TraceError as TraceError
    from traces.model.trace import TraceFormatError as TraceFormatError
    from traces.model.trace import TraceImportError as TraceImportError
    from traces.model.trace import TraceLibraryError as TraceLibraryError
    from traces.model.trace import TraceWriteError as TraceWriteError
    from traces.model.trace import Untimed as Untimed
    from traces.model.trace import Values as Values

# `_NAMES` maps modules to their public names.
_NAMES = {
    "analyses.analyse": "Analyses analyse",
    "chrome.export": "export_chrome",
    "comparison.compare": "compare",
    "comparison.comparison_figures": "Comparison",
    "format.trace_file": "save",
    "kineto": "read_kineto",
    "library": "load",
    "model.trace": (
        "NONE PHASES BatchKind Batches Collectives Device DeviceKind DeviceSpans Ending HostKind HostSpans MemoryEvents "
        "Origin Parts PhaseTiming Phases Sizes StepKind Steps Strings Table Thread Trace TraceError TraceFormatError "
        "TraceImportError TraceLibraryError TraceWriteError Untimed Values"
    ),
    "figures.pandas_tables": "to_pandas",
    "figures.summary": "Summary summarize",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)

if not TYPE_CHECKING:  # a type checker would assume that every attribute exists

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
