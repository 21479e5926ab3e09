"""Draws the timeline, and holds the visible time range and the visible rows."""
