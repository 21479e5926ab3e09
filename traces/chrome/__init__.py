"""Exports a trace to Chrome's trace format, which Perfetto, chrome://tracing and Holistic Trace Analysis read.

`export.export_chrome` writes one trace, and `pair` writes two traces side by side. `export_notes` stores facts that Chrome's
format cannot express, so that an import restores the same trace.
"""
