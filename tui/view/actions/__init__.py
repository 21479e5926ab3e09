"""Implements the keys of the timeline app. Each class implements a group of keys (`KEYS` in tui/view/keys.py)."""
