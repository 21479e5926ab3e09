"""Implements the commands of `trace`, with one file for each command. Modules are imported when their command runs, because
importing numpy is slow."""
