"""Interprets the names of GPUs, ops, collectives and memory copies. The function `cards.card_of` returns a GPU's data sheet.
The module `equivalent_ops` contains the names of ops in different PyTorch releases."""
