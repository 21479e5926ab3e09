"""Compares two traces: whether the program is the same, how much the times differ, and why. `compare.compare` computes the
numbers that `trace diff` prints, and `explain.explain` explains the differences. `same_program` decides whether two traces were
recorded from the same program. `counterparts` pairs the kernels of two traces, and `gate` checks a comparison against limits
from a file."""
