"""Draws the timeline, and stores which time range and which rows are visible."""
