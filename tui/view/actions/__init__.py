"""Implements what the keys of the timeline app do, with one class for each group of keys.

The list `keys.KEYS` names the method for each key.
"""
