"""Implements the commands of `trace`, with one file for each command. Each module is imported only when its command runs,
because importing numpy is slow."""
