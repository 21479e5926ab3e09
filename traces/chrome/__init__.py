"""Exports a trace to Chrome's trace format, which Perfetto, chrome://tracing and Holistic Trace Analysis read.
The function `export_chrome` writes one trace to a file, and `export_pair` writes two traces side by side."""
