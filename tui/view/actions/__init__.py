"""Implements the keys of the timeline app. Each class implements one group of keys. The list `KEYS` in tui/view/keys.py assigns
a method to each key."""
