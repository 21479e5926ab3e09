"""Tests how a rank announces its end to the other ranks of a process group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replayer.distributed.group_operations import GroupOperations


@pytest.mark.parametrize(
    ("failed", "communicated", "waits"), [(False, True, True), (True, True, False), (False, False, False), (True, False, False)]
)
def test_a_rank_waits_for_other_ranks_only_if_it_communicated_and_did_not_fail(
    monkeypatch: pytest.MonkeyPatch, failed: bool, communicated: bool, waits: bool
) -> None:
    left: list[bool] = []  # for each call of `leave`, True if the rank does not wait
    exchange: Any = SimpleNamespace(leave=left.append)
    operations = GroupOperations(None, 0, 2, 60, "0", [0, 1])
    operations._exchange = exchange if communicated else None
    monkeypatch.setattr(operations, "_store_exchange", lambda: exchange)
    operations.leave(failed)
    assert left == [not waits]


def test_a_single_rank_announces_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = GroupOperations(None, 0, 1, 60, "0", [0])
    monkeypatch.delattr(GroupOperations, "_store_exchange")
    operations.leave()
