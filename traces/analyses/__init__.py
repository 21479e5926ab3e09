"""Analyzes a trace, for example the idle time of GPUs, slow ranks and the critical path."""
