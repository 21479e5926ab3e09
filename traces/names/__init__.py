"""Interprets the names of GPUs, memory copies, collectives and ops, and the text of launch configurations.

The function `cards.card_of` returns a GPU's data sheet. The module `equivalent_ops` contains the names of ops in different
PyTorch releases.
"""
