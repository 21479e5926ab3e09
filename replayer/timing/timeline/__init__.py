"""Writes the trace of a replay. `timeline_writer.TimelineWriter` collects rows while the script runs."""
