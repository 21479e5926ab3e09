"""Interprets the names of GPUs, ops, collectives and memory copies."""
