"""One file per question about a trace: idle time, launches, transfers, rates, modules, stragglers, the critical path.

`analyse.analyse` runs them all and returns what `trace info --details` prints.
Each module can also be used alone.
"""
