"""Predicts the times of a recording for another GPU, batch size or number of GPUs, without running the script.

`predict.predict` is the entry point. `conditions` has the expected errors. `scaling` predicts the time of each kernel.
`parallel`, `fully_sharded` and `tensor_parallel` predict several GPUs. `retiming` computes the new schedule.
"""
