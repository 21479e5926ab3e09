"""Prints messages on stderr during and after a script's run."""
