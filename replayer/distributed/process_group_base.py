# mypy: allow-untyped-calls
"""What torch.distributed asks of any process group: its rank and size, its names, its options, what it takes tensors on.

    class VirtualNccl(ProcessGroupBase): ...
    group.rank(), group.size(), group.name()    # 0, 2, "nccl"
    group.group_name                            # "0"

C++ asks for some of it too, and looks for an override under the names of its own methods.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# torch's stubs know one spelling of each method; torch itself calls several.
_ProcessGroup: Any = dist.ProcessGroup


class Options:
    """Stands for ProcessGroupNCCL.Options; what is set on it is kept, and of it only the timeout matters here."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(minutes=10)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""


class ProcessGroupBase(_ProcessGroup):  # type: ignore[misc]
    """A group of one backend, which may have another for tensors on the host."""

    Options = Options

    def __init__(self, rank: int, size: int, options: Any = None) -> None:
        super().__init__(rank, size)
        self.options = options if options is not None else Options()
        self._rank, self._size = rank, size
        self._group_name, self._description = self.options.group_name, ""
        self.on_cpu: Any = None  # the backend for CPU tensors, if the group has one

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "nccl"

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_name(self) -> str:
        return str(self._group_name)

    def getGroupName(self) -> str:
        return self.group_name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        return self._description

    # Under these names C++ looks for overrides.
    getRank, getSize, getBackendName, setGroupName = rank, size, name, _set_group_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")] + ([torch.device("cpu")] if self.on_cpu is not None else [])

    @property
    def supports_splitting(self) -> bool:
        return False

    def _get_backend(self, device: Any) -> Any:
        return self.on_cpu if torch.device(device).type == "cpu" and self.on_cpu is not None else self

    def _get_backend_name(self) -> str:
        return "nccl"

    def _set_sequence_number_for_group(self) -> None:
        """Operations are counted from zero by every rank."""

    def use_for_cpu(self, backend: Any) -> None:
        """CPU tensors go to `backend` (a real gloo), as in a group of "cpu:gloo,cuda:nccl"."""
        self.on_cpu = backend
