"""Analyzes a trace, for example the idle time of GPUs, slow ranks and the critical path. `analyse.analyse` runs all analyses,
and `trace info --details` prints their output. Each module can also be used alone."""
