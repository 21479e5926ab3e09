"""Makes the tables beside the lanes: `parts.py` defines a table, `rows.py` makes the rows, and `panel.py` is the widget."""
