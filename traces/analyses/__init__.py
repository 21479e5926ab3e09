"""One file per question about a trace: idle time, launches, transfers, rates, modules, stragglers, the critical path.

`analyse.analyse` runs all analyses and returns the results that `trace info --details` prints. Each module can also be used
alone.
"""
