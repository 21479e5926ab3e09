"""Tests that the recorder notices a running profile of the script, and whether CUPTI may stay attached after the profile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tracer.state import Profiles
from tracer.surfaces import torch_profiler


@pytest.mark.parametrize(("activities", "has_attached"), [(["CPU"], False), (["CPU", "CUDA"], True), (None, False)])
def test_the_recorder_notices_whether_the_scripts_profiler_used_the_gpu(
    monkeypatch: pytest.MonkeyPatch, activities: list[str] | None, has_attached: bool
) -> None:
    """A disabled profile has no `kineto_activities`."""

    class profile:
        def __init__(self) -> None:
            if activities is not None:
                self.kineto_activities = set(activities)

        def __enter__(self) -> None: ...

        def _prepare_trace(self) -> None: ...

        def __exit__(self, *raised: object) -> None: ...

    profiles = Profiles()
    monkeypatch.setattr(torch_profiler, "SCRIPT_PROFILES", profiles)
    torch: Any = SimpleNamespace(
        autograd=SimpleNamespace(profiler=SimpleNamespace(profile=profile)),
        profiler=SimpleNamespace(ProfilerActivity=SimpleNamespace(CPU="CPU", CUDA="CUDA")),
    )
    torch_profiler.install(torch)
    script: Any = profile()
    with script:
        assert len(profiles) == 1 and profiles.has_attached is has_attached
    # The profile has ended, but CUPTI stays attached.
    assert len(profiles) == 0 and profiles.has_attached is has_attached
