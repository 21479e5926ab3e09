"""Implements the `trace` command line: commands, help pages, reports and the timeline app."""
