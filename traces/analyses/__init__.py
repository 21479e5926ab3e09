"""Analyzes a trace: idle time of GPUs, launches, transfers, rates, modules, slow ranks, and the critical path.

`analyse.analyse` runs all analyses, and `trace info --details` prints their output. Each module can also be used alone.
"""
