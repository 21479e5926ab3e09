"""Models what the timeline app shows, without a terminal: rows, lanes, axes, and differences between two traces.

`scene.Scene` holds one or two traces with their rows side by side. `alignment.py` and `axis.py` lay two traces over each other;
`lanes.py` computes how busy each column is. Only numpy is needed here.
"""
