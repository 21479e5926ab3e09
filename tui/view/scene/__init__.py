"""Models what the timeline app shows, without a terminal: rows, lanes, axes, and differences between two traces.

`scene.Scene` holds one or two traces with their rows side by side. `alignment.py` and `axis.py` align two traces. `lanes.py`
computes how busy each column is. This package needs only numpy.
"""
