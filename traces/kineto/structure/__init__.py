"""Finds the structure of a recording: steps, phases, DataParallel stages, collectives, devices.

`steps.read_steps` finds steps from marks, or with the rules that also cut a running script. `repeats.py` finds them from
repeated ops.
"""
