"""Meaning of names: GPUs and their data sheets, copies, collectives, equivalent ops, launch configurations.

These modules are tables and pure functions of names; none of them reads a trace.
Start with `cards.card_of` for a GPU's data sheet and `equivalent_ops` for the names of an op in other releases.
"""
