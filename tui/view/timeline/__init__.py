"""Draws the timeline line by line, and holds the visible time range and rows.

`window.Window` and `shown_rows.ShownRows` hold the state, `drawing.Drawing` turns it into cells, and `timeline.TimelineView` is
the widget. `spans.py` finds the event under the cursor, and `related.py` finds related events.
"""
