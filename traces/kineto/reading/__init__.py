"""Reads events from the profiler's JSON files, even if the files are damaged. `text.py` parses JSON text and repairs damaged
text. `pieces.py` parses large files in pieces. `sources.py` finds profiler files in folders and archives. `eras.py` describes
the versions of the file format."""
