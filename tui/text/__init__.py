"""Formats results as text for a terminal, with one module for each command. These modules do not compute figures.

Results go to stdout and messages to stderr. `tui/formatting.py` formats numbers, units and tables.
"""
