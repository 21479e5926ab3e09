"""Measures how long training steps wait for data, and predicts the wait on other machines."""
