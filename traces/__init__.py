"""What a recording is: stored, imported, exported, measured, compared. Knows neither torch nor a terminal.

    import traces

    trace = traces.load("p100-no-cudnn")            # a file, or a name in the bundled library
    traces.summarize(trace).step_median_ns          # the facts of `trace info`
    traces.analyse(trace).idle                      # idle time by reason, launches, rates, modules, critical path...
    traces.compare(trace, traces.load("replay.msgpack")).steps.error    # those of `trace diff`
    traces.to_pandas(trace, "phases").groupby("name").duration_ns.median()

Names are imported when they are first used: `import traces` by itself loads nothing, neither numpy.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traces.analyses import Analyses, analyse
    from traces.chrome import export_chrome
    from traces.comparison import Comparison, compare
    from traces.file import save
    from traces.kineto import read_kineto
    from traces.library import load
    from traces.model import (
        NONE,
        PHASES,
        Batches,
        BatchKind,
        Collectives,
        Device,
        DeviceKind,
        DeviceSpans,
        Ending,
        HostKind,
        HostSpans,
        MemoryEvents,
        Origin,
        Parts,
        Phases,
        PhaseTiming,
        Sizes,
        StepKind,
        Steps,
        Strings,
        Table,
        Thread,
        Trace,
        TraceError,
        TraceFormatError,
        TraceImportError,
        TraceLibraryError,
        TraceWriteError,
        Values,
    )
    from traces.pandas_tables import to_pandas
    from traces.summary import Summary, summarize

__all__ = [
    "NONE",
    "PHASES",
    "Analyses",
    "BatchKind",
    "Batches",
    "Collectives",
    "Comparison",
    "Device",
    "DeviceKind",
    "DeviceSpans",
    "Ending",
    "HostKind",
    "HostSpans",
    "MemoryEvents",
    "Origin",
    "Parts",
    "PhaseTiming",
    "Phases",
    "Sizes",
    "StepKind",
    "Steps",
    "Strings",
    "Summary",
    "Table",
    "Thread",
    "Trace",
    "TraceError",
    "TraceFormatError",
    "TraceImportError",
    "TraceLibraryError",
    "TraceWriteError",
    "Values",
    "analyse",
    "compare",
    "export_chrome",
    "load",
    "read_kineto",
    "save",
    "summarize",
    "to_pandas",
]

# Where each name is; those that are not here are in traces.model.
_MODULES = {
    "Analyses": "analyses",
    "analyse": "analyses",
    "Comparison": "comparison",
    "Summary": "summary",
    "compare": "comparison",
    "export_chrome": "chrome",
    "load": "library",
    "read_kineto": "kineto",
    "save": "file",
    "summarize": "summary",
    "to_pandas": "pandas_tables",
}

if not TYPE_CHECKING:  # a type checker would take it to mean that there is every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'model')}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
