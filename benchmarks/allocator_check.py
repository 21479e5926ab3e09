"""Compares the virtual allocator with PyTorch's allocator: the position of each block, and all values of
torch.cuda.memory_stats.

    python benchmarks/allocator_check.py run events.json --model resnet50 --batch-size 32    # on a machine with a GPU
    python benchmarks/allocator_check.py compare events.json [--json result.json]

The command `run` trains a few steps, empties the cache, uses a second stream, and trains again, while PyTorch records the
allocator's history. `compare` makes the same requests to replayer/memory/device/caching_allocator.py. After each memory
request, `compare` checks the block's segment and offset, and at the end it checks all statistics. The file also contains
PYTORCH_ALLOC_CONF, because expandable segments (expandable_segments:True) need a run of their own.

If free blocks have equal sizes, PyTorch up to 2.11 takes the block with the lowest address, which depends on the CUDA driver.
Therefore, `compare` gives the virtual segments the recorded addresses, and expects equal positions and statistics. A second
comparison, "own_addresses", uses the virtual addresses of a replay (Note [Addresses] in replayer/memory/device/segments.py).
With PyTorch up to 2.11, positions may differ in the second comparison, because CUDA libraries also take memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from replayer.memory.device.blocks import Block, ExpandablePool, TieRule, tie_rule_of  # noqa: E402
from replayer.memory.device.caching_allocator import DeviceMemory  # noqa: E402
from replayer.memory.device.segments import AddressSource  # noqa: E402
from replayer.memory.device.settings import parse_settings  # noqa: E402
from traces.model.machine import Machine  # noqa: E402

Place = tuple[int, int]  # (number of the segment in the order of allocation, offset in the segment)


class Theirs:
    """Stores the blocks of the recorded allocator. In an expandable segment, the memory that is mapped for one request counts
    as one segment."""

    def __init__(self, capacity_bytes: int) -> None:
        self.sizes: list[int] = []  # sizes of all segments so far
        self._live: dict[int, int] = {}  # maps the base address of a segment to its number
        self._span_bytes = capacity_bytes + capacity_bytes // 8  # an expandable segment's addresses; PyTorch rounds up to pages
        self._mapped: dict[int, int] = {}  # bytes by base address of expandable segments
        self._ranges = 0
        self._new_bytes = 0  # bytes that were mapped since the last block was allocated

    def segment_alloc(self, address: int, size_bytes: int) -> None:
        self._live[address] = len(self.sizes)
        self.sizes.append(size_bytes)

    def segment_free(self, address: int) -> None:
        self._live.pop(address, None)

    def segment_map(self, address: int, size_bytes: int) -> None:
        base = next((base for base in self._mapped if base <= address < base + self._span_bytes), address)
        if base not in self._mapped:
            self._mapped[base], self._live[base] = 0, self._ranges
            self._ranges += 1
        self._mapped[base] += size_bytes
        self._new_bytes += size_bytes

    def segment_unmap(self, address: int, size_bytes: int) -> None:
        base = next(base for base in self._mapped if base <= address < base + self._span_bytes)
        self._mapped[base] -= size_bytes
        if not self._mapped[base]:
            del self._mapped[base], self._live[base]

    def place(self, address: int) -> Place:
        if self._new_bytes:
            self.sizes.append(self._new_bytes)
            self._new_bytes = 0
        base = max((base for base in self._live if base <= address), default=-1)
        return (self._live[base], address - base) if base >= 0 else (-1, address)


class RecordedAddresses:
    """Provides the addresses of the recorded segments in the order of allocation."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        taken = [event for event in events if event["action"] == "segment_alloc"]
        self._segments = iter([(event["addr"], event["size"]) for event in taken])
        self._unused = 1 << 46  # next address for segments that were not recorded

    def allocate(self, size_bytes: int) -> int:
        address, recorded_bytes = next(self._segments, (0, 0))
        if size_bytes == recorded_bytes:
            return address
        self._unused += size_bytes
        return self._unused - size_bytes

    def give_back(self, address: int, size_bytes: int) -> None:
        """Do nothing, because the recording contains the next address."""


class Ours:
    """Stores the blocks of the virtual allocator."""

    def __init__(self, capacity_bytes: int, settings: str, tie_rule: TieRule, addresses: AddressSource | None) -> None:
        chosen = parse_settings(settings)
        self.memory = DeviceMemory(0, capacity_bytes, tie_rule=tie_rule, settings=chosen, addresses=addresses)
        self.sizes: list[int] = []
        self._numbers: dict[int, int] = {}
        self._made = 0

    def malloc(self, size_bytes: int, stream: int) -> tuple[Block | None, Place]:
        before_bytes = self.memory.usage.reserved_bytes
        block = self.memory.malloc(size_bytes, stream)
        if block is None:
            return None, (-1, 0)
        head = block
        while head.prev is not None:
            head = head.prev
        expandable = isinstance(block.pool, ExpandablePool)
        if head.address not in self._numbers:
            self._numbers[head.address] = self._made
            self._made += 1
            if not expandable:
                self.sizes.append(_length(head))
        if expandable and self.memory.usage.reserved_bytes > before_bytes:
            self.sizes.append(self.memory.usage.reserved_bytes - before_bytes)
        return block, (self._numbers[head.address], block.address - head.address)

    def empty_cache(self) -> None:
        self.memory.empty_cache()
        live = {segment["address"] for segment in self.memory.snapshot()}
        ranges = {base for base in self._numbers if any(base <= address < base + (1 << 40) for address in live)}
        kept = ranges if self.memory.settings.expandable_segments else live
        self._numbers = {address: number for address, number in self._numbers.items() if address in kept}


def _length(head: Block) -> int:
    size_bytes, block = head.size_bytes, head.next
    while block is not None:
        size_bytes, block = size_bytes + block.size_bytes, block.next
    return size_bytes


def compare(recorded: dict[str, Any]) -> dict[str, Any]:
    """Compare the positions of blocks and the statistics, with recorded and with virtual addresses of segments."""
    result = _compare(recorded, RecordedAddresses(recorded["events"]))
    own = _compare(recorded, None)
    peak = "reserved_bytes.all.peak"
    peaks = own["statistics_that_differ"].get(peak) or dict.fromkeys(("theirs", "ours"), recorded["statistics"].get(peak))
    kept = ("placed", "segments_agree", "first_difference")
    differing = len(own["statistics_that_differ"])
    own = {**{key: own[key] for key in kept}, "statistics_that_differ": differing, "peak_reserved_bytes": peaks}
    return {**result, "own_addresses": own}


def summary_line(result: dict[str, Any]) -> str:
    line = f"{result['placed']} of {result['allocations']} blocks at the recorded address"
    line += f", {len(result['statistics_that_differ'])} of {result['statistics_compared']} statistics differ"
    line += f"; {result['own_addresses']['placed']} with addresses of our allocator"
    if not result["segments_agree"]:
        line += ", segments differ"
    if result["frees_of_unknown_blocks"]:
        line += f", {result['frees_of_unknown_blocks']} frees of blocks that were never allocated"
    if (first := result["first_difference"]) is not None:
        line += f", first difference at event {first['event']}: {first['bytes']:,} bytes"
        line += f" recorded at {first['theirs']}, placed at {first['ours']}"
    return line


def _compare(recorded: dict[str, Any], addresses: AddressSource | None) -> dict[str, Any]:
    capacity_bytes, settings = recorded["capacity_bytes"], recorded.get("settings", "")
    tie_rule = tie_rule_of(Machine(torch=recorded["torch"]))
    theirs, ours = Theirs(capacity_bytes), Ours(capacity_bytes, settings, tie_rule, addresses)
    blocks: dict[int, Block | None] = {}
    streams = {0: 0}
    placed = unknown = 0
    first: dict[str, Any] | None = None
    emptying = False
    requests = [event for event in recorded["events"] if event["action"] in ("alloc", "free_completed")]
    for number, event in enumerate(recorded["events"]):
        action, address = event["action"], event.get("addr", 0)
        if action in ("segment_free", "segment_unmap"):
            if action == "segment_free":
                theirs.segment_free(address)
            else:
                theirs.segment_unmap(address, event["size"])
            if not emptying:
                ours.empty_cache()
        elif action == "segment_alloc":
            theirs.segment_alloc(address, event["size"])
        elif action == "segment_map":
            theirs.segment_map(address, event["size"])
        elif action == "alloc":
            block, place = ours.malloc(event["size"], streams.setdefault(event["stream"], len(streams)))
            blocks[address] = block
            if place == theirs.place(address):
                placed += 1
            elif first is None:
                first = {"event": number, "bytes": event["size"], "theirs": theirs.place(address), "ours": place}
        elif action == "free_completed":
            block = blocks.pop(address, None)
            if block is None:
                unknown += 1
            else:
                ours.memory.free(block)
        emptying = action in ("segment_free", "segment_unmap")
    statistics = _differences(_flat(ours.memory.usage.stats()), recorded["statistics"])
    allocations = sum(event["action"] == "alloc" for event in requests)
    return {
        "allocations": allocations,
        "placed": placed,
        "frees": len(requests) - allocations,
        "frees_of_unknown_blocks": unknown,
        "segments": len(theirs.sizes),
        "segments_agree": theirs.sizes == ours.sizes,
        "streams": len(streams),
        "first_difference": first,
        "statistics_compared": statistics.pop("compared"),
        "statistics_that_differ": statistics,
        "agrees": placed == allocations and theirs.sizes == ours.sizes and not statistics and not unknown,
    }


def _flat(nested: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    common = [key for key in theirs if key in ours and isinstance(theirs[key], int)]
    differ = {key: {"theirs": theirs[key], "ours": ours[key]} for key in common if theirs[key] != ours[key]}
    return {"compared": len(common), **differ}


def run(args: argparse.Namespace) -> None:
    """Train a model while PyTorch records the allocator's history, and write the history to a file."""
    import torch
    from torch.nn import functional as F

    from resnet import resnet18, resnet50

    torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)
    model = {"resnet18": resnet18, "resnet50": resnet50}[args.model](classes=1000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(batch_size: int) -> None:
        images = torch.randn(batch_size, 3, args.image_size, args.image_size).cuda()
        labels = torch.randint(0, 1000, (batch_size,)).cuda()
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for batch_size in (args.batch_size, args.batch_size, args.batch_size // 2 or 1):
        train(batch_size)
    torch.cuda.synchronize()
    torch.empty(100 << 20, dtype=torch.uint8, device="cuda")  # a block that is freed at once marks this line in the history
    torch.cuda.empty_cache()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1, 600, 1 << 20, 3 << 20, 30 << 20)]
        del kept[1::2]
    train(args.batch_size)
    torch.cuda.synchronize()

    snapshot = torch.cuda.memory._snapshot()
    events = snapshot["device_traces"][torch.cuda.current_device()]
    facts = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "settings": snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"],
        "capacity_bytes": torch.cuda.get_device_properties(0).total_memory,
        "statistics": dict(torch.cuda.memory_stats()),
        "events": [{key: event[key] for key in ("action", "addr", "size", "stream") if key in event} for event in events],
    }
    args.events.write_text(json.dumps(facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("events", type=Path)
    running.add_argument("--model", choices=("resnet18", "resnet50"), default="resnet50")
    running.add_argument("--batch-size", type=int, default=32)
    running.add_argument("--image-size", type=int, default=224)
    comparing = commands.add_parser("compare")
    comparing.add_argument("events", type=Path)
    comparing.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.command == "run":
        run(args)
        return
    result = compare(json.loads(args.events.read_text()))
    print(summary_line(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    sys.exit(0 if result["agrees"] else 1)


if __name__ == "__main__":
    main()
