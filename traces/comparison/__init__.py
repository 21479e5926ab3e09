"""Compare two traces: whether they ran the same program, how far apart they are, and why.

`compare.compare` returns the facts that `trace diff` prints, and `explain.explain` returns the sentences. `same_program`
decides whether figures can be compared at all. `counterparts` pairs kernels, and `gate` checks a comparison against budgets.
`thresholds` has every number behind a verdict.
"""
