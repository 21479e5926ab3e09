from __future__ import annotations

import threading
from dataclasses import replace

from traces.model.trace import Thread


class ThreadRows:
    def __init__(self, rank: int) -> None:
        self.script_thread = threading.get_ident()
        self.threads = [Thread(rank, threading.get_native_id(), threading.current_thread().name, "main")]
        self._rank = rank
        self._rows: dict[int | str, int] = {self.script_thread: 0}  # keys: roles, or thread identities

    def joined_group(self, rank: int) -> None:
        self._rank = rank
        self.threads = [replace(thread, rank=rank) for thread in self.threads]

    def row(self, role: str = "") -> int:
        ident = threading.get_ident()
        key = ident if ident == self.script_thread else role or ident
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self.threads)
            kind = role.partition(" ")[0]
            name = role if kind in ("replica", "backward") else threading.current_thread().name
            self.threads.append(
                Thread(self._rank, threading.get_native_id(), name, "backward" if kind == "backward" else "other")
            )
        return row

    def note_script_thread(self, ident: int) -> None:
        if ident != self.script_thread:
            self._rows.pop(self.script_thread)
            self.script_thread, self._rows[ident] = ident, 0
            self.threads[0] = Thread(self._rank, threading.get_native_id(), threading.current_thread().name, "main")
