"""Exports a trace to Chrome's trace format, which Perfetto, chrome://tracing and Holistic Trace Analysis read.
`export.export_chrome` writes one trace, and `pair.export_pair` writes two traces side by side into one file."""
