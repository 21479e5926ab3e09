"""Computes what the timeline app shows: rows, time axes, and differences between two traces."""
