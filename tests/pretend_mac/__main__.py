"""`python -m tests.pretend_mac MACHINE ARGUMENTS...`: a command of Metalmark's on a pretend Mac, to look at.

MACHINE is one of the machines in `machines.py`, or a file that `metalmark doctor --bundle` wrote.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from tests.pretend_mac import Mac, few_files
from tests.pretend_mac.machines import names


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stderr.write(f"{__doc__}\nMachines: {', '.join(names())}\n")
        return 0 if arguments else 2
    if arguments[0] not in names() and not arguments[0].endswith(".json"):
        sys.stderr.write(f"There is no machine {arguments[0]!r}. Machines: {', '.join(names())}, or a file.\n")
        return 2
    try:
        mac = Mac(arguments[0])
    except (OSError, msgspec.DecodeError) as error:
        sys.stderr.write(f"{arguments[0]} is not a machine's file: {error}\nMake one: metalmark doctor --bundle FILE\n")
        return 2
    command = [sys.executable, "-m", "metalmark", *arguments[1:]]
    with mac, subprocess.Popen(command, env=mac.environment(), preexec_fn=few_files) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal sent Ctrl-C to the command too, which ends in its own way.
            return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
