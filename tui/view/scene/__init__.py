"""Computes what the timeline app shows, independently of the terminal: rows, time axes, and differences between two traces.

`alignment.py` and `axis.py` align two traces. `lanes.py` computes how busy each column is. This package needs only numpy.
"""
