"""Several traces made into one, and parts taken out of one.

`merge.merge_ranks` joins ranks, and `merge.with_profile` lays a profile over the steps that it covers. `replayed_ranks` and
`profiler_cycles` join what the processes of a run or the cycles of a profiler left. `excerpt` takes a stretch of time out of a
trace.
"""
