"""Writes the rows of a recording.

`output` appends rows to the file twice a second, `step_writer` and `collectives` make the rows, and `flight_recorder` reads the
collectives that PyTorch starts in C++.
"""
