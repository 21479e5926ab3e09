"""What the spans of a recording mean: steps, phases, DataParallel stages, collectives, devices.

`steps.read_steps` finds steps by marks or by the rules that also cut a running script; `repeats.py` finds them by repeated
structure.
"""
