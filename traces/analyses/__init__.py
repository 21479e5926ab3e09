"""Analyze a trace: idle time of GPUs, launches, transfers, rates, modules, slow ranks, and the critical path. Each analysis has
its own file.

`analyse.analyse` runs all analyses, and `trace info --details` prints their results. Each module can also be used alone.
"""
