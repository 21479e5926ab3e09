"""Implements the commands of `trace`, with one file for each command.

A command's module is imported only when the command runs, because importing numpy is slow.
"""
