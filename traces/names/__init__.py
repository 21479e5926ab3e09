"""Knows the names of GPUs, ops, collectives and memory copies, and what they mean."""
