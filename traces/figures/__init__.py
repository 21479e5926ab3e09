"""Computes statistics of one trace, such as step times, GPU busy time, phase times and memory. `pace.py` defines when a
training step begins and how long it takes. `measure.py` computes busy time, phase times, and tables of kernels and ops.
`summary.summarize` collects the statistics that `trace info` prints."""
