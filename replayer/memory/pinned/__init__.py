"""Provides pinned host memory."""
