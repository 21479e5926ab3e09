"""Tests the communication hook in half precision, and the flight recorder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from replayer.surfaces import torch_distributed
from traces.script.patching import temporarily_set


def test_only_the_half_precision_hook_is_replaced_and_only_for_virtual_groups() -> None:
    kinds = torch._C._distributed_c10d.BuiltinCommHookType
    registered: list[object] = []

    class Nccl:
        pass

    def hooks_of(group: object, kind: Any) -> list[object]:
        registered.clear()
        reducer = SimpleNamespace(process_group=group, register_comm_hook=lambda group, hook: registered.append(hook.__name__))
        torch_distributed._register_hook(lambda self, kind: registered.append(kind), reducer, kind)
        return list(registered)

    with temporarily_set(torch_distributed, VirtualNccl=Nccl):
        assert hooks_of(Nccl(), kinds.FP16_COMPRESS) == ["fp16_compress_hook"]
        assert hooks_of(Nccl(), kinds.ALLREDUCE) == [kinds.ALLREDUCE]
        assert hooks_of(object(), kinds.FP16_COMPRESS) == [kinds.FP16_COMPRESS]


def test_the_flight_recorder_is_attached_only_to_groups_that_are_not_virtual() -> None:
    class Nccl:
        pass

    attached: list[object] = []
    with temporarily_set(torch_distributed, VirtualNccl=Nccl):
        for group in (Nccl(), other := object()):
            torch_distributed._attach_flight_recorder(attached.append, group)
    assert attached == [other]
