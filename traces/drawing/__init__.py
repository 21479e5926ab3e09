"""Draws traces in notebooks."""
