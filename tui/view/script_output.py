"""Stores a script's output while the timeline app uses the terminal.

    with ScriptOutput.of_terminal() as output:
        Popen([...], stdout=output.stdout, stderr=output.stderr)    # file descriptors, or None to inherit them
        app.run()                                                   # shows output.tail(20)
        output.release()                                            # prints stored output, and new output immediately

The pseudo-terminal lets the script print colours and progress bars.
"""

from __future__ import annotations

import codecs
import os
import pty
import shutil
import struct
import sys
import termios
import threading
from collections import deque
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

_TAIL_LINES = 2000
_READ_BYTES = 1 << 16


class Lines:
    """Keeps the last lines of a terminal's output. Text after a carriage return replaces the current line."""

    def __init__(self) -> None:
        self._done: deque[str] = deque(maxlen=_TAIL_LINES)
        self._open = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        *whole, rest = (self._open + self._decoder.decode(data).replace("\r\n", "\n")).split("\n")
        self._done.extend(_as_shown(line) for line in whole)
        self._open = rest if rest.endswith("\r") else _as_shown(rest)

    def tail(self, count: int) -> list[str]:
        lines = [*self._done, _as_shown(self._open)] if self._open.strip("\r") else list(self._done)
        return lines[-count:]


def _as_shown(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


class ScriptOutput:
    """Collects what the script prints to the terminal. `stdout` or `stderr` is None if the user has redirected it to a file."""

    def __init__(self, stdout: bool, stderr: bool) -> None:
        self._master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST  # do not translate newlines, because the real terminal does it
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        size = shutil.get_terminal_size()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
        self.stdout = slave if stdout else None
        self.stderr = slave if stderr else None
        self._slave = slave
        self._to = sys.stdout if stdout else sys.stderr
        self._kept: IO[bytes] = TemporaryFile(prefix="trace-output-")  # noqa: SIM115 (closed in __exit__)
        self._released = False
        self._lock = threading.Lock()
        self._lines = Lines()
        self.written_bytes = 0
        self._reader = threading.Thread(target=self._read, name="trace-output", daemon=True)

    @classmethod
    def of_terminal(cls) -> ScriptOutput:
        return cls(sys.stdout.isatty(), sys.stderr.isatty())

    def __enter__(self) -> ScriptOutput:
        self._reader.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
        os.close(self._slave)  # the reader sees the end of the file only after all processes have closed the other end
        self._reader.join(timeout=1)  # a leftover process of the script may still have the other end open
        self._kept.close()

    def tail(self, count: int) -> list[str]:
        with self._lock:
            return self._lines.tail(count)

    def release(self) -> None:
        with self._lock:
            if self._released:
                return
            self._released = True
            self._kept.seek(0)
            while data := self._kept.read(_READ_BYTES):
                self._print(data)

    def _print(self, data: bytes) -> None:
        with suppress(OSError, ValueError):  # the terminal was closed
            self._to.buffer.write(data)
            self._to.flush()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, _READ_BYTES)
            except OSError:  # Linux raises EIO at end of file
                data = b""
            if not data:
                os.close(self._master)
                return
            with self._lock:
                self.written_bytes += len(data)
                self._lines.feed(data)
                if self._released:
                    self._print(data)
                else:
                    self._kept.write(data)


def no_input() -> int | None:
    """Open /dev/null as the script's stdin, because the app reads the keyboard. Return None if stdin is not a terminal. The
    caller must close the descriptor."""
    return os.open(Path(os.devnull), os.O_RDONLY) if sys.stdin.isatty() else None
