"""Provides the emulated memory of virtual GPUs."""
