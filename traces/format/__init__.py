"""The trace file: how a `Trace` becomes bytes and how bytes become a `Trace` again. FORMAT.md describes the layout.

`trace_file.save` and `trace_file.read` handle whole files; `growing_file` reads a file that another process is still writing.
`frames` checks checksums and separates a truncated file from a damaged one, and `unpack_limit` bounds what a small file may
unpack to.
"""
