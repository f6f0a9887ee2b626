"""Starts the ranks of one machine, and ends all when one fails: for frameworks that bring no launcher.

As a process: `python -m metalmark.runner.ranks NPROC NNODES NODE_RANK HOST PORT MODULE ARGUMENTS...`. It uses little of
Metalmark, to be there at once.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from metalmark.feeds.share import LOCAL_RANK, RANK, WORLD_SIZE
from metalmark.machine.durable import write_struct
from metalmark.runner.events import RANK_ADDRESSES, RANKS_FOLDER, RankExits
from metalmark.runner.world import EXITS, LOOPBACK, free_port

GRACE_S = 2.0
PAUSE_S = 0.05


def main(nproc: int, nnodes: int, node_rank: int, host: str, port: int, module: list[str]) -> int:
    # Where all are on this machine each has an address of its own; some frameworks want to know them all.
    ports = [port, *(free_port() for _ in range(nproc - 1))] if nnodes == 1 else []
    addresses = ",".join(f"{LOOPBACK}:{each}" for each in ports) or f"{host}:{port}"
    processes: dict[int, subprocess.Popen[bytes]] = {}
    for local in range(nproc):
        number = node_rank * nproc + local
        variables = {
            RANK: str(number),
            LOCAL_RANK: str(local),
            WORLD_SIZE: str(nproc * nnodes),
            RANK_ADDRESSES: addresses,
        }
        # In the group of this process: whoever ends the group ends them.
        processes[number] = subprocess.Popen([sys.executable, "-m", *module], env={**os.environ, **variables})
    exits: list[tuple[int, int]] = []
    asked_s = 0.0
    while len(exits) < nproc:
        ended = {rank for rank, _ in exits}
        for rank, process in processes.items():
            code = process.poll() if rank not in ended else None
            if code is None:
                continue
            exits.append((rank, code))
            write_struct(Path(os.environ[RANKS_FOLDER]) / EXITS, RankExits(exits=tuple(exits)))
        failed = any(code for _, code in exits)
        if failed and not asked_s:
            asked_s = time.monotonic()
            _signal(processes, signal.SIGTERM)
        elif failed and time.monotonic() - asked_s > GRACE_S:
            _signal(processes, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return next((1 for _, code in exits if code), 0)


def _signal(processes: dict[int, "subprocess.Popen[bytes]"], number: int) -> None:
    for process in processes.values():
        with suppress(ProcessLookupError):
            if process.poll() is None:
                process.send_signal(number)


if __name__ == "__main__":
    nproc_, nnodes_, node_rank_, host_, port_, *module_ = sys.argv[1:]
    sys.exit(main(int(nproc_), int(nnodes_), int(node_rank_), host_, int(port_), module_))
