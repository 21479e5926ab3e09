"""Converts a `Trace` to the bytes of a trace file and back. FORMAT.md describes the layout of a trace file. `trace_file.save`
and `trace_file.load` handle whole files."""
