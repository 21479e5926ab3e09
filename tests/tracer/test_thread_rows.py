"""Tests that each thread or role gets a row in the table of threads."""

from __future__ import annotations

import threading

from tracer.writing.thread_rows import ThreadRows


def in_thread(name: str, rows: ThreadRows, role: str = "") -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(rows.row(role)), name=name)
    thread.start()
    thread.join()
    return found[0]


def test_threads_are_named_after_their_role_or_keep_their_name() -> None:
    """GIVEN threads of autograd, of replicas and with another role THEN only autograd's threads are backward threads. Several
    threads with the same role share a row."""
    rows = ThreadRows(rank=3)
    assert rows.row() == rows.row("backward 0") == 0  # the thread of the script keeps its row
    roles = {"a": "backward 0", "b": "replica 1", "c": "loader"}
    assert [in_thread(name, rows, role) for name, role in roles.items()] == [1, 2, 3]
    assert [in_thread("d", rows, role) for role in ("replica 1", "backward 0")] == [2, 1]
    found = [(thread.rank, thread.name, thread.role) for thread in rows.threads]
    assert found == [
        (3, threading.current_thread().name, "main"),
        (3, "backward 0", "backward"),
        (3, "replica 1", "other"),
        (3, "c", "other"),
    ]
    assert rows.threads[0].tid == threading.get_native_id()


def test_a_recorded_script_can_continue_training_in_a_different_thread() -> None:
    rows = ThreadRows(rank=0)
    own = threading.get_ident()
    in_thread("script", rows)  # this thread gets row 1
    done = threading.Thread(target=lambda: rows.note_script_thread(threading.get_ident()), name="trainer")
    done.start()
    done.join()
    assert rows.script_thread != own and (rows.threads[0].name, rows.threads[0].role) == ("trainer", "main")
    assert rows.row() == 2  # the earlier thread of the script is now an ordinary thread
    rows.joined_group(5)
    assert {thread.rank for thread in rows.threads} == {5}
