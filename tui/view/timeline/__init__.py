"""The timeline itself: which stretch of time and which rows are shown, and how they are drawn line by line.

`window.Window` and `shown_rows.ShownRows` hold the state, `drawing.Drawing` turns it into cells, and `timeline.TimelineView` is
the widget. `spans.py` and `related.py` find the event under the cursor and what belongs to it.
"""
