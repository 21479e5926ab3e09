"""Implements what the keys of the timeline app do, with one class for each group of keys.

For each key, the list `KEYS` in tui/view/keys.py names the method to call.
"""
