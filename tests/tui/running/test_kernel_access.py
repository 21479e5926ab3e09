"""Tests that the reason why no kernels were recorded is found in the profiler's warnings."""

from __future__ import annotations

import pytest

from tui.running.kernel_access import why_no_kernels

_PRIVILEGES = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"
_VIRTUALIZED = "CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES (38)"


@pytest.mark.parametrize(
    ("warnings", "reason", "remedy"),
    [
        ([f"function failed with error {_PRIVILEGES}"], "the process lacks the privilege", "run as root"),
        # the shorter name of an error is a part of this error's name
        ([f"function failed with error {_VIRTUALIZED}"], "the hypervisor does not allow", "ask the administrator"),
        (["step 3 is slow", "CUPTI_ERROR_HARDWARE_BUSY", "ended"], "another profiler uses the GPU", "record again"),
        (["slow", "CUPTI_ERROR_UNKNOWN (999)", "CUPTI ended"], "CUPTI_ERROR_UNKNOWN (999)", "run trace doctor"),
        (["step 3 is slow"], "torch.profiler reported no device work", "run trace doctor"),
        ([], "torch.profiler reported no device work", "run trace doctor"),
    ],
)
def test_the_error_of_cupti_decides_the_reason_and_the_remedy(warnings: list[str], reason: str, remedy: str) -> None:
    found = why_no_kernels(warnings)
    assert found.reason.startswith(reason) and found.remedy.startswith(remedy)
