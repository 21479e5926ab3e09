"""Finds the training steps, phases, collectives and devices of a recording. `steps.read_steps` finds training steps from step
marks such as `ProfilerStep#7`. In recordings without step marks, training steps are found from calls of the optimizer
(`traces/script`) or from repeated ops (`repeats.py`)."""
