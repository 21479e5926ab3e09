"""Implements the commands of `trace`, with one file for each command."""
