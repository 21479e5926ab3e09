"""Implements the commands, with one file for each command. A command is imported only when it runs, because of numpy."""
