"""Contains a fake virtual GPU that logs launches, copies and reads. Its allocator is real, its streams are trivial, and its
work takes no time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from replayer.gpu.current_streams import NodeStreams
from replayer.memory.cublas_workspaces import BlasWorkspaces
from replayer.memory.device.caching_allocator import DeviceMemory
from replayer.memory.tensor_allocator import TensorAllocator
from replayer.op_signature import OpSignature
from replayer.recording.values.assumed_values import AssumedValues
from replayer.recording.workspaces import OPS_WITH_PRODUCTS, WorkspaceSequence
from replayer.timing.host_threads import Caller, HostThread
from replayer.timing.stream import VirtualStream
from traces.model.machine import DeviceProperties, Machine
from traces.names.cards import UNKNOWN_CARD
from traces.script.workload_observer import WorkloadObserver


class FakeDevice:
    def __init__(self, index: int, capacity_bytes: int) -> None:
        self.index = index
        self.name = "Fake GPU"
        self.properties = DeviceProperties(major=8, minor=0).completed_by(UNKNOWN_CARD.properties)
        self._memory = DeviceMemory(index, capacity_bytes)
        self.allocator = TensorAllocator(self._memory)
        self.default_stream = VirtualStream(index, 0)

    @property
    def memory(self) -> DeviceMemory:
        return self.allocator.flush()


class FakeGpu:
    """Replaces all parts of a virtual GPU.

    The lists `launched_ops`, `copies` and `reads` are logs, and `answers` contains the values that reads return, by op name.
    """

    def __init__(self, devices: int = 1, capacity_bytes: int = 64 << 30) -> None:
        self.current = self.launches = self.streams = self.values = self.steps = self
        self.ranks = self.profile = self
        self.devices = [FakeDevice(i, capacity_bytes) for i in range(devices)]
        self.machine = Machine()
        self.nodes = NodeStreams()
        self.launched_ops: list[tuple[OpSignature, int]] = []
        self.copies: list[tuple[OpSignature, str, int, int, bool]] = []
        self.reads: list[tuple[OpSignature, int, int]] = []
        self.answers: dict[str, list[float]] = {}
        self.ops_with_products = OPS_WITH_PRODUCTS
        # Maps the shape of a tensor to the number of elements that a search finds.
        self.selections: dict[tuple[int, ...], int] = {}
        self.assumed = AssumedValues(lambda: 0)
        self.blas = BlasWorkspaces(self.machine, [8] * devices)
        self._current = 0
        thread = HostThread(0, 0)
        for device in self.devices:
            thread.call_on(device.default_stream)
        self.local = thread

    def device(self) -> int:
        return self._current

    def set_device(self, index: int) -> None:
        self._current = index

    def stream(self, device: int) -> VirtualStream:
        return self.caller(device).stream

    def caller(self, device: int) -> Caller:
        return self.local.callers[device]

    def launch(self, signature: OpSignature, device: int) -> None:
        if signature.launches:
            self.launch_by(self.caller(device), signature)

    def launch_by(self, caller: Caller, signature: OpSignature) -> None:
        self.launched_ops.append((signature, caller.stream.device))

    def copying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def copy(
        self,
        signature: OpSignature,
        kind: str,
        size_bytes: int,
        device: int,
        blocking: bool,
        pinned: bool = False,
        moves_tensor: bool = False,
    ) -> None:
        self.copies.append((signature, kind, size_bytes, device, blocking))

    def copy_to_peer(self, signature: OpSignature, size_bytes: int, source: int, target: int) -> None:
        self.copies.append((signature, "p2p", size_bytes, source, False))

    def output_size(self, op: str, shape: tuple[int, ...]) -> int | None:
        return self.selections.get(shape)

    def synchronize(self, stream: VirtualStream) -> None:
        pass

    def calls_product(self, signature: OpSignature) -> bool:
        return self.blas.kept and signature.op in self.ops_with_products

    def workspaces_of(self, signature: OpSignature) -> WorkspaceSequence:
        return ()

    def read(self, signature: OpSignature, device: int, count: int, is_recorded: bool = True) -> list[float] | None:
        self.reads.append((signature, device, count))
        return self.answers.get(signature.op) if is_recorded else None

    def loss_called(self) -> None:
        pass

    def gc_unfrozen(self) -> AbstractContextManager[None]:
        return nullcontext()

    def enter_phase(self, name: str) -> None:
        pass

    def leave_phase(self, name: str, error: BaseException | None = None) -> None:
        pass

    def optimizer_stepped(self, is_first: bool) -> None:
        for device in self.devices:
            device.allocator.end_step()

    def module_returned(self) -> None:
        pass

    def module_called(self, number: int, grad_enabled: bool) -> None:
        pass

    def module_marks(self, module: object) -> None:
        pass

    def autograd_recorded(self, uses_gradients: bool) -> None:
        pass

    def modules_left(self) -> None:
        pass

    workload = WorkloadObserver()

    def loader_exhausted(self) -> None:
        pass

    def synchronize_device(self, device: int) -> None:
        pass

    @property
    def launched(self) -> list[str]:
        """Return the names of the launched ops, without namespace."""
        return [signature.op.removeprefix("aten::") for signature, _ in self.launched_ops]

    def live_bytes(self, device: int = 0) -> int:
        """Return the number of bytes that live tensors have requested."""
        live: int = self.devices[device].memory.usage.stats()["requested_bytes"]["all"]["current"]
        return live
