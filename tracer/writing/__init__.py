"""Writes the rows of a recording.

`step_writer` and `collectives` create the rows, and `output` appends them to the file twice a second. `flight_recorder` finds
the collectives that PyTorch starts in C++.
"""
