"""Ops that need more than a plan, because they move, read or compute values.

`copies` decides what a copy makes the host wait for, `host_reads` reads values, `data_dependent` handles shapes that depend on
values, and `cpu` computes results for `--values compute`.
"""
