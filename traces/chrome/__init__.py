"""Exports a trace to Chrome's trace format, which Perfetto, chrome://tracing and Holistic Trace Analysis read."""
