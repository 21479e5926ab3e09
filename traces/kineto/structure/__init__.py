"""Finds the steps, phases, DataParallel stages, collectives and devices of a recording.

`steps.read_steps` finds steps from step marks such as `ProfilerStep#7`. Without marks, it uses the rules that also divide a
running script into steps. `repeats.py` finds steps from repeated ops.
"""
