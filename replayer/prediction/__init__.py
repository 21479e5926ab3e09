"""Predicts the times of a recording for another GPU, batch size or number of GPUs. `predict.predict` is the entry point.
`scaling` predicts the duration of each kernel, and `retiming` computes the new start times. `parallel`, `fully_sharded` and
`tensor_parallel` predict several GPUs."""
