"""Computes what the timeline app shows: rows, time axes, and differences between two traces.

The package needs numpy, but no terminal and no library for terminals.
"""
