"""The replay's own recording. `timeline_writer.TimelineWriter` collects the rows of the replayed trace and writes them while
the script runs."""
