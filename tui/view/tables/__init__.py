"""The tables beside the lanes: `parts.py` says what a table is, `rows.py` makes their rows, and `panel.py` is the widget."""
