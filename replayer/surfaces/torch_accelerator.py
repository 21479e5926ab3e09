"""Makes torch.accelerator report the accelerator "cuda".

    torch.accelerator.current_accelerator()     # device(type='cuda')
"""

from __future__ import annotations

from types import ModuleType

from replayer.state import gpu, started
from replayer.surfaces.patching import refuse_construction
from replayer.torch_types import TorchAny
from traces.script.patching import patch


def install(torch_module: ModuleType) -> None:
    cuda: TorchAny = torch_module.cuda

    def accelerator() -> TorchAny:
        return torch_module.device("cuda")

    def device_capability(_index: int) -> dict[str, TorchAny]:
        t: TorchAny = torch_module
        floats = {t.float16, t.bfloat16, t.float32, t.float64, t.complex32, t.complex64, t.complex128}
        integers = {t.uint8, t.int8, t.int16, t.int32, t.int64, t.bool}
        return {"supported_dtypes": floats | integers}

    patch(
        torch_module._C,
        _get_accelerator=lambda check=None: accelerator(),
        _accelerator_getAccelerator=accelerator,
        _accelerator_getDeviceIndex=cuda.current_device,
        _accelerator_setDeviceIndex=lambda index: cuda.set_device(index),
        _accelerator_getDeviceCapability=device_capability,
        _accelerator_getStream=lambda index: cuda.current_stream(index),
        _accelerator_setStream=lambda stream: gpu().current.set_stream(stream.virtual),
        _accelerator_synchronizeDevice=lambda index: cuda.synchronize(index) if cuda.is_initialized() else None,
        _accelerator_exchangeDevice=lambda index: cuda._exchange_device(index),
        _accelerator_maybeExchangeDevice=lambda index: cuda._maybe_exchange_device(index),
        _accelerator_getDefaultGenerator=lambda index: cuda.default_generators[index],
        _accelerator_isAllocatorInitialized=lambda: started() is not None,
        _accelerator_emptyCache=lambda: cuda.empty_cache(),
        _accelerator_getDeviceStats=lambda index: cuda.memory_stats_as_nested_dict(index),
        _accelerator_resetAccumulatedStats=lambda index: cuda.reset_accumulated_memory_stats(index),
        _accelerator_resetPeakStats=lambda index: cuda.reset_peak_memory_stats(index),
        _accelerator_getMemoryInfo=lambda index: cuda.mem_get_info(index),
    )
    refuse_construction(torch_module.accelerator, "torch.accelerator", {"Graph": "run the step eagerly"})
