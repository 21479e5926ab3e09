"""Defines the messages that ranks send before a collective, and checks that all ranks call the same collective.

    first, *more = pack([message])  # pieces that fit the store
    [message] = unpack(first, lambda number: more[number - 1])
    require_match([first_rank, second_rank], 0, 1, "rank {}".format, "NCCL")  # RuntimeError: ... the dtypes must be equal ...
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import TypeVar

import torch

T = TypeVar("T")

_LONGEST_VALUE = 4 << 20  # bytes; a TCPStore rejects messages over 8 MiB


@dataclass
class RankMessage:
    arrived_ns: int
    operation: str
    size_bytes: int
    dtype: str
    payload: bytes | None = None
    uniform: float | int | bool | None = None
    doubt: int = 0  # a number of `Doubt`: how far the values in `payload` or `uniform` can be trusted
    sends: list[int] | None = None
    wants: list[int] | None = None
    detail: str = ""
    read_count: int = 0
    # The next two fields are set only for a communicator's first operation with tensors.
    gpu: str = ""
    group: str = ""  # the ranks of the process group, such as "ranks 1, 3"

    @property
    def count(self) -> int:
        return self.size_bytes // getattr(torch, self.dtype).itemsize if self.dtype else 0

    @property
    def counterpart(self) -> str:
        return {"send": "recv", "recv": "send"}.get(self.operation, self.operation)

    def __str__(self) -> str:
        of = f" of {self.count} {self.dtype} elements" if self.dtype else ""
        return f"{self.operation}{of}{f' ({self.detail})' if self.detail else ''}"


def pack(messages: Sequence[RankMessage]) -> list[bytes]:
    heads, payloads = [], []
    for _, alike in groupby(messages, lambda message: replace(message, arrived_ns=0, read_count=0)):
        ranks = list(alike)
        head = asdict(ranks[0]) | {"arrived_ns": max(rank.arrived_ns for rank in ranks)}
        head["read_count"] = min(rank.read_count for rank in ranks)
        payload = head.pop("payload")
        payloads.append(payload or b"")
        heads.append([len(ranks), None if payload is None else len(payload), head])
    joined = b"".join(payloads)
    pieces = [joined[start : start + _LONGEST_VALUE] for start in range(0, len(joined), _LONGEST_VALUE)] or [b""]
    return [json.dumps([len(pieces) - 1, heads]).encode() + b"\n" + pieces[0], *pieces[1:]]


def unpack(first: bytes, piece: Callable[[int], bytes]) -> list[RankMessage]:
    head, _, payload = first.partition(b"\n")
    more, heads = json.loads(head)
    payload = b"".join([payload, *map(piece, range(1, more + 1))])
    messages, start = [], 0
    for count, length, fields in heads:
        end = start + (length or 0)
        messages += [RankMessage(**fields, payload=None if length is None else payload[start:end])] * count
        start = end
    return messages


def convert_each(messages: Sequence[RankMessage], convert: Callable[[RankMessage], T]) -> list[T]:
    converted = {key: convert(message) for key, message in {id(message): message for message in messages}.items()}
    return [converted[id(message)] for message in messages]


def shared_gpu(messages: Sequence[RankMessage]) -> tuple[int, int] | None:
    """Find two ranks on the same GPU, which is an error in NCCL."""
    places: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message.gpu and (first := places.setdefault(message.gpu, place)) != place:
            return place, first
    return None


def ranks_text(ranks: Sequence[int]) -> str:
    """Return text such as "ranks 1, 3"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


Messages = Sequence[RankMessage] | Mapping[int, RankMessage]  # messages by the ranks' positions in the group


def require_match(messages: Messages, own: int, other: int, rank_of: Callable[[int], str], library: str) -> None:
    """Raise RuntimeError if the calls of two ranks do not match."""
    if conflict := _conflict(messages, own, other, rank_of, library):
        raise RuntimeError(
            f"{rank_of(other)} of the group called {messages[other]}, but {rank_of(own)} called {messages[own]}: {conflict};"
            f" {library} would hang or corrupt data"
        )


def _conflict(messages: Messages, own: int, other: int, rank_of: Callable[[int], str], library: str) -> str:
    mine, theirs = messages[own], messages[other]
    names = {mine.operation, theirs.operation}
    if len(names) > 1 and names != {"send", "recv"}:
        return "all ranks must call the same operations in the same order"
    if mine.detail != theirs.detail:
        return "all ranks must pass the same arguments"
    if mine.dtype != theirs.dtype:
        return "the dtypes must be equal"
    if len(names) > 1 and library == "gloo":  # gloo can receive into a larger tensor
        sent, received = (mine, theirs) if mine.operation == "send" else (theirs, mine)
        return "the receiving tensor must have at least as many elements" if sent.count > received.count else ""
    if (mine.sends or mine.wants) is None:
        return "the numbers of elements must be equal" if mine.count != theirs.count else ""
    for of, to in ((own, other), (other, own)):
        sends, wants = messages[of].sends, messages[to].wants
        if sends is not None and wants is not None and sends[to] != wants[of]:
            return f"{rank_of(of)} sends {sends[to]} elements to {rank_of(to)}, which expects {wants[of]}"
    return ""
