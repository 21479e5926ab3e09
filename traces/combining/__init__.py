"""Merges several traces into one, or cuts a part out of a trace.

`merge.merge_ranks` joins the traces of several ranks, and `merge.with_profile` adds a profile to a recording. `replayed_ranks`
joins the traces of a replay's processes. `profiler_cycles` joins the files that torch.profiler wrote for one process. `excerpt`
cuts a time range out of a trace.
"""
