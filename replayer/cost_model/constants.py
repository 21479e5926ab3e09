"""Defines all numeric constants of the estimates. A comment at the end of a line gives the number's unit. A comment above a
number describes the number and says how we found it: "published", "measured", "chosen", or "chosen after seeing results".

    from replayer.cost_model.constants import CACHED_SHARE      # 0.5

`docs/constants_page.py` reads these comments and writes docs/constants.md.
"""

from __future__ import annotations

from collections.abc import Mapping

# fmt: off

# --- kernels

# duration of a kernel that does almost nothing, if the recording does not show this duration
# chosen: typical of data-center GPUs
KERNEL_FLOOR_NS = 1_500  # ns

# the shortest recorded kernels show the shortest possible duration only if they are at most this long
# measured: shortest kernels of the real recordings: at most 6 us, on an A100
LONGEST_FLOOR_NS = 10_000  # ns

# memory bandwidth of ordinary kernels, if the recording does not show the bandwidth
# chosen: rule of thumb
BANDWIDTH_REACHED = 0.6  # share of the data sheet

# ops with shorter kernels are ignored when bandwidth is computed, because their times show the launch speed
# chosen: an order of magnitude above KERNEL_FLOOR_NS
SHORT_KERNEL_NS = 20_000  # ns

# efficiency of matrix products on multiprocessors with 128 fp32 lanes; see Note [Shared lanes] in efficiency.py
# published: github.com/Yinghan-Li/YHs_Sample/issues/4: 29.2 of 40.1 TFLOP/s on an RTX 4070 Ti
SHARED_LANES_REACHED = 0.75  # share of peak FLOP/s

# efficiency of tensor cores relative to an fp32 product; see Note [Units that were not measured] in op_costs.py
# chosen after seeing results: recordings of an H100: language models and a U-Net
TENSOR_CORES_REACHED: Mapping[str, float] = {"matmul": 0.9, "conv": 0.7, "conv_weight": 0.7}  # share

# efficiency of fused attention on tensor cores
# chosen after seeing results: 0.6 to 1.2 times the estimate on an H100 and an H200 (197 to 1 024 tokens)
ATTENTION_REACHED = 0.45  # share of peak FLOP/s

# work of fused attention outside the tensor cores; it limits the speed with few keys
# chosen after seeing results: the same recordings
FLOPS_PER_QUERY = 230  # FLOPs of fp32 per element of the queries and matrix product

# duration of a matrix product on tensor cores if its sizes are not multiples of 8
# chosen: such products use slower memory loads
UNALIGNED_SLOWER = 2.0  # times as long

# duration of memory-bound kernels, by kind of work
# chosen after seeing results: ResNet-50 on a V100 and an H100, VGG, and networks with biases; memory: rule of thumb
SLOWER_BY_BYTES: Mapping[str, float] = {
    "batch_norm": 1.3, "bias": 2.5, "transpose": 1.3, "memory": 1.6,
}  # times as long as at memory bandwidth

# duration of depthwise convolutions, which read a window of inputs for each output
# chosen after seeing results: networks with depthwise convolutions on a V100
DEPTHWISE_SLOWER: Mapping[str, tuple[float, float]] = {
    "depthwise": (1.6, 0.2), "depthwise_backward": (2.0, 0.64),
}  # times as long as at memory bandwidth: a constant, plus a value for each element of the window

# memory traffic of ops that move more or less than their inputs and outputs
# chosen: the kernels read their input several times, for example once for the statistics and once for the normalization
PASSES: Mapping[str, int] = {
    "batch_norm": 3, "batch_norm_backward": 5, "max_pool2d_backward": 4, "fill": 1, "zero": 1,
}  # passes over the input

# share of an op's bytes, up to the L2 cache's size, that the previous op left there
# chosen: rule of thumb
CACHED_SHARE = 0.5  # share

# the smallest tile of a matrix library's kernels
# published: names of cuBLAS kernels: sgemm_32x128
NARROWEST_TILE = 32  # rows or columns

# the tile of the result that one block computes in a recurrent product
# published: names of cuDNN's kernels on an H100: cutlass_80_tensorop_s1688gemm_64x64_32x6
RECURRENT_TILE = 64  # rows or columns

# the largest block of threads in CUDA
# published: CUDA's programming guide
MOST_THREADS = 1024  # threads

# threads share each sum of a softmax: maximum adjacent sums, and minimum elements per sum
# published: aten/src/ATen/native/cuda/SoftMax.cu in PyTorch
SHARED_SUMS = 64  # sums or elements

# memory traffic of one block of threads, for kernels with few blocks
# chosen after seeing results: batch norm of 32 to 128 channels and an LSTM on an H100
BLOCK_BYTES_PER_CLOCK: Mapping[str, float] = {
    "batch_norm": 12.0, "batch_norm_backward": 6.6, "rnn": 64.0, "rnn_backward": 64.0,
    **dict.fromkeys(("softmax", "log_softmax"), 2.7), **dict.fromkeys(("softmax_backward", "log_softmax_backward"), 4.9),
}  # bytes per clock

# a convolution with at most this many input channels is the network's first layer
# chosen: pictures have 1, 3 or 4 channels
PICTURE_CHANNELS = 4  # channels

# row length that stands for an elementwise op in the learned curves
# chosen: middle of the row lengths that were measured
ELEMENTWISE_COLUMNS = 4096  # elements

# number of tensors that the measured operators read and write, by kind of work
# published: the curves were learned from NeuSight's operators
MEASURED_TENSORS: Mapping[str, int] = {"elementwise": 3, "elementwise1": 2, "softmax": 2, "layer_norm": 2}  # tensors of fp32

# the largest sizes in a curve's training data; larger ops are assumed to be as efficient
# published: ranges of NeuSight's measurements
CURVE_LIMITS: Mapping[str, tuple[int, ...]] = {
    "matmul": (1024, 16_384, 65_536, 65_536), "conv3": (256, 2048, 2048, 65_536), "rows": (1 << 22, 8192),
}  # sizes of work

# boards powered by the slot, each with the largest board of its process; see Note [Sustained clocks] in efficiency.py
# published: data sheets
SLOT_POWERED: Mapping[str, tuple[int, str, int]] = {
    "Tesla P4": (75, "Tesla P100-PCIE-16GB", 250),
    "Tesla T4": (70, "Tesla V100-PCIE-16GB", 250),
    "NVIDIA L4": (72, "NVIDIA GeForce RTX 4090", 450),
}  # W, board, W

# --- estimates of unrecorded ops from recorded ops

# weight of the learned curve in a convolution's growth with the batch size; rest: a power law
# chosen after seeing results: the best of four formulas in all six folds of a cross-validation (benchmarks/what_if.py, row
# `folds`)
CURVE_COUNTS = 0.25  # weight

# exponent of the power law for how a convolution's time grows with the batch
# chosen after seeing results: chosen together with CURVE_COUNTS
GROWTH = 0.9  # exponent

# recorded ops within this distance in size have the most weight; see Note [The nearest recorded ops] in op_costs.py
# chosen: a factor of two in size
NEAR_OCTAVES = 1.0  # octaves of size

# distance in size at which the weight of a recorded op fades
# chosen: libraries use different algorithms for different sizes
FADING_OCTAVES = 1.5  # octaves of size

# weight of a difference in batch or image size, compared with a difference in channels or depth
# chosen: libraries choose algorithms mainly by channels and depth
ROWS_COUNT = 0.5  # octaves for a factor of 2

# distance that a recorded op has if it does the same kind of work under a different name
# chosen: rule of thumb
OTHER_OP_OCTAVES = 2.0  # octaves

# a recorded op that took longer did extra work that the curve does not include
# chosen: two libraries on one GPU differ by less than this
MOST_SLOWER = 4.0  # times the curve

# the ratio of two GPUs' op times is within this factor of their data sheets' ratio
# chosen: the GPUs may use different libraries
BEYOND_SHEETS = 1.5  # times

# --- copies and communication

# bandwidth of pinned copies between host and device, if the recording has no such copies
# published: GPU Emulator for Easy Reproducibility of DNN Training (Summer of Reproducibility 2023): 77.07 MB in 6.35 ms
PINNED_GBPS = 12.1  # GB/s

# bandwidth of pageable copies between host and device, if the recording has no such copies
# published: GPU Emulator for Easy Reproducibility of DNN Training (Summer of Reproducibility 2023): 77.07 MB in 17.35 ms
PAGEABLE_GBPS = 4.4  # GB/s

# the duration of a smaller copy shows latency rather than bandwidth
# chosen: such a copy takes a few microseconds at the bandwidth of PCIe
BANDWIDTH_FROM_BYTES = 65_536  # bytes

# the duration of a smaller operation between ranks shows latency rather than bandwidth
# chosen: the latency of a ring equals the transfer time at about this size
RING_BANDWIDTH_FROM_BYTES = 262_144  # bytes on the wire

# duration of an all-reduce of one number by Gloo between two processes
# measured: TCP on one machine with two cores and PyTorch 2.13
GLOO_LATENCY_NS = 100_000  # ns

# bandwidth of Gloo between two processes
# measured: all-reduces of 1 to 24 MiB within one machine; 1.1e9 between machines (discuss.pytorch.org/t/194008)
GLOO_BYTES_PER_S = 1.5e9  # bytes/s

# latency of a small NCCL operation, without the time for hops between GPUs
# published: NCCL 2.19, src/graph/tuning.cc, baseLat of ring and LL; two A100s: computed 7.8 us, recorded 7.6 us
BASE_LATENCY_NS = 6_600  # ns

# links of at least this bandwidth connect each GPU with every other GPU (NVSwitch, xGMI)
# published: data sheets of linked GPUs
SWITCHED_GBPS = 200  # GB/s

# size of DistributedDataParallel's buckets, and the smallest unit that FSDP is expected to wrap
# published: torch.nn.parallel.DistributedDataParallel, bucket_cap_mb
BUCKET_BYTES = 25 << 20  # bytes

# size of DistributedDataParallel's first bucket
# published: torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
FIRST_BUCKET_BYTES = 1 << 20  # bytes

# host time of torch.nn.parallel.replicate per replica
# chosen after seeing results: published speedups are consistent with this value; six networks take 0.8 to 2.1
# (benchmarks/programs/replicate_host.py)
REPLICA_PER_FORWARD = 1.4  # times the host's forward pass

# --- optimizer steps without measurements in the library

# memory traffic of an optimizer step and zero_grad, if a library entry has only forward and backward passes
# chosen: a typical optimizer reads and writes the parameter, the gradient and the optimizer's state
MOVES_PER_PARAMETER = 11  # reads and writes of each parameter's bytes

# memory bandwidth of an optimizer's kernels
# chosen: long elementwise kernels nearly reach the peak bandwidth
OPTIMIZER_BANDWIDTH_REACHED = 0.8  # share of the data sheet

# an asynchronous copy from pageable memory up to this size does not make the host wait
# published: CUDA runtime, API synchronization behavior
STAGED_AT_ONCE_BYTES = 64 << 10  # bytes

# --- reasons for the start of a recorded kernel

# if a kernel starts later than this after its launch, something else delayed the kernel
# measured: ten real recordings
LAUNCH_EXPLAINS_NS = 40_000  # ns

# the previous kernel of the stream does not explain a gap that is longer than this
# measured: ten real recordings
QUEUE_EXPLAINS_NS = 20_000  # ns

# to find the kernels of a cudaStreamWaitEvent, this many launches before and after the call are searched
# chosen: cuDNN's LSTM alternates between its streams every few launches
NEAR_LAUNCHES = 256  # launches

# a kernel on another stream explains a delay if it ended at most this long before
# measured: ten real recordings
EDGE_EXPLAINS_NS = 25_000  # ns

# the host waits if this many launches of a stream are pending; a recording may show a longer queue
# measured: Note [A full launch queue] in timing/stream.py
LAUNCH_QUEUE_DEPTH = 1022  # launches

# time from a launch to the kernel's start on an idle stream, if too few kernels were recorded
# chosen: typical of recordings with enough kernels
TYPICAL_LATENCY_NS = 7_000  # ns

# time between two kernels on a stream, if a recording has too few kernels to show this time
# chosen: typical of recordings with enough kernels
TYPICAL_GAP_NS = 1_000  # ns

# a device counts as used if it has at least this share of the busiest device's kernels
# chosen: a program may copy a little data to a device that it does not use
LEAST_SHARE_OF_BUSIEST = 0.1  # share

# by the GPU's clock, a kernel may end this long after the call that waits for it returned
# chosen: accuracy of a profiler's clocks
WAIT_CAME_BACK_NS = 2_000  # ns

# a wait that ends later than this after its last kernel also waited for something else
# chosen: rule of thumb
WAIT_FOLLOWED_NS = 100_000  # ns

# --- matching of the script's work to recorded work

# a script is the recorded program if this share of it is matched; see Note [Another program] in matcher.py
# chosen: another PyTorch release may call a few other ops
SAME_SHARE = 0.8  # share of time and of calls

# a script is a different program if its op counts differ by this share; see Note [Another program] in matcher.py
# chosen after seeing results: adding one layer to 24 layers changes the number of calls by 0.04
DIFFERENT_COUNT_SHARE = 0.03  # share of time, or of calls

# most time in phases that only one of two similar steps has; see Note [Training steps of several kinds] in step_choice.py
# chosen: rule of thumb
ALIKE_SHARE = 0.05  # share of the step

# a recorded step calls the model again if this share of the last call's ops follows
# chosen: rule of thumb
AGAIN_SHARE = 0.9  # share of calls

# an op may take the time of a recorded call with another shape this far ahead
# chosen: ops of one layer may run in another order, but the order of layers is fixed
BORROWED_AHEAD = 16  # recorded launches

# a CUDA graph takes a recorded graph's times if the kernel counts differ by at most this
# chosen: an op may launch two kernels
SIMILAR_GRAPHS = 1.5  # factor

# two PyTorch releases may differ by this number of calls in a phase
# chosen: rule of thumb
RENAMED_CALLS = 64  # calls

# most unmatched recorded work of a phase that is replayed; see Note [When the remainder is charged] in phase_remainder.py
# chosen: small differences between releases
LITTLE_REMAINDER = 0.2  # share of the phase's work

# unmatched recorded work is assigned to unmatched ops if it takes at most this multiple of their estimate
# chosen: an estimate may be too short by this factor
OVER_ESTIMATE = 4  # times the estimate

# in another PyTorch release, an op on a list may launch this many kernels for each tensor
# chosen: optimizers without foreach kernels launch kernels for each tensor
KERNELS_PER_TENSOR = 2  # kernels

# the error of a prediction is unknown if more GPU time than this has no shapes
# chosen: the errors of predictions were measured only for recordings with shapes
MOST_UNSCALED = 0.05  # share of GPU time

# predictions mention data loading if a step waits for data for more than this share
# chosen: shorter waits hardly change the step time
LEAST_LOADING = 0.01  # share of the step time
