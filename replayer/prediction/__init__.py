"""Predicts the times of a recording for another GPU, batch size or number of GPUs."""
