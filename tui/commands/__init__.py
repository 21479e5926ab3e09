"""Implements the commands of `trace`, with one file for each command.

The module of a command is imported only when the command runs, because the modules import numpy, which is slow.
"""
