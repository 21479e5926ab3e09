"""Merge traces into one, or cut a part out of a trace.

`merge.merge_ranks` joins ranks, and `merge.with_profile` adds a profile to the steps that it covers. `replayed_ranks` joins the
processes of a replay, and `profiler_cycles` joins the files of a profiler's cycles. `excerpt` cuts a time range out of a trace.
"""
