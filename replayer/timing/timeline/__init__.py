"""Writes the trace of a replay. `timeline_writer.TimelineWriter` collects rows and writes them while the script runs."""
