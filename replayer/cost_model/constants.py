"""Defines all numeric constants of the estimates, each with a unit, a meaning and a source.

    from replayer.cost_model.constants import CACHED_SHARE      # 0.5, a plain number
    DECLARED["CACHED_SHARE"].origin                             # ConstantOrigin.CHOSEN

The script `docs/constants_page.py` writes docs/constants.md from `DECLARED`.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.comparison.declared_constants import ConstantOrigin, DeclaredConstants

DECLARED = DeclaredConstants()
_declare = DECLARED.declare

PUBLISHED, MEASURED, CHOSEN, FITTED = ConstantOrigin

# fmt: off

# --- kernels

KERNEL_FLOOR_NS = _declare("KERNEL_FLOOR_NS", 1_500, "ns", CHOSEN,
    "duration of a kernel that does almost nothing, if the recording does not show this duration",
    "typical of data-center GPUs")
LONGEST_FLOOR_NS = _declare("LONGEST_FLOOR_NS", 10_000, "ns", MEASURED,
    "a recording's shortest kernels show the least kernel duration only if they are at most this long",
    "shortest kernels of the real recordings: at most 6 us, on an A100")
BANDWIDTH_REACHED = _declare("BANDWIDTH_REACHED", 0.6, "share of the data sheet", CHOSEN,
    "memory bandwidth of ordinary kernels, if it cannot be fitted to the recording", "rule of thumb")
SHORT_KERNEL_NS = _declare("SHORT_KERNEL_NS", 20_000, "ns", CHOSEN,
    "ops with shorter kernels (mean) show launch speed, not bandwidth, and are excluded from the fit",
    "an order of magnitude above KERNEL_FLOOR_NS")
SHARED_LANES_REACHED = _declare("SHARED_LANES_REACHED", 0.75, "share of peak FLOP/s", PUBLISHED,
    "efficiency of matrix products on multiprocessors with 128 fp32 lanes; see Note [Shared lanes]",
    "github.com/Yinghan-Li/YHs_Sample/issues/4: 29.2 of 40.1 TFLOP/s on an RTX 4070 Ti")
TENSOR_CORES_REACHED = _declare("TENSOR_CORES_REACHED", 0.7, "share", CHOSEN,
    "efficiency of a matrix product on tensor cores relative to fp32; see Note [Units that were not measured]",
    "feeding tensor cores takes more memory traffic and power")
UNALIGNED_SLOWER = _declare("UNALIGNED_SLOWER", 2.0, "times as long", CHOSEN,
    "duration of a matrix product on tensor cores if its sizes are not multiples of 8", "such products use slower memory loads")
SLOWER_BY_BYTES: Mapping[str, float] = _declare("SLOWER_BY_BYTES", {"batch_norm": 1.3, "bias": 2.5, "memory": 1.6},
    "multiple of the time at memory bandwidth", FITTED,
    "duration of memory-bound kernels, by kind of work",
    "batch norm: a ResNet-50 on a V100 and VGGs with and without it; bias: networks with one; the rest: rule of thumb")
DEPTHWISE_SLOWER: Mapping[str, tuple[float, float]] = _declare(
    "DEPTHWISE_SLOWER", {"depthwise": (1.6, 0.2), "depthwise_backward": (2.0, 0.64)},
    "multiple of the time at memory bandwidth: a constant, plus a value per element of the window", FITTED,
    "duration of depthwise convolutions, which read the window again for each output",
    "networks with depthwise convolutions on a V100")
PASSES: Mapping[str, int] = _declare(
    "PASSES", {"batch_norm": 3, "batch_norm_backward": 5, "max_pool2d_backward": 4, "fill": 1, "zero": 1},
    "passes over the input", CHOSEN,
    "memory traffic of ops that move more or less than their inputs and outputs",
    "reads and writes of the kernels, such as a pass for statistics before the normalization")
CACHED_SHARE = _declare("CACHED_SHARE", 0.5, "share", CHOSEN,
    "share of an op's bytes, up to the size of the L2 cache, that the previous op left in the L2 cache",
    "rule of thumb")
NARROWEST_TILE = _declare("NARROWEST_TILE", 32, "rows or columns", PUBLISHED,
    "the smallest tile of a matrix library's kernels", "names of cuBLAS kernels: sgemm_32x128")
PICTURE_CHANNELS = _declare("PICTURE_CHANNELS", 4, "channels", CHOSEN,
    "a convolution with at most this many input channels is the network's first, so its input needs no gradient",
    "pictures have 1, 3 or 4 channels")
ELEMENTWISE_COLUMNS = _declare("ELEMENTWISE_COLUMNS", 4096, "elements", CHOSEN,
    "row length that stands for an elementwise op in the learned curves",
    "the middle of the measured row lengths")
MEASURED_TENSORS: Mapping[str, int] = _declare(
    "MEASURED_TENSORS", {"elementwise": 3, "elementwise1": 2, "softmax": 2, "layer_norm": 2},
    "tensors of fp32", PUBLISHED,
    "number of tensors that the measured operators read and write, by kind of work",
    "NeuSight's operators, from which the curves were learned")
CURVE_LIMITS: Mapping[str, tuple[int, ...]] = _declare(
    "CURVE_LIMITS", {"matmul": (1024, 16_384, 65_536, 65_536), "conv3": (256, 2048, 2048, 65_536), "rows": (1 << 22, 8192)},
    "sizes of work", PUBLISHED,
    "the largest sizes in a curve's training data; larger work is assumed to be as efficient",
    "ranges of NeuSight's measurements")
SLOT_POWERED: Mapping[str, tuple[int, str, int]] = _declare("SLOT_POWERED", {
        "Tesla P4": (75, "Tesla P100-PCIE-16GB", 250),
        "Tesla T4": (70, "Tesla V100-PCIE-16GB", 250),
        "NVIDIA L4": (72, "NVIDIA GeForce RTX 4090", 450),
    }, "W, board, W", PUBLISHED,
    "boards powered by their slot, and the largest board of the same process; see Note [Sustained clocks]",
    "data sheets")

# --- estimates of unrecorded ops from recorded ops

CURVE_COUNTS = _declare("CURVE_COUNTS", 0.25, "weight", FITTED,
    "a convolution's time grows with the batch by a mean of the learned curve (this weight) and a power of the batch",
    "the best of four formulas in each of six folds of networks: benchmarks/what_if.py, row `folds`")
GROWTH = _declare("GROWTH", 0.9, "exponent", FITTED,
    "a convolution's time grows with this power of the batch", "chosen together with CURVE_COUNTS")
NEAR_OCTAVES = _declare("NEAR_OCTAVES", 1.0, "octaves of size", CHOSEN,
    "recorded ops within this distance have the most weight; see Note [The nearest recorded ops]",
    "a factor of two in size")
FADING_OCTAVES = _declare("FADING_OCTAVES", 1.5, "octaves of size", CHOSEN,
    "distance over which corrections by recorded ops become weaker", "libraries use different algorithms for different sizes")
ROWS_COUNT = _declare("ROWS_COUNT", 0.5, "octaves of distance per octave of rows", CHOSEN,
    "weight of differences in batch and image size; a library chooses its algorithm by channels and depth",
    "how libraries choose algorithms")
OTHER_OP_OCTAVES = _declare("OTHER_OP_OCTAVES", 2.0, "octaves", CHOSEN,
    "distance assumed for a recorded op with a different name and the same kind of work", "rule of thumb")
MOST_SLOWER = _declare("MOST_SLOWER", 4.0, "times the curve", CHOSEN,
    "if a recorded op took longer, the excess is extra work that the curve does not include and grows with the size",
    "more than the difference between two libraries on one GPU")
BEYOND_SHEETS = _declare("BEYOND_SHEETS", 1.5, "times", CHOSEN,
    "largest ratio of two GPUs' op times, relative to the ratio of their data sheets", "libraries differ too")

# --- copies and communication

PINNED_GBPS = _declare("PINNED_GBPS", 12.1, "GB/s", PUBLISHED,
    "bandwidth of pinned copies between host and device, if the recording has no such copies",
    "GPU Emulator for Easy Reproducibility of DNN Training (Summer of Reproducibility 2023): 77.07 MB in 6.35 ms")
PAGEABLE_GBPS = _declare("PAGEABLE_GBPS", 4.4, "GB/s", PUBLISHED,
    "bandwidth of pageable copies between host and device, if the recording has no such copies",
    "the same study: 77.07 MB in 17.35 ms")
BANDWIDTH_FROM_BYTES = _declare("BANDWIDTH_FROM_BYTES", 65_536, "bytes", CHOSEN,
    "the duration of a smaller copy shows latency rather than bandwidth",
    "a few microseconds at the bandwidth of PCIe")
RING_BANDWIDTH_FROM_BYTES = _declare("RING_BANDWIDTH_FROM_BYTES", 262_144, "bytes on the wire", CHOSEN,
    "the duration of a smaller operation between ranks shows latency rather than bandwidth",
    "the latency of a ring equals the transfer time at about this size")
GLOO_LATENCY_NS = _declare("GLOO_LATENCY_NS", 100_000, "ns", MEASURED,
    "duration of an all-reduce of one number by Gloo between two processes",
    "TCP within one machine, two cores, PyTorch 2.13")
GLOO_BYTES_PER_S = _declare("GLOO_BYTES_PER_S", 1.5e9, "bytes/s", MEASURED,
    "bandwidth of Gloo between two processes",
    "all-reduces of 1 to 24 MiB within one machine; 1.1e9 between machines (discuss.pytorch.org/t/194008)")
BASE_LATENCY_NS = _declare("BASE_LATENCY_NS", 6_600, "ns", PUBLISHED,
    "latency of a small NCCL operation, without its hops between GPUs",
    "nccl 2.19, src/graph/tuning.cc, baseLat of ring and LL; two A100s come to 7.8 us, recorded 7.6 us")
SWITCHED_GBPS = _declare("SWITCHED_GBPS", 200, "GB/s", PUBLISHED,
    "links of at least this bandwidth connect each GPU with every other GPU (NVSwitch, xGMI)",
    "data sheets of linked GPUs")
BUCKET_BYTES = _declare("BUCKET_BYTES", 25 << 20, "bytes", PUBLISHED,
    "size of DistributedDataParallel's buckets, and the smallest unit that FSDP is expected to wrap",
    "torch.nn.parallel.DistributedDataParallel, bucket_cap_mb")
FIRST_BUCKET_BYTES = _declare("FIRST_BUCKET_BYTES", 1 << 20, "bytes", PUBLISHED,
    "size of DistributedDataParallel's first bucket", "torch.distributed._DEFAULT_FIRST_BUCKET_BYTES")
REPLICA_PER_FORWARD = _declare("REPLICA_PER_FORWARD", 1.4, "times the host's forward pass", FITTED,
    "host time of torch.nn.parallel.replicate per replica",
    "published speedups suggest it; six networks take 0.8 to 2.1 (benchmarks/programs/replicate_host.py)")

# --- optimizer steps without measurements in the library

MOVES_PER_PARAMETER = _declare("MOVES_PER_PARAMETER", 11, "reads and writes of each parameter's bytes", CHOSEN,
    "memory traffic of an optimizer step and zero_grad, if a library entry has only forward and backward passes",
    "parameter, gradient and state of a typical optimizer")
OPTIMIZER_BANDWIDTH_REACHED = _declare("OPTIMIZER_BANDWIDTH_REACHED", 0.8, "share of the data sheet", CHOSEN,
    "memory bandwidth of an optimizer's kernels", "long elementwise kernels come close to the peak")

STAGED_AT_ONCE_BYTES = _declare("STAGED_AT_ONCE_BYTES", 64 << 10, "bytes", PUBLISHED,
    "an asynchronous copy from pageable memory up to this size does not make the host wait",
    "CUDA runtime, API synchronization behavior")

# --- reasons for the start of a recorded kernel

LAUNCH_EXPLAINS_NS = _declare("LAUNCH_EXPLAINS_NS", 40_000, "ns", MEASURED,
    "if a kernel starts later than this after its launch, something else delayed the kernel", "ten real recordings")
QUEUE_EXPLAINS_NS = _declare("QUEUE_EXPLAINS_NS", 20_000, "ns", MEASURED,
    "if a kernel starts later than this after its predecessor on the stream, something else delayed the kernel",
    "ten real recordings")
NEAR_LAUNCHES = _declare("NEAR_LAUNCHES", 256, "launches", CHOSEN,
    "the awaited and the waiting kernel of a cudaStreamWaitEvent are at most so many launches away from the call",
    "cuDNN's LSTM alternates between its streams every few launches")
EDGE_EXPLAINS_NS = _declare("EDGE_EXPLAINS_NS", 25_000, "ns", MEASURED,
    "a kernel on another stream can cause the delay only if that kernel ended at most this long before", "ten real recordings")
LAUNCH_QUEUE_DEPTH = _declare("LAUNCH_QUEUE_DEPTH", 1022, "launches", MEASURED,
    "number of pending launches per stream before the host waits; a recording may show more",
    "Note [A full launch queue] in timing/stream.py")
TYPICAL_LATENCY_NS = _declare("TYPICAL_LATENCY_NS", 7_000, "ns", CHOSEN,
    "time from a launch to the kernel's start on an idle stream, if a recording has too few kernels to show this time",
    "typical of recordings with enough kernels")
TYPICAL_GAP_NS = _declare("TYPICAL_GAP_NS", 1_000, "ns", CHOSEN,
    "time between two kernels on a stream, if a recording has too few kernels to show this time",
    "typical of recordings with enough kernels")
LEAST_SHARE_OF_BUSIEST = _declare("LEAST_SHARE_OF_BUSIEST", 0.1, "share", CHOSEN,
    "a device counts as used if it has at least this share of the busiest device's kernels",
    "a few copies do not make a device part of the program")
WAIT_CAME_BACK_NS = _declare("WAIT_CAME_BACK_NS", 2_000, "ns", CHOSEN,
    "by the device's clock, an awaited kernel may end this long after the host's wait",
    "accuracy of a profiler's clocks")
WAIT_FOLLOWED_NS = _declare("WAIT_FOLLOWED_NS", 100_000, "ns", CHOSEN,
    "a wait that ends later than this after its last kernel also waited for something else", "rule of thumb")

# --- matching of the script's work to recorded work

SAME_SHARE = _declare("SAME_SHARE", 0.8, "share of time and of calls", CHOSEN,
    "a script is the recorded program if at least this share is matched; see Note [Another program]",
    "a different torch release has a few different ops")
DIFFERENT_COUNT_SHARE = _declare("DIFFERENT_COUNT_SHARE", 0.03, "share of time, or of calls", FITTED,
    "a script is a different program if the counts of its ops differ by at least this share; see Note [Another program]",
    "one layer more or less among 24 gives 0.04")
STEPS_BEFORE_WINDOW = _declare("STEPS_BEFORE_WINDOW", 3, "steps", CHOSEN,
    "a replayed step takes its times from the last window of the profiler that began at most this many steps after it",
    "two steps show a new kind of step, and the profiler attaches in the third")
ALIKE_SHARE = _declare("ALIKE_SHARE", 0.05, "share of the step", CHOSEN,
    "two steps are similar if phases that only one of them has are shorter; see Note [Training steps of several kinds]",
    "rule of thumb")
AGAIN_SHARE = _declare("AGAIN_SHARE", 0.9, "share of calls", CHOSEN,
    "a recorded step has a further call of the model if at least this share of the last call is left", "rule of thumb")
BORROWED_AHEAD = _declare("BORROWED_AHEAD", 16, "recorded launches", CHOSEN,
    "a call may use a recorded call of a different shape up to this far ahead",
    "the order may differ within a layer, but not between layers")
SIMILAR_GRAPHS = _declare("SIMILAR_GRAPHS", 1.5, "factor", CHOSEN,
    "a captured CUDA graph may take the times of a recorded graph if their kernel counts differ by at most this factor",
    "an op may launch two kernels")
RENAMED_CALLS = _declare("RENAMED_CALLS", 64, "calls", CHOSEN,
    "number of calls by which a phase may always differ between torch releases",
    "rule of thumb")
LITTLE_REMAINDER = _declare("LITTLE_REMAINDER", 0.2, "share of the phase's work", CHOSEN,
    "unmatched recorded work is charged up to this share; see Note [When the remainder is charged]",
    "small differences between releases")
OVER_ESTIMATE = _declare("OVER_ESTIMATE", 4, "times the estimate", CHOSEN,
    "unmatched recorded work belongs to the unmatched ops if its time is at most this multiple of their estimate",
    "estimates may be too short by this factor")
KERNELS_PER_TENSOR = _declare("KERNELS_PER_TENSOR", 2, "kernels", CHOSEN,
    "number of kernels per tensor of a list in a different torch release", "optimizers without foreach kernels")
MOST_UNSCALED = _declare("MOST_UNSCALED", 0.05, "share of GPU time", CHOSEN,
    "the error of a prediction is unknown if more than this share of the recorded GPU time has no shapes",
    "the errors were measured with recordings that have shapes")
