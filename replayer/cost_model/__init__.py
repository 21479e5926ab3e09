"""Estimates durations that were not recorded."""
