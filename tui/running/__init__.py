"""Prints messages on stderr for commands that run a script, such as progress and how the run ended."""
