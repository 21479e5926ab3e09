"""Implements the keys of the timeline app in groups: moving, related events, differences, finding, rows, panels and saving.

Each group is a class that works on a `ViewContext` (context.py). Some groups also need the `Selection` (selection.py). `app.py`
builds the groups and maps each action of `keys.KEYS` to a method of a group.
"""
