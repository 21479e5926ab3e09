"""Compares two traces: whether the program is the same, how much the times differ, and why."""
