"""Writes the rows of a recording. `step_writer` and `collectives` create rows of tables, and `output` appends the rows to the
file twice a second. `flight_recorder` finds the collectives that PyTorch starts in C++."""
