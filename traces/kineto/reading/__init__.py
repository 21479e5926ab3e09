"""From the bytes of a profiler's JSON file to its events, however damaged the file is.

`text.py` parses and repairs, `pieces.py` parses large files piece by piece, and `sources.py` finds files in folders and
archives. `eras.py` knows what differs between the formats of 2020 and today.
"""
