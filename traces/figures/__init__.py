"""Figures of one trace: pace, busy time, phases, memory, and a summary.

`pace.py` defines when a step begins and how long it takes; everything that reports a step time uses it.
`measure.py` computes busy time, phase times and tables; `summary.summarize` collects what `trace info` prints.
"""
