"""Finds the script's current step and phase in the recording. `StepTracker` is the entry point."""
