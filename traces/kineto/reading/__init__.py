"""Reads profiler JSON files into events, including damaged files.

`text.py` parses and repairs, `pieces.py` parses large files in pieces, and `sources.py` finds files in folders and archives.
`eras.py` describes the differences between the formats from 2020 to today.
"""
