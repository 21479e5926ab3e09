"""Where a training step waits for data, and what storage or more workers would change.

`data_stalls` compares runs with ready, cached and uncached data. `loader_model` predicts other numbers of workers and cores,
`storage_model` a disk with a cache, and `storage_server` shares that modelled disk among the processes of a run.
"""
