"""Interprets the names of GPUs, memory copies, collectives and ops, and parses launch configurations that are stored as text.

The modules of this package map names to facts, and never read a trace. `cards.card_of` returns a GPU's data sheet.
`equivalent_ops` contains the names of ops in different PyTorch releases.
"""
