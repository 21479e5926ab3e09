"""Implements ops that move, read or compute values, because the shapes of the arguments do not suffice for these ops.

`host_reads` reads tensor values, and `data_dependent` runs ops whose output shapes depend on values.
"""
