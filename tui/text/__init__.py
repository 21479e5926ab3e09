"""Formats the results of commands as text for a terminal. These modules do not compute figures.

Results go to stdout and messages to stderr. `tui/formatting.py` formats numbers, units and tables.
"""
