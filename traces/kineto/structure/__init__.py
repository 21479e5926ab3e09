"""Finds the steps, phases, DataParallel stages, collectives and devices of a recording.

`steps.read_steps` finds steps from step marks such as `ProfilerStep#7`. Recordings without step marks are divided into steps by
the rules in `traces/script`, which also apply to running scripts. `repeats.py` finds steps from repeated ops.
"""
