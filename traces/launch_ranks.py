"""Runs a script as several ranks on this machine, as `torchrun --standalone` would, but without importing torch beside them.

    python launch_ranks.py 2 train_ddp.py --epochs 1     # two processes, RANK=0 and RANK=1

The environment of each tells it its place by torchrun's names. The first rank that fails ends the others, so that none waits
for it; its exit code is the run's.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

_POLL_S = 0.02
_PATIENCE_S = 30.0  # from being asked to end until being killed, as torchrun has it


def main(words: list[str]) -> int:
    """`words` are the number of ranks and what would follow `python`."""
    count, script = int(words[0]), words[1:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    for rank in range(count):
        env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, *script], env=env))
    failed = _first_failure(ranks)
    if failed is None:
        return 0
    code = ranks[failed].returncode
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    print(f"trace: rank {failed} of {count} ended with {how}; the others are ended", file=sys.stderr)
    _end(ranks)
    return 128 - code if code < 0 else code


def _first_failure(ranks: list[subprocess.Popen[bytes]]) -> int | None:
    """The first rank that ends badly, or None when all have ended well."""
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [number for number, code in enumerate(codes) if code]
        if failed:
            return failed[0]
        if all(code == 0 for code in codes):
            return None
        time.sleep(_POLL_S)


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    deadline = time.monotonic() + _PATIENCE_S
    for rank in ranks:
        try:
            rank.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
