"""Provides the recording for a replay."""
