"""Computes the figures of one trace, such as step times, GPU busy time, phase times and memory.

`pace.py` defines when a step begins and how long the step takes. `measure.py` computes busy time, phase times, and tables of
kernels and ops. `summary.summarize` collects the figures that `trace info` prints.
"""
