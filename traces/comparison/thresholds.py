"""Defines all thresholds in traces/ and tui/. A comment at the end of a line gives the number's unit. A comment above a number
describes the number and says how we found it: "published", "measured", "chosen", or "chosen after seeing results".

    from traces.comparison.thresholds import DEFAULT_TOLERANCE      # 0.05

`docs/constants_page.py` reads these comments and writes docs/constants.md. `benchmarks/sensitivity.py` shows which results
change if a threshold changes by 20 %.
"""

# --- pace and what limits the pace

# the host runs ahead if the GPU's step is this much longer than the host's step; the difference must exceed the GPU's waits
# chosen: steps of one program vary by about 1 %
RUNS_AHEAD = 0.02  # share of the host pace

# a GPU that finishes a phase this soon after its launch does not limit the phase
# chosen: a launch and the last kernels of a phase take 10 to 50 µs on an H200
CAUGHT_UP_NS = 50_000  # ns

# in a long phase, CAUGHT_UP_NS is replaced by this share of the phase
# chosen: equal to RUNS_AHEAD
CAUGHT_UP_SHARE = 0.02  # share of the phase

# the GPU limits the training speed if it is busy for at least this share of the time
# chosen: even a fully loaded GPU is idle for some microseconds between kernels
ALWAYS_BUSY = 0.9  # share of the pace

# `trace info` mentions busier GPUs, and `trace predict` mentions less busy ones
# chosen: the GPU is busy for more than half of the time
MOSTLY_BUSY = 0.5  # share of the pace

# the GPU falls behind the host only if its lag grows by at least this share in each step
# chosen: steps of one program vary by about 1 %
FALLS_BEHIND_SHARE = 0.01  # share of the pace

# the GPU falls behind the host only if its lag grows in at least this share of the steps
# chosen: rule of thumb
STEPS_FALLING_BEHIND = 0.75  # share of the steps

# a step is reported as the start of a slowdown only if at least this many steps run before and after it
# chosen: two slow steps may be chance
STEPS_OF_A_LEVEL = 3  # steps

# without kernels, data loading is the bottleneck if waits take at least this share of a step
# chosen: rule of thumb
MUCH_DATA = 0.1  # share of the pace

# if a GPU's first work starts later than this after its launch, the cause is unknown
# chosen: a launch takes microseconds; work from before the recording may have kept the GPU busy
LATE_START_NS = 1_000_000  # ns

# profiler ranges count as steps if they contain at least this share of the launched GPU work
# chosen: an inference server also launches work between its ranges, such as the sampling of tokens
MOSTLY_MARKED = 0.5  # share of launched work

# parts of an inference run are batches if their numbers of ops differ at most by this factor
# chosen: batches of one model differ only in ops that depend on the data
MOST_OPS_OF_A_BATCH = 2  # times

# GPU time is compared in replayed steps with at least this share of recorded times
# chosen: more than 95 % of a replayed step usually has recorded times
MATCHED_STEP = 0.9  # share of the step's GPU time

# one rank limits the pace if it reaches collectives late by at least this share of a step
# chosen: equal to MUCH_DATA
MUCH_LATE = 0.1  # share of the pace

# a runtime function is named as a cause of idle time if its calls cover at least this share
# chosen: rule of thumb
MUCH_IN_ONE_CALL = 0.25  # share of idle time

# steps vary a lot if half their interquartile range reaches this share; means are then compared
# chosen: steps of one program usually vary by about 1 %
MUCH_SPREAD = 0.15  # share of the pace

# step times repeat if each step differs by at most this share from the step one period earlier
# chosen: steps of one kind usually vary by about 1 %
REPEATS_WITHIN = 0.05  # share of the mean

# steps after a profile are left out of medians if at least this many clean steps ran before it
# chosen: a median of 5 steps ignores 2 unusual steps
FEWEST_CLEAN_STEPS = 5  # steps

# step times repeat only if at least this many pairs of steps agree
# chosen: two or three pairs of steps may agree by chance
FEWEST_PAIRS = 4  # pairs of steps

# longest period after which step times may repeat
# chosen: gradients are rarely accumulated over more batches than this
LONGEST_PERIOD = 32  # steps

# `trace info` names a step that takes at least this many times the step time
# chosen: such a step does other work, too, for example saving a checkpoint or validating the model
SLOW_STEP = 10  # times the pace

# `trace info` names steps of at least this length if they lengthen the mean step; a comparison uses means if the mean step of
# one trace is at least this long; a phase is not typical if it is this many times as long or as short as the median phase
# chosen: rule of thumb
LONG_STEP = 2  # times the pace, or times the median phase

# the noise floor is computed only from at least this many steps
# chosen: quartiles of three values are meaningless
STEPS_FOR_NOISE = 4  # steps

# if more steps than this are compared, the noise of their median or mean is smaller than the noise of a single step
# chosen: two standard errors of the difference of two medians, see Note [Noise of an average] in figures/spread.py
CERTAIN_STEPS = 28  # steps

# figures are unreliable if a problem affects at least this share of the kernels
# chosen: missing 1 % of the kernels changes idle time about as much as steps vary
SERIOUS_SHARE = 0.01  # share of the kernels

# reports mention the overhead of the replaying machine if it takes at least this share of a step
# chosen: rule of thumb
OWN_HOST_SHARE = 0.1  # share of a step

# memory that all ranks share; `--nproc` is rejected if the ranks need more memory than available
# measured: benchmarks/ranks.py: torch and the recording
SHARED_BYTES = 400 << 20  # bytes

# memory of each rank in addition to SHARED_BYTES
# measured: benchmarks/ranks.py: ResNet-18 under DDP
RANK_BYTES = 46 << 20  # bytes

# `trace gate init` allows a step to be at least this much slower
# chosen: rule of thumb
LEAST_GATE_MARGIN_PERCENT = 3  # % of the step time

# `trace gate init` allows a memory peak to be this much higher
# chosen: rule of thumb
GATE_MEMORY_MARGIN_PERCENT = 2  # % of the memory peak

# --- waits, idle time and launches

# a call that waits for the GPU returns at most this long after the GPU work has ended
# measured: 5 to 32 us on six kinds of GPUs (recordings in benchmarks/peers.py)
RETURN_NS = 30_000  # ns

# largest difference between the clocks of host and GPU
# measured: calls returned up to 8 us before the GPU work ended (recordings in benchmarks/peers.py)
CLOCK_NS = 10_000  # ns

# idle times are not reliable if a kernel begins more than this before the call that launched it
# chosen: much longer than CLOCK_NS, and as long as a short step
CLOCKS_APART_NS = 1_000_000  # ns

# the GPU's clock is late if all launches on an idle GPU, at least this many, exceed CLOCKS_APART_NS
# chosen: the fastest launch on an idle GPU took at most 15 us in 60 public recordings
LEAST_IDLE_LAUNCHES = 3  # launches

# a shorter call counts as a wait only if CUDA's documentation says that the call waits
# chosen after seeing results: between kernels of 5 us, any short call ends just after a kernel by chance
LEAST_WAIT_NS = 50_000  # ns

# divide a call into this many parts; the call waited for a kernel that ends in the last part
# chosen after seeing results: by chance, one call in ten looks like a wait
LAST_PART_OF_A_WAIT = 10  # parts of the call

# a kernel that waits for another stream begins at most this long after the awaited work
# chosen: an event takes some microseconds
EDGE_NS = 10_000  # ns

# a launching call that takes at least this long is listed with its reason
# chosen: launches take 5 to 20 us
LONG_LAUNCH_NS = 100_000  # ns

# a launch queue of this length is full
# measured: a Tesla V100 never had more than 1022 pending launches (recording v100_absolute_ns)
FULL_QUEUE = 1000  # launches

# the launch queue may be full if a phase begins or ends with this many queued launches
# chosen after seeing results: an H100's full queue held about 940 to 1160 launches (ResNet-50, batch 128)
NEARLY_FULL = 0.9  # share of FULL_QUEUE

# if indices were not recorded, the bytes of an op are computed from a launch grid of at least this size
# chosen after seeing results: a partly filled last block changes the result by at most 5 % (DEFAULT_TOLERANCE)
INDEX_BLOCKS = 20  # blocks

# --- import

# a first step is a warm-up step if its GPU time is at least this multiple of later steps
# chosen: autotuning and compilation run kernels several times
SLOW_START = 2.0  # times the median

# at least this many training steps are left after warm-up steps are removed
# chosen: the first step has no earlier step to compare with
FEWEST_STEADY = 2  # steps

# spans may overlap by this time because profilers wrote whole microseconds
# published: Kineto before 2024 wrote microseconds
ROUNDING_NS = 1000  # ns

# --- what the profiler costs

# profiler overhead by kind of event: op with shapes and without, range, module, runtime call, launch, memory, region, Triton
# measured: benchmarks/profiler_cost.py and benchmarks/programs/compiled; chosen for ops without shapes and runtime calls
EVENT_COSTS = (1.0, 0.8, 0.65, 1.7, 1.0, 1.7, 0.14, 15.0, 25.0)  # times the overhead of an op with shapes

# spread of the profiler's overhead between machines and torch releases
# measured: benchmarks/profiler_cost.py; with 0.2, replays of some recordings of real GPUs were worse, and none was better
EVENT_COST_SPREAD = 0.5  # share of the cost

# shortest time between two events without a profiler
# chosen: PyTorch takes twice as long to dispatch a view op
LEAST_GAP_NS = 100  # ns

# at least this many steps of a kind are needed to compare their times with other steps
# chosen: a median of 3 ignores one unusual value
FEWEST_ALIKE = 3  # steps of a kind

# a profiled phase that takes longer than this is not typical, and gets the time of other profiled phases
# chosen: only unusual work, such as saving a checkpoint, makes a phase 3 times as long
OUTLIER_TIMES = 3  # times the longest clean phase

# phases of the same name get separate factors if the step has at most this many phases
# chosen: equal to LONGEST_PERIOD
MOST_NUMBERED_PHASES = 32  # phases of a step

# a clean step uses the last profile that began at most this many steps later
# chosen: the recorder notices a new kind of step after two steps, and starts the profiler in the third
STEPS_BEFORE_WINDOW = 3  # steps

# least uncertainty of a step time
# chosen: steps of one program vary by about 1 %
LEAST_NOISE = 0.01  # share of a step

# a profiled phase that was recorded less completely is compared together with the previous phase
# chosen: a phase that begins at the same place in recording and profile has the same length
SEEN_SHARE = 0.5  # share of the phase

# --- same program?

# two traces show the same program if the similarity of ops, shapes and dtypes is at least this
# chosen: similarity is above 0.9 for ResNet-50 in different PyTorch releases, and lower if one layer in ten changes
SAME_SHAPES = 0.8  # similarity

# two traces without shapes show the same program if the similarity of op names is at least this
# chosen after seeing results: a small network with a different activation has a similarity of 0.82
SAME_NAMES = 0.9  # similarity

# two runs of the same program, or two of its steps, may differ by this share in how often they call ops
# chosen after seeing results: adding one layer to 24 layers changes the number of calls by 0.04
SAME_NUMBERS = 0.03  # share of the calls

# in two runs of one program, the shares of half-precision kernels differ by at most this
# chosen: mixed precision uses both dtypes
OTHER_HALF_SHARE = 0.5  # share of the kernels

# in two runs of one program, the shares of channels_last images differ by at most this
# chosen: a single layer may convert its input to another layout
OTHER_LAYOUT_SHARE = 0.2  # share of the images

# --- differences between two traces

# default of --tolerance: pace and GPU time may differ by this share
# chosen: usual in GPU benchmarks
DEFAULT_TOLERANCE = 0.05  # share

# two kernels count as equally long if their times differ by at most this share
# chosen: equal to DEFAULT_TOLERANCE
SAME_KERNEL_SHARE = 0.05  # share of the kernel's time

# two kernels also count as equally long if their times differ by at most this
# published: Kineto before 2024 wrote whole microseconds
SAME_KERNEL_NS = 1000  # ns

# a change of an op or a kernel is listed only if it is at least this large
# chosen: equal to SAME_KERNEL_NS
NEGLIGIBLE_NS = 1000  # ns per step

# `trace explain` lists an effect only if it is at least this large
# chosen: step times of any program vary by more than this
NEGLIGIBLE_SHARE = 0.002  # share of a step

# `trace diff` names the largest reason only if the reason explains at least this share of the difference
# chosen: a smaller effect does not explain a difference
LEAST_REASON = 0.05  # share of the difference

# the app lists a change of a phase's host time only if the change is at least this large
# chosen: a few Python calls take this long
LEAST_PHASE_NS = 20_000  # ns

# --- data stalls

# waits for data, exposed copies and late ranks below this share are noise
# chosen: rule of thumb
NOTICEABLE_WAIT = 0.02  # share of a step

# a smaller share of estimated GPU time is ignored
# chosen: an error of 20 % in one hundredth of the GPU time is as small as the noise
NOTICEABLE_ESTIMATE = 0.01  # share of the GPU time

# another program was running if steps with data loading are faster by more than this share
# chosen: rule of thumb
BUSY_MACHINE = 0.1  # share of a step

# data does not count as cached if more than this share was read from storage
# chosen: rule of thumb
READ_FROM_DISK = 0.05  # share of the bytes

# --- library and this machine

# `trace library check` mentions phases with more noise
# chosen: rule of thumb
MOST_NOISE = 0.1  # share of a phase's median

# the noise of phases shorter than this is ignored
# chosen: the scheduler alone can cause delays of a millisecond
SHORT_PHASE_NS = 1_000_000  # ns

# `trace library check` mentions a batch that takes less than this share of the next smaller one
# chosen: a different algorithm may be faster, but not twice as fast
LEAST_OF_SMALLER_BATCH = 0.5  # share

# a measured memory limit applies to programs with a memory peak within this share
# chosen: some training loops free gradients earlier than others
SAME_PEAK = 0.05  # share of the peak

# a rank is a straggler only if its total lateness is at least this share of the largest total
# chosen: the app, the report and `trace info --details` show stragglers first
STRAGGLER_SHARE = 0.1  # share of the latest rank's lateness

# a straggler's total lateness is more than this many times the median of all ranks
# chosen: ranks that differ only by chance are not stragglers
STRAGGLER_TIMES = 2  # times the median lateness

# communication kernels of several ranks are one collective if they end within this time
# measured: within 2.5 to 49 us on the ranks of one machine (recordings in benchmarks/peers.py)
RANKS_END_WITHIN_NS = 100_000  # ns

# the clocks of two ranks are compared only if the ranks share this many collectives
# chosen: two collectives do not show whether a difference is constant
FEWEST_ENDS = 3  # collectives

# the difference between the clocks of two machines changes by at most this share of the time that passes
# chosen: RFC 5905 (NTP) assumes 15 parts per million and allows 500
CLOCK_DRIFT = 1e-4  # share of the time

# two recordings less than this time apart are from one process
# chosen: importing torch and creating a CUDA context takes longer
NEW_PROCESS_NS = 2_000_000_000  # ns

# two ranks recorded more than this time apart are from different runs
# chosen: machines whose clocks are wrong by a minute cannot run one job in most clusters
CLOCKS_WITHIN_NS = 60_000_000_000  # ns

# ranks are shown as one only if their numbers of kernels and copies differ by at most this share
# chosen: pipeline stages do different work, so they are shown separately even if none is late
SIMILAR_WORK = 0.1  # share of the median number of kernels and copies

# `trace doctor` warns if the 99th percentile of a sleep's delay is above this
# chosen: 0.1 % of a step of 500 ms
LATE_NS = 500_000  # ns

# `trace doctor` warns if less disk space is free
# chosen: recordings take hundreds of MB
LOW_DISK_BYTES = 2 * 2**30  # bytes
