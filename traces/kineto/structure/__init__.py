"""Finds the steps, phases, DataParallel stages, collectives and devices of a recording.

`steps.read_steps` finds steps from step marks such as `ProfilerStep#7`. Recordings without step marks are divided into steps by
the rules for running scripts in `traces/script`. `repeats.py` finds steps from repeated ops.
"""
