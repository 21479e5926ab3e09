"""Measure how long training steps wait for data, and predict how other storage or more workers would change the wait.

`data_stalls` compares runs with ready, cached and uncached data. `loader_model` predicts the effect of other numbers of workers
and cores. `storage_model` models a disk with a cache, and `storage_server` shares this disk among the processes of a run.
"""
