"""Implements what the keys of the timeline app do, with one class for each group of keys. The list `KEYS` in tui/view/keys.py
assigns a method to each key."""
