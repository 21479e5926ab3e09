"""Finds the recorded step and phase that correspond to the script's current step and phase."""
