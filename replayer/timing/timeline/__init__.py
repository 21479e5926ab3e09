"""The replay's own recording. `timeline_writer.TimelineWriter` collects the rows and writes the trace while the script runs."""
