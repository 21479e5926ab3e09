"""Predicts a recording's times under other conditions, without running the script.

`predict.predict` is the entry point. `conditions` has the expected errors, `scaling` the time of each kernel, `parallel`,
`fully_sharded` and `tensor_parallel` several GPUs, and `retiming` the new schedule.
"""
