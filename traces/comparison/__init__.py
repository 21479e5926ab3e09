"""Compares two traces: whether they ran the same program, how much their times differ, and why.

`compare.compare` computes the figures that `trace diff` prints, and `explain.explain` writes the sentences about their causes.
`same_program` decides whether two traces ran the same program, because otherwise their figures cannot be compared.
`counterparts` pairs the kernels of two traces, and `gate` checks a comparison against limits from a file. `thresholds` has
every number behind a verdict.
"""
