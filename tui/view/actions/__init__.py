"""What the keys of the timeline app do, in groups: moving, related events, differences, finding, rows, panels, saving.

Each group is a class that works on a `ViewContext` (context.py) and, where it needs one, the `Selection` (selection.py).
`app.py` builds the groups and maps each action of `keys.KEYS` to one of their methods.
"""
