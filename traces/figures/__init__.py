"""Compute the figures of one trace: pace, busy time, phases, memory, and a summary.

`pace.py` defines when a step begins and how long the step takes. All reported step times use `pace.py`. `measure.py` computes
busy time, phase times and tables. `summary.summarize` collects the figures that `trace info` prints.
"""
