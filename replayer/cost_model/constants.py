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
    "the shortest recorded kernels show the shortest possible duration only if they are at most this long",
    "shortest kernels of the real recordings: at most 6 us, on an A100")
BANDWIDTH_REACHED = _declare("BANDWIDTH_REACHED", 0.6, "share of the data sheet", CHOSEN,
    "memory bandwidth of ordinary kernels, if the recording does not show the bandwidth", "rule of thumb")
SHORT_KERNEL_NS = _declare("SHORT_KERNEL_NS", 20_000, "ns", CHOSEN,
    "ops with shorter kernels are ignored when bandwidth is computed, because their times show the launch speed",
    "an order of magnitude above KERNEL_FLOOR_NS")
SHARED_LANES_REACHED = _declare("SHARED_LANES_REACHED", 0.75, "share of peak FLOP/s", PUBLISHED,
    "efficiency of matrix products on multiprocessors with 128 fp32 lanes; see Note [Shared lanes] in efficiency.py",
    "github.com/Yinghan-Li/YHs_Sample/issues/4: 29.2 of 40.1 TFLOP/s on an RTX 4070 Ti")
TENSOR_CORES_REACHED: Mapping[str, float] = _declare(
    "TENSOR_CORES_REACHED", {"matmul": 0.9, "conv": 0.7, "conv_weight": 0.7}, "share", FITTED,
    "efficiency of a matrix product or convolution on tensor cores relative to a matrix product in fp32;"
    " see Note [Units that were not measured] in op_costs.py",
    "recordings of an H100: language models and a U-Net")
ATTENTION_REACHED = _declare("ATTENTION_REACHED", 0.45, "share of peak FLOP/s", FITTED,
    "efficiency of fused attention on tensor cores",
    "recordings of an H100 and an H200, with 197 to 1 024 tokens, causal or not: 0.6 to 1.2 times the estimate")
FLOPS_PER_QUERY = _declare("FLOPS_PER_QUERY", 230, "FLOPs of fp32 per element of the queries and matrix product", FITTED,
    "the part of fused attention that does not use tensor cores; it limits the speed if there are few keys",
    "the same recordings")
UNALIGNED_SLOWER = _declare("UNALIGNED_SLOWER", 2.0, "times as long", CHOSEN,
    "duration of a matrix product on tensor cores if its sizes are not multiples of 8", "such products use slower memory loads")
SLOWER_BY_BYTES: Mapping[str, float] = _declare(
    "SLOWER_BY_BYTES", {"batch_norm": 1.3, "bias": 2.5, "transpose": 1.3, "memory": 1.6},
    "times as long as at memory bandwidth", FITTED,
    "duration of memory-bound kernels, by kind of work",
    "batch norm: ResNet-50 on a V100, and VGG with and without batch norm; bias: networks with biases;"
    " transpose: ResNet-50 on an H100; memory: rule of thumb")
DEPTHWISE_SLOWER: Mapping[str, tuple[float, float]] = _declare(
    "DEPTHWISE_SLOWER", {"depthwise": (1.6, 0.2), "depthwise_backward": (2.0, 0.64)},
    "times as long as at memory bandwidth: a constant, plus a value for each element of the window", FITTED,
    "duration of depthwise convolutions, which read a window of inputs for each output",
    "networks with depthwise convolutions on a V100")
PASSES: Mapping[str, int] = _declare(
    "PASSES", {"batch_norm": 3, "batch_norm_backward": 5, "max_pool2d_backward": 4, "fill": 1, "zero": 1},
    "passes over the input", CHOSEN,
    "memory traffic of ops that move more or less than their inputs and outputs",
    "the kernels read their input several times, for example once for the statistics and once for the normalization")
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
    "middle of the row lengths that were measured")
MEASURED_TENSORS: Mapping[str, int] = _declare(
    "MEASURED_TENSORS", {"elementwise": 3, "elementwise1": 2, "softmax": 2, "layer_norm": 2},
    "tensors of fp32", PUBLISHED,
    "number of tensors that the measured operators read and write, by kind of work",
    "the curves were learned from NeuSight's operators")
CURVE_LIMITS: Mapping[str, tuple[int, ...]] = _declare(
    "CURVE_LIMITS", {"matmul": (1024, 16_384, 65_536, 65_536), "conv3": (256, 2048, 2048, 65_536), "rows": (1 << 22, 8192)},
    "sizes of work", PUBLISHED,
    "the largest sizes in a curve's training data; larger ops are assumed to be as efficient",
    "ranges of NeuSight's measurements")
SLOT_POWERED: Mapping[str, tuple[int, str, int]] = _declare("SLOT_POWERED", {
        "Tesla P4": (75, "Tesla P100-PCIE-16GB", 250),
        "Tesla T4": (70, "Tesla V100-PCIE-16GB", 250),
        "NVIDIA L4": (72, "NVIDIA GeForce RTX 4090", 450),
    }, "W, board, W", PUBLISHED,
    "boards that take their power from the slot, and the largest board of the same manufacturing process;"
    " see Note [Sustained clocks] in efficiency.py",
    "data sheets")

# --- estimates of unrecorded ops from recorded ops

CURVE_COUNTS = _declare("CURVE_COUNTS", 0.25, "weight", FITTED,
    "weight of the learned curve in the estimated growth of a convolution's time with the batch size;"
    " a power law has the other weight",
    "in cross-validation, this was the best of four formulas in each of six folds (benchmarks/what_if.py, row `folds`)")
GROWTH = _declare("GROWTH", 0.9, "exponent", FITTED,
    "exponent of the power law for how a convolution's time grows with the batch", "chosen together with CURVE_COUNTS")
NEAR_OCTAVES = _declare("NEAR_OCTAVES", 1.0, "octaves of size", CHOSEN,
    "recorded ops of nearly equal size (within this distance) have the most weight;"
    " see Note [The nearest recorded ops] in op_costs.py",
    "a factor of two in size")
FADING_OCTAVES = _declare("FADING_OCTAVES", 1.5, "octaves of size", CHOSEN,
    "the more a recorded op differs in size, the less it corrects an estimate;"
    " this is the distance at which its weight fades", "libraries use different algorithms for different sizes")
ROWS_COUNT = _declare("ROWS_COUNT", 0.5, "octaves for a factor of 2", CHOSEN,
    "weight of a difference in batch or image size, compared with a difference in channels or depth",
    "libraries choose algorithms mainly by channels and depth")
OTHER_OP_OCTAVES = _declare("OTHER_OP_OCTAVES", 2.0, "octaves", CHOSEN,
    "distance that a recorded op has if it does the same kind of work under a different name", "rule of thumb")
MOST_SLOWER = _declare("MOST_SLOWER", 4.0, "times the curve", CHOSEN,
    "if a recorded op took longer than this, the rest of its time is extra work that the curve does not include",
    "two libraries on one GPU differ by less than this")
BEYOND_SHEETS = _declare("BEYOND_SHEETS", 1.5, "times", CHOSEN,
    "the ratio of two GPUs' op times differs at most by this factor from the ratio of their data sheets",
    "the GPUs may use different libraries")

# --- copies and communication

PINNED_GBPS = _declare("PINNED_GBPS", 12.1, "GB/s", PUBLISHED,
    "bandwidth of pinned copies between host and device, if the recording has no such copies",
    "GPU Emulator for Easy Reproducibility of DNN Training (Summer of Reproducibility 2023): 77.07 MB in 6.35 ms")
PAGEABLE_GBPS = _declare("PAGEABLE_GBPS", 4.4, "GB/s", PUBLISHED,
    "bandwidth of pageable copies between host and device, if the recording has no such copies",
    "GPU Emulator for Easy Reproducibility of DNN Training (Summer of Reproducibility 2023): 77.07 MB in 17.35 ms")
BANDWIDTH_FROM_BYTES = _declare("BANDWIDTH_FROM_BYTES", 65_536, "bytes", CHOSEN,
    "the duration of a smaller copy shows latency rather than bandwidth",
    "such a copy takes a few microseconds at the bandwidth of PCIe")
RING_BANDWIDTH_FROM_BYTES = _declare("RING_BANDWIDTH_FROM_BYTES", 262_144, "bytes on the wire", CHOSEN,
    "the duration of a smaller operation between ranks shows latency rather than bandwidth",
    "the latency of a ring equals the transfer time at about this size")
GLOO_LATENCY_NS = _declare("GLOO_LATENCY_NS", 100_000, "ns", MEASURED,
    "duration of an all-reduce of one number by Gloo between two processes",
    "TCP on one machine with two cores and PyTorch 2.13")
GLOO_BYTES_PER_S = _declare("GLOO_BYTES_PER_S", 1.5e9, "bytes/s", MEASURED,
    "bandwidth of Gloo between two processes",
    "all-reduces of 1 to 24 MiB within one machine; 1.1e9 between machines (discuss.pytorch.org/t/194008)")
BASE_LATENCY_NS = _declare("BASE_LATENCY_NS", 6_600, "ns", PUBLISHED,
    "latency of a small NCCL operation, without the time for hops between GPUs",
    "NCCL 2.19, src/graph/tuning.cc, baseLat of ring and LL; this gives 7.8 us for two A100s, and 7.6 us were recorded")
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
    "published speedups are consistent with this value; six networks take 0.8 to 2.1 (benchmarks/programs/replicate_host.py)")

# --- optimizer steps without measurements in the library

MOVES_PER_PARAMETER = _declare("MOVES_PER_PARAMETER", 11, "reads and writes of each parameter's bytes", CHOSEN,
    "memory traffic of an optimizer step and zero_grad, if a library entry has only forward and backward passes",
    "a typical optimizer reads and writes the parameter, the gradient and the optimizer's state")
OPTIMIZER_BANDWIDTH_REACHED = _declare("OPTIMIZER_BANDWIDTH_REACHED", 0.8, "share of the data sheet", CHOSEN,
    "memory bandwidth of an optimizer's kernels", "long elementwise kernels nearly reach the peak bandwidth")

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
    "to find the kernels of a cudaStreamWaitEvent, this many launches before and after the call are searched",
    "cuDNN's LSTM alternates between its streams every few launches")
EDGE_EXPLAINS_NS = _declare("EDGE_EXPLAINS_NS", 25_000, "ns", MEASURED,
    "a kernel on another stream explains a delay only if it ended at most this long before the delayed kernel began",
    "ten real recordings")
LAUNCH_QUEUE_DEPTH = _declare("LAUNCH_QUEUE_DEPTH", 1022, "launches", MEASURED,
    "the host waits if this many launches of a stream are pending, unless the recording shows a longer queue",
    "Note [A full launch queue] in timing/stream.py")
TYPICAL_LATENCY_NS = _declare("TYPICAL_LATENCY_NS", 7_000, "ns", CHOSEN,
    "time from a launch to the kernel's start on an idle stream, if a recording has too few kernels to show this time",
    "typical of recordings with enough kernels")
TYPICAL_GAP_NS = _declare("TYPICAL_GAP_NS", 1_000, "ns", CHOSEN,
    "time between two kernels on a stream, if a recording has too few kernels to show this time",
    "typical of recordings with enough kernels")
LEAST_SHARE_OF_BUSIEST = _declare("LEAST_SHARE_OF_BUSIEST", 0.1, "share", CHOSEN,
    "a device counts as used if it has at least this share of the busiest device's kernels",
    "a program may copy a little data to a device that it does not use")
WAIT_CAME_BACK_NS = _declare("WAIT_CAME_BACK_NS", 2_000, "ns", CHOSEN,
    "by the GPU's clock, a kernel may end this long after the call that waits for it returned",
    "accuracy of a profiler's clocks")
WAIT_FOLLOWED_NS = _declare("WAIT_FOLLOWED_NS", 100_000, "ns", CHOSEN,
    "a wait that ends later than this after its last kernel also waited for something else", "rule of thumb")

# --- matching of the script's work to recorded work

SAME_SHARE = _declare("SAME_SHARE", 0.8, "share of time and of calls", CHOSEN,
    "a script is the recorded program if at least this share of it is matched; see Note [Another program] in matcher.py",
    "another PyTorch release may call a few other ops")
DIFFERENT_COUNT_SHARE = _declare("DIFFERENT_COUNT_SHARE", 0.03, "share of time, or of calls", FITTED,
    "a script is a different program if the counts of its ops differ by at least this share;"
    " see Note [Another program] in matcher.py",
    "adding one layer to 24 layers changes the number of calls by 0.04")
ALIKE_SHARE = _declare("ALIKE_SHARE", 0.05, "share of the step", CHOSEN,
    "two steps are similar if phases that only one of them has take at most this share;"
    " see Note [Training steps of several kinds] in step_choice.py",
    "rule of thumb")
AGAIN_SHARE = _declare("AGAIN_SHARE", 0.9, "share of calls", CHOSEN,
    "a recorded step contains another call of the model if it still has at least this share of the last call's ops",
    "rule of thumb")
BORROWED_AHEAD = _declare("BORROWED_AHEAD", 16, "recorded launches", CHOSEN,
    "an op may take the time of a recorded call with another shape if that call is at most this far ahead",
    "ops of one layer may run in another order, but the order of layers is fixed")
SIMILAR_GRAPHS = _declare("SIMILAR_GRAPHS", 1.5, "factor", CHOSEN,
    "a captured CUDA graph may take the times of a recorded graph if their kernel counts differ by at most this factor",
    "an op may launch two kernels")
RENAMED_CALLS = _declare("RENAMED_CALLS", 64, "calls", CHOSEN,
    "two PyTorch releases may differ by this number of calls in a phase",
    "rule of thumb")
LITTLE_REMAINDER = _declare("LITTLE_REMAINDER", 0.2, "share of the phase's work", CHOSEN,
    "recorded work that matches no op is replayed if it is at most this share of the phase;"
    " see Note [When the remainder is charged] in phase_remainder.py",
    "small differences between releases")
OVER_ESTIMATE = _declare("OVER_ESTIMATE", 4, "times the estimate", CHOSEN,
    "recorded work that matches no op is assigned to unmatched ops if it takes at most this many times as long as their"
    " estimate",
    "an estimate may be too short by this factor")
KERNELS_PER_TENSOR = _declare("KERNELS_PER_TENSOR", 2, "kernels", CHOSEN,
    "in another PyTorch release, an op on a list may launch this many kernels for each tensor",
    "optimizers without foreach kernels launch kernels for each tensor")
MOST_UNSCALED = _declare("MOST_UNSCALED", 0.05, "share of GPU time", CHOSEN,
    "the error of a prediction is unknown if more than this share of the recorded GPU time has no shapes",
    "the errors of predictions were measured only for recordings with shapes")
