"""The preset dictionary of the DEFLATED codec (RFC 1950, FDICT): text that most traces contain, so small files need not.

A trace of a hundred rows is mostly names: of operators, runtime calls, device properties, columns. With this dictionary
such a file is a third smaller. It is part of the format: what was deflated with it can only be read with the very same
bytes, so a change here needs a new FORMAT_VERSION (a test holds their checksum).

    zlib.decompressobj(-15, zdict=PRESET_DICTIONARY).decompress(payload)
"""

from __future__ import annotations

_OPS = (
    "add add_ sub mul mul_ div div_ neg sum mean pow sqrt exp log max min abs sigmoid tanh relu relu_ gelu"
    " silu clamp clamp_min"
    " threshold_backward eq ne lt gt where fill_ zero_ zeros zeros_like ones ones_like empty empty_like"
    " empty_strided new_empty"
    " full arange randn copy_ clone contiguous detach detach_ to _to_copy item _local_scalar_dense"
    " is_nonzero view reshape"
    " _reshape_alias _unsafe_view as_strided expand permute transpose t squeeze unsqueeze select slice"
    " narrow split chunk cat"
    " stack index index_select gather scatter_ embedding embedding_dense_backward matmul mm bmm addmm addmm_"
    " baddbmm linear"
    " conv2d convolution _convolution cudnn_convolution miopen_convolution convolution_backward batch_norm"
    " _batch_norm_impl_index cudnn_batch_norm cudnn_batch_norm_backward native_batch_norm native_layer_norm"
    " layer_norm"
    " max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d dropout native_dropout softmax _softmax"
    " _softmax_backward_data log_softmax _log_softmax cross_entropy_loss nll_loss nll_loss_forward"
    " nll_loss_backward mse_loss"
    " scaled_dot_product_attention _scaled_dot_product_flash_attention _flash_attention_forward"
    " _foreach_add_ _foreach_mul_"
    " _fused_adam_ record_stream set_ resize_ result_type lift_fresh random_ uniform_ normal_ topk sort"
    " cumsum addcmul_"
    " addcdiv_ lerp_ masked_fill_ any all triu tril bitwise_not"
).split()

_BACKWARD_NODES = (
    "torch::autograd::AccumulateGrad Addmm Mm T Convolution CudnnBatchNorm Relu NllLoss LogSoftmax Mean Sum"
    " View Add Mul Div"
    " Expand Permute NativeLayerNorm"
).split()

_RUNTIME_CALLS = (
    "hipLaunchKernel hipExtModuleLaunchKernel hipModuleLaunchKernel hipMemcpyWithStream hipMemcpyAsync hipMemsetAsync"
    " hipStreamSynchronize hipDeviceSynchronize hipMalloc hipFree hipGetDevicePropertiesR0600 cuLaunchKernel"
    " cuLaunchKernelEx"
    " cudaStreamIsCapturing cudaEventRecord cudaEventRecordWithFlags cudaEventQuery cudaEventSynchronize"
    " cudaStreamWaitEvent"
    " cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
    " cudaFuncGetAttributes cudaFuncSetAttribute cudaMalloc cudaFree cudaHostAlloc cudaGraphLaunch"
    " cudaLaunchKernelExC"
    " cudaMemsetAsync cudaMemcpyAsync cudaStreamSynchronize cudaDeviceSynchronize cudaLaunchKernel"
).split()

_KERNELS = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ampere_sgemm_128x64_nn",
    "volta_sgemm_128x64_tn",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_ffma_execute_kernel__5x_cudnn",
    "cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>",
    "Cijk_Ailk_Bljk_SB_MT64x64x16_MI32x32x2x1_SN_1LDSB0_APM1_ABV0_ACED0_AF0EM1_AF1EM1_AMAS3_ASE_ASGT_ASAE01_ASCE01_ASEM1_AAC0",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>("
    "cublasLt::cublasSplitKParams<float>, float const*, float const*, float*, float*, float const*, float const*)",
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const> >",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, true, false>(float*, float"
    " const*, int, int, int)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<2>,"
    " at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float,"
    " float, float>,"
    " unsigned int, float, 4> >(at::native::func_wrapper_t<float, at::native::sum_functor<float, float,"
    " float>::operator()"
    "(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4>)",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#8}::operator()() const::"
    "{lambda(float)#1}>("
    "at::TensorIteratorBase&, at::native::(anonymous namespace)::)::{lambda(int)#1}>(int, at::native::"
    "gpu_kernel_impl<>)",
    "void at::native::unrolled_elementwise_kernel<, at::detail::Array<char*, 2>, TrivialOffsetCalculator<1,"
    " unsigned int>,"
    " at::native::memory::LoadWithoutCast, at::native::memory::StoreWithoutCast>(int, ",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::"
    "Array<char*, 3> >(int,"
    " at::native::BinaryFunctor<float, float, float, at::native::AddFunctor<float> >, at::native::FillFunctor<float>,"
    " at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>, at::detail::Array<char*, 1>)",
    "Memcpy DtoD (Device -> Device)Memcpy DtoH (Device -> Pageable)Memcpy DtoH (Device -> Pinned)",
    "Memcpy HtoD (Pinned -> Device)Memcpy HtoD (Pageable -> Device)Memset (Device)",
)

_RANGES = (
    "nccl:all_reduce nccl:broadcast c10d::allreduce_ record_param_comms DistributedDataParallel.forward",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "Optimizer.zero_grad#AdamW.zero_gradOptimizer.step#AdamW.stepOptimizer.zero_grad#SGD.zero_gradOptimizer.step#SGD.step",
    "nn.Module: Linear_0 torch/nn/modules/module.py(1501): _call_impl torch/optim/optimizer.py torch/nn/modules/linear.py(114)",
    "torch/autograd/__init__.py: backward torch/_tensor.py<built-in method linear of type object at 0x7f>ProfilerStep#",
    "DataParallel.broadcast_backward DataParallel.gather_backward DataParallel.parallel_apply#0 DataParallel.replicate"
    " DataParallel.gather DataParallel.scatter all_reduce nccl gloo",
    "loader h2d forward loss zero_grad backward optimizer other",
)

_HEADER = (
    '"distributedInfo":{"backend":"nccl","rank":0,"world_size":8,"pg_count":1,"nccl_version":"2."}',
    '"cuda":"12."cudnn":"driver":"argv":["python":"schemaVersion":1,"trace_id":"baseTimeNanoseconds":',
    '"cuda_runtime_version":"cuda_driver_version":"cupti_version":"hip_driver_version":"hip_runtime_version":',
    "Tesla V100-SXM2-32GB Tesla P100-PCIE-16GB NVIDIA GeForce RTX 2080 Ti AMD Instinct MI300X AMD Radeon Graphics",
    "NVIDIA H100 80GB HBM3 NVIDIA A100-SXM4-80GB",
    '"major":7,"minor":0,"maxThreadsPerMultiProcessor":2048,"multiProcessorCount":80,"maxSharedMemoryPerMultiProcessor":',
    '{"grain":"kernel","provenance":{"source":"kineto","era":"E6","torch":"2.4 or newer","clock":"unix",',
    '"steps_from":"profiler","visible_devices":8,"record_shapes":1,"profile_memory":1,"with_stack":1,',
    '"ranks":{"0":{"file":".pt.trace.json.gz"}}},"problems":{"kernels-without-launch":1},',
    '"lacks":["shapes","dtypes","call stacks","device memory events","memory addresses","values"],',
    '"devices":[{"rank":0,"index":0,"name":"NVIDIA A100","total_memory_bytes":85899345920,"properties":{',
    '"computeMajor":8,"computeMinor":0,"maxThreadsPerBlock":1024,"maxThreadsPerMultiprocessor":2048,',
    '"regsPerBlock":65536,"warpSize":64,"sharedMemPerBlock":49152,"numSms":108,"regsPerMultiprocessor":65536,',
    '"sharedMemPerBlockOptin":166912,"sharedMemPerMultiprocessor":167936}},',
    '{"rank":0,"index":1,"name":"NVIDIA A100","total_memory_bytes":85899345920,"properties":{',
    '"computeMajor":7,"computeMinor":5,"warpSize":32}}],',
    '"threads":[{"rank":0,"tid":1,"name":"python","role":"loader"},{"rank":0,"tid":2,"name":"thread","role":"other"},',
    '{"rank":0,"tid":3,"name":"","role":"main"},{"rank":0,"tid":4,"name":"pt_autograd_0","role":"backward"}],"rows":{"steps":6,"phases":42,"host":9,"device":9,"memory":9',
)

# Columns as msgpack begins them: name, array of four, method, the usual base and scale, short bytes.
_COLUMNS = (
    b"\x92\xabcollectives\x82\xa4rows\xa7columns\x88\xa4rank\xa4name\xa5dtype\xa5group\xaagroup_size\xa7backend\xa5bytes"
    b"\x92\xa7batches\x82\xa4rows\xa7columns\x85\xa4rank\xa6loader\xa4kind\xa8start_ns\xabduration_ns\xa5bytes"
    b"\x92\xa5parts\x82\xa4rows\xa7columns\x89\xa5phase\xa4name\xa6thread\xa8start_ns\xabduration_ns"
    b"read\xa2op\xa5dtype\xa5value\xabrecorded_step\xaddevice_end_ns\xafdevice_start_ns\xa4rank\xa6number\xa4step"
    b"\x92\xa6values\x82\xa4rows\x92\xa5steps\x82\xa4rows\x92\xa6phases\x82\xa4rows\x10\xa7columns\x86"
    b"\x92\xa6memory\x82\xa4rows\x10\xa7columns\x86\xa6thread\x01\xa6device\x94\x00\xff\x01\xc4\xa7time_ns\x94\x01\xcf\x00"
    b"\xa5bytes\x94\x00\xd1\x02\x00\xc5\xa7address\x94\x00\xcf\x00\x00\x7f\xafallocated_bytes\x94\x01\xaereserved_bytes\x94\x00"
    b"\x92\xa6device\x82\xa4rows\x10\xa7columns\x86\xa6device\x94\x00\x00\x01\xc4\xa6stream\x07\xa4kind\x94\x00\x00\x01\xc4"
    b"\xa4name\x94\x00\x00\x01\xc4\xa8start_ns\x94\x05\xcf\x00\xabduration_ns\x94\x00\xcd\x03\xe8\xcd\x03\xe8\xc4"
    b"\xa6launch\x94\x05\xff\x01\xc4\xa5bytes\x94\x00\xff\x01\xc4\xa6origin\x06"
    b"\x92\xa4host\x83\xa4rows\x10\xa6nested\x93\xcf\x00\x00\x94\x00\x00\x01\xc4\x94\x07\x00\xcd\x03\xe8\xc5\x00\xa7columns\x87"
    b"\xa6thread\x94\x00\x00\x01\xc4\xa4kind\x94\x00\x00\x01\xc4\xa4name\x94\x00\x00\x01\xc4\xa6shapes\x94\x00\xff\x01\xc4"
    b"\xa6dtypes\x94\x00\xff\x01\xc4\xa8sequence\x94\x00\xff\x01\xc4\xaeforward_thread\x94\x00\xff\x01\xc4"
)

PRESET_DICTIONARY = b"".join(
    [
        "".join(_RANGES).encode(),
        "".join(_KERNELS).encode(),
        "".join(f"autograd::engine::evaluate_function: {node}Backward0" for node in _BACKWARD_NODES).encode(),
        " ".join(_RUNTIME_CALLS).encode(),
        b"".join(bytes([0xA0 + min(len(op) + 6, 31)]) + b"aten::" + op.encode() for op in _OPS),
        b"complex64;bool;int8;uint8;int32;float16;bfloat16;float64;int64;int64;float32;float32;float32",
        _COLUMNS,
        "".join(_HEADER).encode(),
        b"\x92\xa7strings\xdc\x00\x92\xa6header\xda",
    ]
)
