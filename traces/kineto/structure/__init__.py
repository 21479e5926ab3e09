"""Finds the training steps, phases, collectives and devices of a recording. `steps.read_steps` finds training steps from step
marks such as `ProfilerStep#7`. Recordings without step marks are divided into training steps by the rules in `traces/script`.
`repeats.py` finds training steps from repeated ops."""
