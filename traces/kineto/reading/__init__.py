"""Reads events from the profiler's JSON files, even if the files are damaged."""
