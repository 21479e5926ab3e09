"""Declares all thresholds in traces/ and tui/, each with its unit, its meaning, and where the number comes from.

    from traces.comparison.thresholds import DEFAULT_TOLERANCE      # 0.05, a plain number
    THRESHOLDS["DEFAULT_TOLERANCE"].origin                          # ConstantOrigin.CHOSEN

`benchmarks/sensitivity.py` shows which results change if a threshold changes by 20 %.
"""

from __future__ import annotations

from traces.comparison.declared_constants import ConstantOrigin, DeclaredConstants

THRESHOLDS = DeclaredConstants()
_declare = THRESHOLDS.declare

PUBLISHED, MEASURED, CHOSEN, FITTED = ConstantOrigin

# fmt: off

# --- pace and what limits the pace

RUNS_AHEAD = _declare("RUNS_AHEAD", 0.02, "share of the host pace", CHOSEN,
    "the host runs ahead if a step takes longer on the GPU than on the host,"
    " by more than this share and by more than the GPU waits",
    "steps of one program vary by about 1 %")
CAUGHT_UP_NS = _declare("CAUGHT_UP_NS", 50_000, "ns", CHOSEN,
    "a GPU that finishes a phase at most this long after the host has launched it does not limit the phase",
    "a launch and the last kernels of a phase take 10 to 50 µs on an H200")
CAUGHT_UP_SHARE = _declare("CAUGHT_UP_SHARE", 0.02, "share of the phase", CHOSEN,
    "like CAUGHT_UP_NS, as a share of a long phase",
    "equal to RUNS_AHEAD")
ALWAYS_BUSY = _declare("ALWAYS_BUSY", 0.9, "share of the pace", CHOSEN,
    "the GPU limits the training speed if it is busy for at least this share of the time",
    "even a fully loaded GPU is idle for some microseconds between kernels")
MOSTLY_BUSY = _declare("MOSTLY_BUSY", 0.5, "share of the pace", CHOSEN,
    "if the GPU is busy for more than this share, `trace info` says how busy it is; if for less, `trace predict` does",
    "the GPU works longer than it waits")
FALLS_BEHIND_SHARE = _declare("FALLS_BEHIND_SHARE", 0.01, "share of the pace", CHOSEN,
    "the GPU falls behind the host only if its lag grows by at least this share in each step",
    "steps of one program vary by about 1 %")
STEPS_FALLING_BEHIND = _declare("STEPS_FALLING_BEHIND", 0.75, "share of the steps", CHOSEN,
    "the GPU falls behind the host only if its lag grows in at least this share of the steps", "rule of thumb")
STEPS_OF_A_LEVEL = _declare("STEPS_OF_A_LEVEL", 3, "steps", CHOSEN,
    "kernels count as slower from a step on only if at least this many steps run before it and after it",
    "two slow steps may be chance")
MUCH_DATA = _declare("MUCH_DATA", 0.1, "share of the pace", CHOSEN,
    "if a recording has no kernels, data loading is the bottleneck if waits for data take at least this share of a step",
    "rule of thumb")
LATE_START_NS = _declare("LATE_START_NS", 1_000_000, "ns", CHOSEN,
    "if the first recorded work of a GPU starts later than this after its launch, the cause of the delay is unknown",
    "a launch takes microseconds; work from before the recording may have kept the GPU busy")
MOSTLY_MARKED = _declare("MOSTLY_MARKED", 0.5, "share of launched work", CHOSEN,
    "profiler ranges around iterations count as steps if at least this share of the GPU work was launched inside them",
    "an inference server also launches work between its ranges, such as the sampling of tokens")
MOST_OPS_OF_A_BATCH = _declare("MOST_OPS_OF_A_BATCH", 2, "times", CHOSEN,
    "the parts of an inference run count as batches if the longest part has at most this many times as many ops as the"
    " shortest",
    "batches of one model differ only in ops that depend on the data")
MATCHED_STEP = _declare("MATCHED_STEP", 0.9, "share of the step's GPU time", CHOSEN,
    "GPU time is compared in the replayed steps with at least this share of recorded times, or else in all steps",
    "more than 95 % of a replayed step usually has recorded times")
MUCH_LATE = _declare("MUCH_LATE", 0.1, "share of the pace", CHOSEN,
    "one rank limits the pace if it is late at collectives for at least this share of a step", "equal to MUCH_DATA")
MUCH_IN_ONE_CALL = _declare("MUCH_IN_ONE_CALL", 0.25, "share of idle time", CHOSEN,
    "a runtime function of the host is named as a cause of idle time if its calls cover at least this share",
    "rule of thumb")
MUCH_SPREAD = _declare("MUCH_SPREAD", 0.15, "share of the pace", CHOSEN,
    "if steps vary by at least this share (half the interquartile range), `trace info` warns or describes the mean step"
    " instead of the median, and `trace diff` compares means",
    "steps of one program usually vary by about 1 %")
REPEATS_WITHIN = _declare("REPEATS_WITHIN", 0.05, "share of the mean", CHOSEN,
    "step times repeat if each step differs by at most this share from the step one period earlier",
    "steps of one kind usually vary by about 1 %")
FEWEST_CLEAN_STEPS = _declare("FEWEST_CLEAN_STEPS", 5, "steps", CHOSEN,
    "steps after a profile are left out of medians if at least this many clean steps ran before it",
    "a median of 5 steps ignores 2 unusual steps")
FEWEST_PAIRS = _declare("FEWEST_PAIRS", 4, "pairs of steps", CHOSEN,
    "step times repeat only if at least this many pairs of steps agree",
    "two or three pairs of steps may agree by chance")
LONGEST_PERIOD = _declare("LONGEST_PERIOD", 32, "steps", CHOSEN,
    "longest period after which step times may repeat", "gradients are rarely accumulated over more batches than this")
SLOW_STEP = _declare("SLOW_STEP", 10, "times the pace", CHOSEN,
    "`trace info` names a step that takes at least this many times the step time",
    "such a step also contains other work, for example saving a checkpoint or a validation")
LONG_STEP = _declare("LONG_STEP", 2, "times the pace", CHOSEN,
    "if a few long steps lengthen the mean step, `trace info` names the steps that are at least this long", "rule of thumb")
STEPS_FOR_NOISE = _declare("STEPS_FOR_NOISE", 4, "steps", CHOSEN,
    "the noise floor is computed only from at least this many steps", "quartiles of three values say nothing")
SERIOUS_SHARE = _declare("SERIOUS_SHARE", 0.01, "share of the kernels", CHOSEN,
    "figures are unreliable if a problem affects at least this share of the kernels",
    "missing 1 % of the kernels changes idle time about as much as steps vary")
OWN_HOST_SHARE = _declare("OWN_HOST_SHARE", 0.1, "share of a step", CHOSEN,
    "reports mention the overhead of the replaying machine if it takes at least this share of a step", "rule of thumb")
SHARED_BYTES = _declare("SHARED_BYTES", 400 << 20, "bytes", MEASURED,
    "memory that all ranks share; `--nproc` is rejected if this and the ranks' own memory exceed the available memory",
    "benchmarks/ranks.py: torch and the recording")
RANK_BYTES = _declare("RANK_BYTES", 46 << 20, "bytes", MEASURED,
    "memory of each rank in addition to SHARED_BYTES", "benchmarks/ranks.py: ResNet-18 under DDP")
LEAST_GATE_MARGIN_PERCENT = _declare("LEAST_GATE_MARGIN_PERCENT", 3, "% of the step time", CHOSEN,
    "`trace gate init` allows a step to be at least this much slower", "rule of thumb")
GATE_MEMORY_MARGIN_PERCENT = _declare("GATE_MEMORY_MARGIN_PERCENT", 2, "% of the memory peak", CHOSEN,
    "`trace gate init` allows a memory peak to be this much higher", "rule of thumb")

# --- waits, idle time and launches

RETURN_NS = _declare("RETURN_NS", 30_000, "ns", MEASURED,
    "a call that waits for the GPU returns at most this long after the GPU work has ended",
    "on six kinds of GPUs, calls returned 5 to 32 us after the GPU work ended (recordings in benchmarks/peers.py)")
CLOCK_NS = _declare("CLOCK_NS", 10_000, "ns", MEASURED,
    "largest difference between the clocks of host and GPU",
    "GPU work seemed to end at most 8 us after the call that waited for it (recordings in benchmarks/peers.py)")
CLOCKS_APART_NS = _declare("CLOCKS_APART_NS", 1_000_000, "ns", CHOSEN,
    "idle times are not reliable if a kernel begins more than this before the call that launched it",
    "much longer than CLOCK_NS, and as long as a short step")
LEAST_IDLE_LAUNCHES = _declare("LEAST_IDLE_LAUNCHES", 3, "launches", CHOSEN,
    "the GPU's clock is late if at least this many launches on an idle GPU all seem to take longer than CLOCKS_APART_NS",
    "a launch on an idle GPU takes microseconds (in 60 public recordings, the fastest launch took at most 15 us)")
LEAST_WAIT_NS = _declare("LEAST_WAIT_NS", 50_000, "ns", FITTED,
    "a shorter call counts as a wait only if CUDA's documentation says that the call waits",
    "if kernels of 5 us run one after another, any short call happens to return just after a kernel")
LAST_PART_OF_A_WAIT = _declare("LAST_PART_OF_A_WAIT", 10, "parts of the call", FITTED,
    "a call waits for a kernel if the kernel ends in the last of this many equal parts of the call",
    "by chance, one call in ten looks like a wait")
EDGE_NS = _declare("EDGE_NS", 10_000, "ns", CHOSEN,
    "a kernel that waits for another stream begins at most this long after the awaited work",
    "an event takes some microseconds")
LONG_LAUNCH_NS = _declare("LONG_LAUNCH_NS", 100_000, "ns", CHOSEN,
    "a launching call that takes at least this long is listed with its reason", "launches take 5 to 20 us")
FULL_QUEUE = _declare("FULL_QUEUE", 1000, "launches", MEASURED,
    "a launch queue of this length is full",
    "a Tesla V100 never had more than 1022 pending launches (recording v100_absolute_ns)")
NEARLY_FULL = _declare("NEARLY_FULL", 0.9, "of FULL_QUEUE", FITTED,
    "the host may have waited for space in the launch queue if a phase begins or ends with at least this many queued launches",
    "an H100's full launch queue was estimated to contain 940 to 1160 launches (ResNet-50, batch 128)")

INDEX_BLOCKS = _declare("INDEX_BLOCKS", 20, "blocks", FITTED,
    "if the indices of an op were not recorded, its bytes are computed from its kernel's grid of at least this many blocks",
    "a partly filled last block then changes the result by at most 5 % (DEFAULT_TOLERANCE)")

# --- import

SLOW_START = _declare("SLOW_START", 2.0, "times the median", CHOSEN,
    "a first step is a warm-up step if its GPU time is at least this multiple of the later steps' time",
    "autotuning and compilation run kernels several times")
FEWEST_STEADY = _declare("FEWEST_STEADY", 2, "steps", CHOSEN,
    "at least this many training steps remain after the warm-up steps", "the first step has no earlier step to compare with")
ROUNDING_NS = _declare("ROUNDING_NS", 1000, "ns", PUBLISHED,
    "spans may overlap by this time because profilers wrote whole microseconds",
    "Kineto before 2024 wrote microseconds")

# --- what the profiler costs

EVENT_COSTS = _declare(
    "EVENT_COSTS", (1.0, 0.8, 0.65, 1.7, 1.0, 1.7, 0.14), "times the overhead of an op with shapes", MEASURED,
    "profiler overhead by kind of event: op with shapes, op without shapes, range, module, runtime call, launch, memory event",
    "benchmarks/profiler_cost.py with torch 2.13 and 2.14; the values of ops without shapes and of runtime calls are chosen")
EVENT_COST_SPREAD = _declare("EVENT_COST_SPREAD", 0.5, "share of the cost", MEASURED,
    "spread of the profiler's overhead between machines and torch releases", "benchmarks/profiler_cost.py")
LEAST_GAP_NS = _declare("LEAST_GAP_NS", 100, "ns", CHOSEN,
    "shortest time between two events without a profiler", "PyTorch takes twice as long to dispatch a view op")
FEWEST_ALIKE = _declare("FEWEST_ALIKE", 3, "phases with the same events", CHOSEN,
    "gaps between events are replaced by median gaps if at least this many phases have the same events",
    "a median of 3 ignores one unusual value")
OUTLIER_TIMES = _declare("OUTLIER_TIMES", 3, "times the longest clean phase", CHOSEN,
    "a profiled phase that takes longer than this is not typical, and gets the time of other profiled phases",
    "phases with the same name rarely differ by a factor of 3, but saving a checkpoint or starting workers takes much longer")
MOST_NUMBERED_PHASES = _declare("MOST_NUMBERED_PHASES", 32, "phases of a step", CHOSEN,
    "if a step has several phases with the same name, each gets its own factor,"
    " unless the step has more phases than this", "equal to LONGEST_PERIOD")
STEPS_BEFORE_WINDOW = _declare("STEPS_BEFORE_WINDOW", 3, "steps", CHOSEN,
    "a clean step is compared with the last profile that began before it or at most this many steps after it, and a replayed"
    " step takes its times from this profile",
    "the recorder notices a new kind of step after two steps, and starts the profiler in the third")
LEAST_NOISE = _declare("LEAST_NOISE", 0.01, "share of a step", CHOSEN,
    "least uncertainty of a step time", "steps of one program vary by about 1 %")
SEEN_SHARE = _declare("SEEN_SHARE", 0.5, "share of the phase", CHOSEN,
    "if the recorder saw less than this of a phase of profiled steps, the phase begins elsewhere in the profile and is compared"
    " together with the phase before it",
    "a phase that begins at the same place in the recording and in the profile has the same length")

# --- same program?

SAME_SHAPES = _declare("SAME_SHAPES", 0.8, "similarity", CHOSEN,
    "two traces show the same program if the similarity of ops, shapes and dtypes is at least this",
    "ResNet-50 keeps more than 0.9 between PyTorch releases; one changed layer in ten means a different program")
SAME_NAMES = _declare("SAME_NAMES", 0.9, "similarity", FITTED,
    "two traces without shapes show the same program if the similarity of op names is at least this",
    "a small network with a different activation has a similarity of 0.82")
SAME_NUMBERS = _declare("SAME_NUMBERS", 0.03, "share of the calls", FITTED,
    "two runs of the same program may differ by this share in how often they call an op",
    "adding one layer to 24 layers changes the number of calls by 0.04")
OTHER_HALF_SHARE = _declare("OTHER_HALF_SHARE", 0.5, "share of the kernels", CHOSEN,
    "two runs of the same program differ by at most this share in half-precision work, if only kernel names show dtypes",
    "mixed precision uses both dtypes")
OTHER_LAYOUT_SHARE = _declare("OTHER_LAYOUT_SHARE", 0.2, "share of the images", CHOSEN,
    "two runs of the same program differ by at most this share in channels_last images",
    "a single layer may convert its input to another layout")

# --- differences between two traces

DEFAULT_TOLERANCE = _declare("DEFAULT_TOLERANCE", 0.05, "share", CHOSEN,
    "default of --tolerance: pace and GPU time may differ by this share",
    "usual in GPU benchmarks")
SAME_KERNEL_SHARE = _declare("SAME_KERNEL_SHARE", 0.05, "share of the kernel's time", CHOSEN,
    "two kernels count as equally long if their times differ by at most this share", "equal to DEFAULT_TOLERANCE")
SAME_KERNEL_NS = _declare("SAME_KERNEL_NS", 1000, "ns", PUBLISHED,
    "two kernels also count as equally long if their times differ by at most this",
    "Kineto before 2024 wrote whole microseconds")
NEGLIGIBLE_NS = _declare("NEGLIGIBLE_NS", 1000, "ns per step", CHOSEN,
    "a change of an op or a kernel is listed only if it is at least this large", "equal to SAME_KERNEL_NS")
NEGLIGIBLE_SHARE = _declare("NEGLIGIBLE_SHARE", 0.002, "share of a step", CHOSEN,
    "`trace explain` lists an effect only if it is at least this large", "step times of any program vary by more than this")
LEAST_PHASE_NS = _declare("LEAST_PHASE_NS", 20_000, "ns", CHOSEN,
    "the app lists a change of a phase's host time only if the change is at least this large", "a few calls of Python")

# --- data stalls

NOTICEABLE_WAIT = _declare("NOTICEABLE_WAIT", 0.02, "share of a step", CHOSEN,
    "waits for data, exposed copies and late ranks below this share are noise", "rule of thumb")
BUSY_MACHINE = _declare("BUSY_MACHINE", 0.1, "share of a step", CHOSEN,
    "if steps with data loading are faster than steps without by more than this share, another program was running",
    "rule of thumb")
READ_FROM_DISK = _declare("READ_FROM_DISK", 0.05, "share of the bytes", CHOSEN,
    "data does not count as cached if more than this share was read from storage", "rule of thumb")

# --- library and this machine

MOST_NOISE = _declare("MOST_NOISE", 0.1, "share of a phase's median", CHOSEN,
    "`trace library check` mentions phases with more noise", "rule of thumb")
SHORT_PHASE_NS = _declare("SHORT_PHASE_NS", 1_000_000, "ns", CHOSEN,
    "the noise of phases shorter than this is ignored", "the scheduler alone can cause delays of a millisecond")
LEAST_OF_SMALLER_BATCH = _declare("LEAST_OF_SMALLER_BATCH", 0.5, "share", CHOSEN,
    "`trace library check` mentions a batch that takes less than this share of the time of the next smaller batch",
    "a different algorithm may be faster, but not twice as fast")
SAME_PEAK = _declare("SAME_PEAK", 0.05, "share of the peak", CHOSEN,
    "a measured memory limit applies only to programs with a memory peak that differs by at most this share",
    "some training loops free gradients earlier than others")
STRAGGLER_SHARE = _declare("STRAGGLER_SHARE", 0.1, "share of the latest rank's lateness", CHOSEN,
    "a rank is a straggler only if its total lateness is at least this share of the largest total",
    "the app, the report and `trace info --details` show stragglers first, and all other ranks as one")
STRAGGLER_TIMES = _declare("STRAGGLER_TIMES", 2, "times the median lateness", CHOSEN,
    "a rank is a straggler only if its total lateness is more than this many times the median of all ranks",
    "ranks that differ only by chance are not stragglers")
RANKS_END_WITHIN_NS = _declare("RANKS_END_WITHIN_NS", 100_000, "ns", MEASURED,
    "communication kernels of several ranks are one collective if they end within this time",
    "kernels of one collective end within 2.5 to 49 us on the ranks of one machine (recordings in benchmarks/peers.py)")
SIMILAR_WORK = _declare("SIMILAR_WORK", 0.1, "share of the median number of kernels and copies", CHOSEN,
    "ranks are shown as one rank only if their numbers of kernels and copies differ by at most this share from the median rank",
    "stages of a pipeline are different work, even if none of them is late")
LATE_NS = _declare("LATE_NS", 500_000, "ns", CHOSEN,
    "`trace doctor` warns if sleeps end this late (99th percentile)",
    "0.1 % of a step of 500 ms")
LOW_DISK_BYTES = _declare("LOW_DISK_BYTES", 2 * 2**30, "bytes", CHOSEN,
    "`trace doctor` warns if less disk space is free", "recordings take hundreds of MB")
