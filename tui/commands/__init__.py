"""Implements the commands, with one file for each command. Commands are imported only when they run, because they need numpy.
"""
