"""Implements ops for which shapes are not enough, because they move, read or compute values.

`host_reads` reads tensor values, and `data_dependent` runs ops whose output shapes depend on values.
"""
