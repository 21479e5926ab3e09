"""Writes the rows of a recording."""
