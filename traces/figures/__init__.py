"""Figures of one trace: pace, busy time, phases, memory, and their summary.

`pace.py` defines a step and how long it takes; everything that reports a step time uses it.
`measure.py` reads tables and durations, and `summary.summarize` gathers what `trace info` prints.
"""
