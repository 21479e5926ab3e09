"""Interprets names of GPUs, copies, collectives, ops and launch configurations.

All modules here are tables and pure functions of names, and no module reads a trace. `cards.card_of` returns a GPU's
data sheet. `equivalent_ops` gives the names of an op in other releases.
"""
