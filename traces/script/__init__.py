"""Runs a training script in a child process, and divides the run into steps and phases."""
