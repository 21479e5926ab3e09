"""Merges several traces into one, or extracts a part of a trace. `merge.merge_ranks` joins the traces of several ranks, and
`merge.with_profile` adds a profile to a recording. `replayed_ranks` joins the traces of a replay's processes. `profiler_cycles`
joins the files that torch.profiler wrote for one process. `excerpt` extracts a time range from a trace."""
