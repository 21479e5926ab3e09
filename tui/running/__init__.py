"""Prints messages on stderr while a command runs a script, and after the script has ended."""
