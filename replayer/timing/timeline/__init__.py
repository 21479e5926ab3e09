"""The replay's own recording: `timeline_writer.TimelineWriter` collects its rows and writes the trace while the script runs."""
