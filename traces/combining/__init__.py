"""Merges several traces into one, or extracts a part of a trace."""
