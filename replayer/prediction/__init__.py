"""Predicts the times of a recording for another GPU, batch size or number of GPUs. `predict.predict` is the entry point.
The module `scaling` predicts the duration of each kernel, and the module `retiming` computes the start times. `parallel`,
`fully_sharded` and `tensor_parallel` predict several GPUs."""
