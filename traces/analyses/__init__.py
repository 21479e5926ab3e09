"""Analyze a trace: idle time, launches, transfers, rates, modules, stragglers, and the critical path. Each analysis has its own
file.

`analyse.analyse` runs all analyses and returns the results that `trace info --details` prints. Each module can also be used
alone.
"""
