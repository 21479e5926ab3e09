"""All numbers in traces/ and tui/ that decide a verdict, with unit, meaning, origin and the files that use them.

    from traces.comparison.thresholds import DEFAULT_TOLERANCE      # 0.05, a plain number
    THRESHOLDS["DEFAULT_TOLERANCE"].origin                          # ConstantOrigin.CHOSEN

docs/constants.md lists these numbers. `benchmarks/sensitivity.py` moves each by a fifth and shows which verdicts change.
"""

from __future__ import annotations

from traces.comparison.declared_constants import ConstantOrigin, DeclaredConstants

THRESHOLDS = DeclaredConstants()
_declare = THRESHOLDS.declare

PUBLISHED, MEASURED, CHOSEN, FITTED = ConstantOrigin


# --- pace and what limits the pace

RUNS_AHEAD = _declare(
    "RUNS_AHEAD",
    0.02,
    "share of the host pace",
    "the host runs ahead of the GPU if the device pace is longer by more",
    origin=CHOSEN,
    source="steps of one program vary by about 1 %",
    used_by="traces/figures/pace.py",
)
ALWAYS_BUSY = _declare(
    "ALWAYS_BUSY",
    0.9,
    "share of the pace",
    "the device limits the pace if its GPU time fills at least this share",
    origin=CHOSEN,
    source="a GPU with work in every gap still loses some microseconds between kernels",
    used_by="traces/figures/pace.py",
)
FALLS_BEHIND_SHARE = _declare(
    "FALLS_BEHIND_SHARE",
    0.01,
    "share of the pace",
    "lag of the device that grows by less per step is jitter",
    origin=CHOSEN,
    source="steps of one program vary by about 1 %",
    used_by="traces/figures/pace.py",
)
STEPS_FALLING_BEHIND = _declare(
    "STEPS_FALLING_BEHIND",
    0.75,
    "share of the steps",
    "the lag must grow in at least this share of the steps",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/figures/pace.py",
)
MUCH_DATA = _declare(
    "MUCH_DATA",
    0.1,
    "share of the pace",
    "data limits the pace of a recording without kernels if waits for data take at least this share",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/figures/bottleneck.py",
)
LATE_START_NS = _declare(
    "LATE_START_NS",
    1_000_000,
    "ns",
    "if the first recorded work of a GPU starts later than this after its launch, the cause of the delay is unknown",
    origin=CHOSEN,
    source="a launch takes microseconds; work from before the recording may have kept the GPU busy",
    used_by="traces/analyses/idle.py",
)
MOSTLY_MARKED = _declare(
    "MOSTLY_MARKED",
    0.5,
    "share of launched work",
    "ranges around iterations mark steps if at least this share of the work was launched in them",
    origin=CHOSEN,
    source="most of the work; a server samples tokens between its ranges",
    used_by="traces/kineto/structure/repeats.py",
)
MOST_OPS_OF_A_BATCH = _declare(
    "MOST_OPS_OF_A_BATCH",
    2,
    "times",
    "parts of an inference are batches if the longest has at most this many times the ops of the shortest",
    origin=CHOSEN,
    source="batches of one model differ in their data-dependent ops only",
    used_by="traces/kineto/structure/steps.py",
)
MUCH_IN_ONE_CALL = _declare(
    "MUCH_IN_ONE_CALL",
    0.25,
    "share of idle time",
    "a runtime function of the host is named as a cause of idle time if its calls cover at least this share",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="tui/text/bottleneck.py",
)
MUCH_SPREAD = _declare(
    "MUCH_SPREAD",
    0.15,
    "share of the pace",
    "`trace info` warns if steps vary by at least this share (half the interquartile range)",
    origin=CHOSEN,
    source="steps of one program usually vary by about 1 %",
    used_by="tui/text/info.py",
)
STEPS_FOR_NOISE = _declare(
    "STEPS_FOR_NOISE",
    4,
    "steps",
    "fewer steps show no noise floor",
    origin=CHOSEN,
    source="quartiles of three values say nothing",
    used_by=("traces/figures/spread.py", "tui/text/diff.py"),
)
SERIOUS_SHARE = _declare(
    "SERIOUS_SHARE",
    0.01,
    "share of the kernels",
    "a problem that affects at least this share makes the first screen unreliable",
    origin=CHOSEN,
    source="missing 1 % of the kernels changes idle time about as much as steps vary",
    used_by="traces/figures/problems.py",
)
OWN_HOST_SHARE = _declare(
    "OWN_HOST_SHARE",
    0.1,
    "share of a step",
    "smaller overhead of the replaying host is not mentioned",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="tui/text/pace.py",
)
LEAST_GATE_MARGIN_PERCENT = _declare(
    "LEAST_GATE_MARGIN_PERCENT",
    3,
    "% of the step time",
    "`trace gate init` allows a step to be at least this much slower",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/comparison/gate.py",
)
GATE_MEMORY_MARGIN_PERCENT = _declare(
    "GATE_MEMORY_MARGIN_PERCENT",
    2,
    "% of the memory peak",
    "`trace gate init` allows a memory peak to be this much higher",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/comparison/gate.py",
)

# --- waits, idle time and launches

RETURN_NS = _declare(
    "RETURN_NS",
    30_000,
    "ns",
    "a wait returns at most this long after the awaited work",
    origin=MEASURED,
    source="calls on six kinds of GPUs returned 5 to 32 us after the work (recordings in benchmarks/peers.py)",
    used_by="traces/analyses/waits.py",
)
CLOCK_NS = _declare(
    "CLOCK_NS",
    10_000,
    "ns",
    "difference between the clocks of host and GPU",
    origin=MEASURED,
    source="awaited work ended at most 8 us after the call (recordings in benchmarks/peers.py)",
    used_by="traces/analyses/waits.py",
)
LEAST_WAIT_NS = _declare(
    "LEAST_WAIT_NS",
    50_000,
    "ns",
    "a shorter call is a wait only if its documentation says so",
    origin=FITTED,
    source="while kernels of 5 us end one after another, every short call returns just after a kernel",
    used_by="traces/analyses/waits.py",
)
LAST_PART_OF_A_WAIT = _declare(
    "LAST_PART_OF_A_WAIT",
    10,
    "parts of the call",
    "the awaited work ends in the last of so many equal parts of the call",
    origin=FITTED,
    source="one call in ten looks like a wait by chance",
    used_by="traces/analyses/waits.py",
)
EDGE_NS = _declare(
    "EDGE_NS",
    10_000,
    "ns",
    "a kernel begins at most this long after the work on another stream for which it waited",
    origin=CHOSEN,
    source="an event takes some microseconds",
    used_by="traces/analyses/idle.py",
)
LONG_LAUNCH_NS = _declare(
    "LONG_LAUNCH_NS",
    100_000,
    "ns",
    "a launching call that takes at least this long is listed with its reason",
    origin=CHOSEN,
    source="launches take 5 to 20 us",
    used_by="traces/analyses/launches.py",
)
FULL_QUEUE = _declare(
    "FULL_QUEUE",
    1000,
    "launches",
    "a launch queue of this length is full",
    origin=MEASURED,
    source="a Tesla V100 never had more than 1022 pending launches (recording v100_absolute_ns)",
    used_by="traces/analyses/launches.py",
)

INDEX_BLOCKS = _declare(
    "INDEX_BLOCKS",
    20,
    "blocks",
    "an index op without recorded indices is rated from its kernel's grid if the grid has at least this many blocks",
    origin=FITTED,
    source="the last block then counts for at most 5 %, as much as DEFAULT_TOLERANCE",
    used_by="traces/rates/op_traffic.py",
)

# --- import

SLOW_START = _declare(
    "SLOW_START",
    2.0,
    "times the median",
    "a first step with at least this multiple of the later steps' GPU time is a warm-up step",
    origin=CHOSEN,
    source="autotuning and compilation run kernels several times",
    used_by="traces/kineto/structure/steps.py",
)
FEWEST_STEADY = _declare(
    "FEWEST_STEADY",
    2,
    "steps",
    "at least so many training steps remain after warm-up steps",
    origin=CHOSEN,
    source="one step has no predecessor",
    used_by="traces/kineto/structure/steps.py",
)
ROUNDING_NS = _declare(
    "ROUNDING_NS",
    1000,
    "ns",
    "spans may overlap by this time because profilers wrote whole microseconds",
    origin=PUBLISHED,
    source="Kineto before 2024 wrote microseconds",
    used_by=("traces/kineto/spans/nesting.py", "traces/kineto/spans/impossible.py", "traces/kineto/spans/external_ids.py"),
)

# --- what the profiler costs

EVENT_COSTS = _declare(
    "EVENT_COSTS",
    (1.0, 0.8, 0.65, 1.7, 1.0, 1.7, 0.14),
    "times the cost of an op with shapes",
    "what the profiler costs per op with and without shapes, range, module, runtime call, launch and memory event",
    origin=MEASURED,
    source="benchmarks/profiler_cost.py with torch 2.13 and 2.14; ops without shapes and calls without launch are chosen",
    used_by="traces/combining/profiler_cost.py",
)
EVENT_COST_SPREAD = _declare(
    "EVENT_COST_SPREAD",
    0.5,
    "share of the cost",
    "how much the costs of events differ between machines and torch releases",
    origin=MEASURED,
    source="benchmarks/profiler_cost.py",
    used_by="traces/combining/profiler_cost.py",
)
LEAST_GAP_NS = _declare(
    "LEAST_GAP_NS",
    100,
    "ns",
    "least time between two events without a profiler",
    origin=CHOSEN,
    source="half the time to dispatch a view",
    used_by="traces/combining/profiler_cost.py",
)
LEAST_NOISE = _declare(
    "LEAST_NOISE",
    0.01,
    "share of a step",
    "step times are never known more precisely",
    origin=CHOSEN,
    source="steps of one program vary by about 1 %",
    used_by="traces/combining/profiler_cost.py",
)

# --- same program?

SAME_SHAPES = _declare(
    "SAME_SHAPES",
    0.8,
    "similarity",
    "least similarity of two traces of one program, by ops, shapes and dtypes",
    origin=CHOSEN,
    source="ResNet-50 keeps more than 0.9 between PyTorch releases; one changed layer in ten makes another program",
    used_by="traces/comparison/same_program.py",
)
SAME_NAMES = _declare(
    "SAME_NAMES",
    0.9,
    "similarity",
    "least similarity by names of ops, if shapes were not recorded",
    origin=FITTED,
    source="a small network with a different activation has a similarity of 0.82",
    used_by="traces/comparison/same_program.py",
)
SAME_NUMBERS = _declare(
    "SAME_NUMBERS",
    0.03,
    "share of the calls",
    "largest difference in numbers of calls of the same ops",
    origin=FITTED,
    source="a change of one layer in 24 gives 0.04",
    used_by="traces/comparison/same_program.py",
)
OTHER_HALF_SHARE = _declare(
    "OTHER_HALF_SHARE",
    0.5,
    "share of the kernels",
    "largest difference in half-precision work, if only names of kernels show dtypes",
    origin=CHOSEN,
    source="mixed precision uses both dtypes",
    used_by="traces/comparison/same_program.py",
)
OTHER_LAYOUT_SHARE = _declare(
    "OTHER_LAYOUT_SHARE",
    0.2,
    "share of the images",
    "largest difference in channels_last images",
    origin=CHOSEN,
    source="one layer of many may convert its input",
    used_by="traces/comparison/same_program.py",
)

# --- differences between two traces

DEFAULT_TOLERANCE = _declare(
    "DEFAULT_TOLERANCE",
    0.05,
    "share",
    "pace and GPU time may differ by this share, unless --tolerance says otherwise",
    origin=CHOSEN,
    source="usual in benchmarks of GPUs",
    used_by="traces/comparison/compare.py",
)
SAME_KERNEL_SHARE = _declare(
    "SAME_KERNEL_SHARE",
    0.05,
    "share of the kernel's time",
    "a kernel counts as the same up to this difference",
    origin=CHOSEN,
    source="equal to DEFAULT_TOLERANCE",
    used_by=("traces/comparison/counterparts.py", "tui/view/differences.py"),
)
SAME_KERNEL_NS = _declare(
    "SAME_KERNEL_NS",
    1000,
    "ns",
    "a kernel also counts as the same up to this difference",
    origin=PUBLISHED,
    source="Kineto before 2024 wrote whole microseconds",
    used_by="traces/comparison/counterparts.py",
)
NEGLIGIBLE_NS = _declare(
    "NEGLIGIBLE_NS",
    1000,
    "ns per step",
    "smaller changes of ops and kernels are not listed",
    origin=CHOSEN,
    source="equal to SAME_KERNEL_NS",
    used_by="traces/comparison/changed_ops.py",
)
NEGLIGIBLE_SHARE = _declare(
    "NEGLIGIBLE_SHARE",
    0.002,
    "share of a step",
    "smaller effects are not explained",
    origin=CHOSEN,
    source="less than any step varies",
    used_by="traces/comparison/explain.py",
)
LEAST_PHASE_NS = _declare(
    "LEAST_PHASE_NS",
    20_000,
    "ns",
    "the app does not list smaller differences of a host phase",
    origin=CHOSEN,
    source="a few calls of Python",
    used_by="tui/view/differences.py",
)

# --- data stalls

NOTICEABLE_WAIT = _declare(
    "NOTICEABLE_WAIT",
    0.02,
    "share of a step",
    "smaller waits for data are noise",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/stalls/data_stalls.py",
)
BUSY_MACHINE = _declare(
    "BUSY_MACHINE",
    0.1,
    "share of a step",
    "a loader cannot save more, so another program was running",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/stalls/data_stalls.py",
)
READ_FROM_DISK = _declare(
    "READ_FROM_DISK",
    0.05,
    "share of the bytes",
    "if storage delivered more, the data was not cached",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/stalls/data_stalls.py",
)

# --- library and this machine

MOST_NOISE = _declare(
    "MOST_NOISE",
    0.1,
    "share of a phase's median",
    "noisier phases are mentioned when a contribution is checked",
    origin=CHOSEN,
    source="rule of thumb",
    used_by="traces/library/check.py",
)
SHORT_PHASE_NS = _declare(
    "SHORT_PHASE_NS",
    1_000_000,
    "ns",
    "the noise of shorter phases is ignored",
    origin=CHOSEN,
    source="a millisecond is a few calls of the scheduler",
    used_by="traces/library/check.py",
)
LEAST_OF_SMALLER_BATCH = _declare(
    "LEAST_OF_SMALLER_BATCH",
    0.5,
    "share",
    "a larger batch takes at least this share of the smaller batch's time",
    origin=CHOSEN,
    source="another algorithm may be faster, but not twice",
    used_by="traces/library/check.py",
)
SAME_PEAK = _declare(
    "SAME_PEAK",
    0.05,
    "share of the peak",
    "a measured memory limit applies to programs whose peak differs by at most this share",
    origin=CHOSEN,
    source="loops free gradients at different times",
    used_by="traces/library/limits.py",
)
LATE_NS = _declare(
    "LATE_NS",
    500_000,
    "ns",
    "`trace doctor` warns if sleeps end later than this (99th percentile)",
    origin=CHOSEN,
    source="a thousandth of a step of half a second",
    used_by="tui/commands/doctor.py",
)
LOW_DISK_BYTES = _declare(
    "LOW_DISK_BYTES",
    2 * 2**30,
    "bytes",
    "`trace doctor` warns about less free disk space",
    origin=CHOSEN,
    source="recordings take hundreds of MB",
    used_by="tui/commands/doctor.py",
)
