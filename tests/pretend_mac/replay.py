"""A Mac's system tool, replayed: prints what the machine's file has for this command, and misbehaves where asked to.

PRETEND_MAC_FAULTS="system_profiler=hang,pmset=fail": a tool, or a tool and its last argument ("pmset batt=hang"), and
hang (never answers), slow (answers after a second), fail (says so and exits 1), flood (prints without end) or nonsense
(prints bytes that mean nothing).
"""

from __future__ import annotations

import json
import os
import sys
import time

FOLDER = os.path.dirname(os.path.dirname(sys.argv[0]))


def main(tool: str, arguments: list[str]) -> int:
    with open(os.path.join(FOLDER, "called"), "a") as log:
        log.write(" ".join([tool, *arguments]) + "\n")
    fault = wanted_fault(tool, arguments)
    if fault == "hang":
        time.sleep(3600)
    if fault == "slow":
        time.sleep(1)
    if fault == "fail":
        sys.stderr.write(f"{tool}: something is wrong in /Users/pat/Library\n")
        return 1
    if fault == "nonsense":
        sys.stdout.buffer.write(bytes(range(256)) * 40 + b"\n")
        return 0
    while fault == "flood":
        sys.stdout.write("flood " * 20_000 + "\n")
    if tool == "caffeinate":
        return caffeinate(arguments)
    if tool == "xcode-select":
        sys.stdout.write("/Library/Developer/CommandLineTools\n")
        return 0
    if tool == "sysctl":
        return sysctl(arguments)
    return recorded(tool, arguments)


def wanted_fault(tool: str, arguments: list[str]) -> str:
    for entry in os.environ.get("PRETEND_MAC_FAULTS", "").split(","):
        name, _, fault = entry.partition("=")
        if name in (tool, f"{tool} {arguments[-1] if arguments else ''}"):
            return fault
    return ""


def caffeinate(arguments: list[str]) -> int:
    """Stays until the process behind -w has ended."""
    pid = int(arguments[arguments.index("-w") + 1])
    while os.path.exists(f"/proc/{pid}"):
        time.sleep(0.1)
    return 0


def sysctl(arguments: list[str]) -> int:
    """The values of the keys, and of all keys below a branch; an unknown key is a line on stderr."""
    with open(os.path.join(FOLDER, "sysctl.json")) as file:
        values: dict[str, str] = json.load(file)
    bare = "-n" in arguments
    status = 0
    for wanted in arguments:
        if wanted == "-n":
            continue
        found = {key: value for key, value in values.items() if key == wanted or key.startswith(f"{wanted}.")}
        for key, value in found.items():
            sys.stdout.write(f"{value}\n" if bare else f"{key}: {value}\n")
        if not found:
            sys.stderr.write(f"sysctl: unknown oid '{wanted}'\n")
            status = 1
    return status


def recorded(tool: str, arguments: list[str]) -> int:
    with open(os.path.join(FOLDER, "machine.json")) as file:
        answers = json.load(file)["answers"]
    for answer in answers:
        own = answer["argv"]
        if os.path.basename(own[0]) == tool and own[1:] == arguments[: len(own) - 1]:
            return give(answer, arguments)
    sys.stderr.write(f"{tool}: no answer is recorded for {' '.join(arguments)}\n")
    return 64


def give(answer: dict[str, object], arguments: list[str]) -> int:
    sys.stderr.write(str(answer["stderr"]))
    text = str(answer["stdout"])
    if "-i" not in arguments:
        sys.stdout.write(text)
        return int(str(answer["status"]))
    # A tool that goes on printing: its recorded samples one by one, again and again.
    interval_s = float(arguments[arguments.index("-i") + 1]) / 1000
    samples = text.split("\0") if "\0" in text else text.splitlines()
    number = 0
    while True:
        sample = samples[number % len(samples)]
        sys.stdout.write(("\0" if number else "") + sample if "\0" in text else sample + "\n")
        sys.stdout.flush()
        number += 1
        time.sleep(interval_s)


if __name__ == "__main__":
    sys.exit(main(os.path.basename(sys.argv[0]), sys.argv[1:]))
