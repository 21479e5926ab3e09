"""Tests that forked processes share results. A process finds the results of another process, and never finds an incomplete
record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from replayer.gpu.shared_results import SharedResults, _digest


def _in_a_fork(call: Callable[..., object], *args: bytes) -> None:
    process = os.fork()
    if not process:
        call(*args)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0


def test_a_cached_result_of_one_process_is_found_in_another_process() -> None:
    results = SharedResults(1 << 12)
    assert results.find(b"a") is None
    _in_a_fork(results.add, b"a", b"first")
    _in_a_fork(results.add, b"b", b"other")
    assert (results.find(b"b"), results.find(b"a"), results.find(b"c")) == (b"other", b"first", None)
    _in_a_fork(results.add, b"a", b"second")  # The first result remains.
    assert results.find(b"a") == b"first"


def test_a_rank_waits_for_the_rank_that_computes_a_result() -> None:
    """GIVEN a rank that has looked up a key and adds its value 5 ms later WHEN another rank looks up the key THEN the second
    rank gets this value."""
    results = SharedResults(1 << 12)
    process = os.fork()
    if not process:
        results.find(b"key")
        time.sleep(0.005)
        results.add(b"key", b"value")
        os._exit(0)
    while results._value(_digest(b"key")) is None:
        time.sleep(0.0001)
    assert results.find(b"key") == b"value"
    os.waitpid(process, 0)


def test_a_rank_waits_only_once_for_a_result_that_never_arrives() -> None:
    """GIVEN a rank that has looked up a key without adding a value WHEN another rank looks up this key THEN the second rank
    waits 25 ms. At its next look-up, it does not wait."""
    results = SharedResults(1 << 12)
    _in_a_fork(results.find, b"key")
    took_s = []
    for _ in range(2):
        began = time.perf_counter()
        assert results.find(b"key") is None
        took_s.append(time.perf_counter() - began)
    assert 0.025 <= took_s[0] < 5 and took_s[1] < 0.02
    results.add(b"key", b"value")
    assert results.find(b"key") == b"value"


def test_a_rank_does_not_wait_for_itself() -> None:
    results = SharedResults(1 << 12)
    assert results.find(b"key") is None
    began = time.perf_counter()
    assert results.find(b"key") is None
    assert time.perf_counter() - began < 0.02


def test_a_record_with_a_wrong_checksum_is_ignored() -> None:
    results = SharedResults(1 << 12)
    _in_a_fork(results.add, b"key", b"value")
    results._memory[8 + 16] ^= 1  # The value comes after a header of 8 bytes and the 16 bytes of the key's digest.
    assert results._value(_digest(b"key")) is None
    results._memory[8 + 16] ^= 1
    assert results._value(_digest(b"key")) == b"value"


def test_results_larger_than_the_shared_memory_are_not_stored() -> None:
    """GIVEN a shared memory of 64 bytes THEN one record of 44 bytes and the next header fit. A second record does not fit."""
    results = SharedResults(64)
    for key in (b"a", b"b"):
        _in_a_fork(results.add, key, b"x" * 20)
    assert results.find(b"a") == b"x" * 20
    assert results.find(b"b") is None


def test_nothing_is_stored_after_a_process_was_killed_while_writing() -> None:
    results = SharedResults(1 << 12)
    process = os.fork()
    if not process:
        results._lock.acquire()
        os._exit(0)
    os.waitpid(process, 0)
    results.add(b"key", b"value")
    assert results.find(b"key") is None
