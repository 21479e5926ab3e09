"""Implements the keys of the timeline app. Each class implements one group of keys. `KEYS` in tui/view/keys.py assigns a method
to each key."""
