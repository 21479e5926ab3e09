"""Writes the rows of a recording. `step_writer` and `collectives` create table rows, and `output` writes the rows to the file.
"""
