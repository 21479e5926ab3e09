"""Formats the results of commands as text for a terminal."""
