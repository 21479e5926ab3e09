"""Finds the recorded step and phase that the script is currently in. `StepTracker` is the entry point."""
