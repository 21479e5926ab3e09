"""Decides whether two traces were recorded from the same program."""
