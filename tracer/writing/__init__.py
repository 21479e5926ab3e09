"""The rows of a recording: steps, collectives, and the file that they are appended to.

`output.RecordingFile` appends rows twice a second. `step_writer` and `collectives` make the rows, and `flight_recorder` reads
the collectives that C++ starts by itself.
"""
