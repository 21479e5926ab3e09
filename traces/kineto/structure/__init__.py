"""Finds the steps, phases, DataParallel stages, collectives and devices of a recording.

`steps.read_steps` finds steps from marks, or with the rules that also cut a running script. `repeats.py` finds steps
from repeated ops.
"""
