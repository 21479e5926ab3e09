"""Finds the recorded step, phase and nn.DataParallel stage that the script is currently in. `StepTracker` is the entry
point."""
