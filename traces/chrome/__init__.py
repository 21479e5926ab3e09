"""Export to Chrome's trace format for Perfetto, chrome://tracing and Holistic Trace Analysis.

`export.export_chrome` writes one trace, and `pair` writes two traces side by side. `export_notes` stores facts that the format
cannot express, so a re-import gives the same trace.
"""
