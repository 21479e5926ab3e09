"""How long training steps wait for data, and how other storage or more workers would change that.

`data_stalls` compares runs with ready, cached and uncached data. `loader_model` predicts other numbers of workers and cores,
and `storage_model` a disk with a cache. `storage_server` shares that modeled disk among the processes of a run.
"""
