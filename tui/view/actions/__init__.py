"""Implements what the keys of the timeline app do, with one class for each group of keys.

Some groups also need the `Selection` (selection.py). The method for each key is listed in `keys.KEYS`.
"""
