"""Predicts a recording's times under other conditions, without running the script.

`predict.predict` is the entry point. `conditions` has the expected errors. `scaling` predicts the time of each kernel.
`parallel`, `fully_sharded` and `tensor_parallel` predict several GPUs. `retiming` computes the new schedule.
"""
