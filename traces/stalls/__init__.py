"""Measures how long training steps wait for data, and predicts the wait on other machines. The module `data_stalls` compares
three runs of a script: with one batch in memory, with cached data, and with uncached data. `loader_model` predicts loading
times for other numbers of DataLoader workers and CPU cores. `storage_model` simulates a disk with a cache, and `storage_server`
shares the simulated disk among the processes of a run."""
