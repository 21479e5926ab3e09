"""Finds out why torch.profiler records no kernels on a machine, and suggests a fix.

    why_no_kernels(["function ... failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"])
    # Obstacle("the process lacks the privilege to record kernels ...", "run as root ...")
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Obstacle(NamedTuple):
    reason: str
    remedy: str


# by name of the CUPTI error (cupti_result.h)
_BY_ERROR = {
    "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES": Obstacle(
        "the process lacks the privilege to record kernels, which the NVIDIA driver gives only to administrators",
        "run as root or with CAP_SYS_ADMIN (docker run --cap-add=SYS_ADMIN), or load the driver with"
        " NVreg_RestrictProfilingToAdminUsers=0",
    ),
    "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": Obstacle(
        "the hypervisor does not allow this virtual GPU to be profiled",
        "ask the administrator of the machine to enable profiling for the vGPU",
    ),
    "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": Obstacle(
        "another profiler is attached to the process",
        "record without nsys, ncu and DCGM profiling",
    ),
    "CUPTI_ERROR_HARDWARE_BUSY": Obstacle("another profiler uses the GPU", "record again when it has ended"),
    "CUPTI_ERROR_NOT_SUPPORTED": Obstacle(
        "CUPTI does not support this GPU or configuration", "record with --grain phase, which needs no CUPTI"
    ),
    "CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED": Obstacle(
        "confidential computing forbids profiling", "record with --grain phase, which needs no CUPTI"
    ),
}
_UNKNOWN = Obstacle("torch.profiler reported no device work", "run trace doctor, or record with --grain phase")


def why_no_kernels(warnings: Iterable[str]) -> Obstacle:
    # longest first, because one name contains another
    text = "\n".join(warnings)
    for error in sorted(_BY_ERROR, key=len, reverse=True):
        if error in text:
            return _BY_ERROR[error]
    last = next((line for line in text.splitlines() if "CUPTI" in line), "")
    return Obstacle(last, _UNKNOWN.remedy) if last else _UNKNOWN
