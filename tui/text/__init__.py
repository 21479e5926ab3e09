"""Turns typed facts into text for a terminal: one module for each command's output. No module here computes a figure.

Results go to stdout and messages to stderr. `tui/figures.py` formats numbers, units and tables.
"""
