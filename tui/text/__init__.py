"""Facts as text for a terminal: one module for each command's output. stdout is data, stderr is narration.

Every module turns typed facts into lines; none of them computes a figure. `figures.py` formats numbers, units and tables.
"""
