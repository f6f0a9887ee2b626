"""Hostile .pth files: tensors with random sizes, strides, offsets and counts, and files damaged at random.

python benchmarks/attack/files.py [--files 20000] [--seed 1] [--quick]

Half of the files say something random of their tensors, in the zip form and in the one before it; the other half are
good files with bytes changed, cut out or added. They are read in a process of its own, whose memory is limited, so that
a crash and a file that takes memory can be told. A failure is a crash, an exception that is not WeightsError, a tensor
that is not what its file says (computed here element by element, without NumPy's strides), or memory beyond the limit.
--quick: 1,000 files, to see that it runs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import random
import resource
import struct
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.workloads.torch_files import SavedTensor, write_legacy, write_zip  # noqa: E402

from metalmark.errors import WeightsError  # noqa: E402
from metalmark.workloads.weights import read_pth  # noqa: E402

FILES, QUICK_FILES = 20_000, 1_000
TOGETHER = 500
"""Files per process: a crash costs the rest of them."""
MEMORY_BYTES = 1 << 30
"""More than the process has when it begins; the files have a few hundred bytes each."""
STORED = 24
NUMBERS = tuple(float(number) for number in range(STORED))
EXTREMES = (
    0,
    1,
    -1,
    2,
    3,
    STORED - 1,
    STORED,
    STORED + 1,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
    10**30,
)


def random_tensor(chance: random.Random) -> SavedTensor:
    """A tensor that fits as a rule, with now and then a number that does not."""
    dimensions = chance.randint(0, 4)
    size = [chance.choice((1, 2, 3, 4)) for _ in range(dimensions)]
    stride = [chance.randint(-3, 6) for _ in range(dimensions)]
    offset, elements = chance.randint(0, STORED - 1), STORED
    for numbers in (size, stride):
        if numbers and chance.random() < 0.3:
            numbers[chance.randrange(dimensions)] = chance.choice(EXTREMES)
    if chance.random() < 0.1:
        offset = chance.choice(EXTREMES)
    if chance.random() < 0.1:
        elements = chance.choice(EXTREMES)
    odd: list[object] = [None, 1.5, "4", True, (), [1], {}]
    if chance.random() < 0.05:
        return SavedTensor(size=chance.choice(odd), stride=tuple(stride), offset=offset, elements=elements)
    if chance.random() < 0.05:
        return SavedTensor(size=tuple(size), stride=(chance.choice(odd),), offset=offset, elements=elements)
    return SavedTensor(size=tuple(size), stride=tuple(stride), offset=offset, elements=elements)


def expected(tensor: SavedTensor) -> list[float]:
    """The elements in order, by their definition."""
    assert isinstance(tensor.size, tuple)
    assert isinstance(tensor.stride, tuple)
    assert isinstance(tensor.offset, int)
    places = itertools.product(*(range(length) for length in tensor.size))
    return [NUMBERS[tensor.offset + sum(map(math.prod, zip(at, tensor.stride, strict=True)))] for at in places]


def damaged(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] = chance.randrange(256)
        elif kind == 1:
            del changed[at : at + chance.randint(1, 20)]
        elif kind == 2:
            changed[at:at] = chance.choice(
                (b"\xff" * 4, b"\x7f", chance.randbytes(8), b"r\xff\xff\xff\xff", b"\x8a\x08")
            )
        elif at + 8 <= len(changed):
            changed[at : at + 8] = struct.pack("<q", chance.choice((-1, 1 << 62, -(1 << 63), 1 << 40)))
    return bytes(changed)


def attack(seed: int, files: int, results: multiprocessing.Queue[str]) -> None:
    """Read so many files, and say of each what became of it."""
    size = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    if size:
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES,) * 2)
    chance = random.Random(seed)
    data = struct.pack(f"<{STORED}f", *NUMBERS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.pth")
        for number in range(files):
            tensor = random_tensor(chance) if number % 2 else SavedTensor()
            if chance.random() < 0.5:
                write_zip(path, {"w": tensor}, {"0": data})
            else:
                write_legacy(path, {"w": tensor}, {"0": (STORED if number % 4 else 6, data)})
            if not number % 2:
                path.write_bytes(damaged(path.read_bytes(), chance))
            try:
                found = read_pth(path)
                for array in found.values():
                    array.sum()  # every element is touched
                right = not number % 2 or found["w"].ravel().tolist() == expected(tensor)
                results.put("read" if right else "wrong")
            except WeightsError as error:
                results.put("memory" if isinstance(error.__cause__, MemoryError) else "refused")
            except BaseException:  # noqa: BLE001  whatever it is, it is what is counted here
                traceback.print_exc()
                results.put("exceptions")
    results.put("")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    files = QUICK_FILES if given.quick else given.files
    counts: Counter[str] = Counter()
    context = multiprocessing.get_context("fork")
    for start in range(0, files, TOGETHER):
        results: multiprocessing.Queue[str] = context.Queue()
        process = context.Process(target=attack, args=(given.seed * 1_000_000 + start, TOGETHER, results))
        process.start()
        while True:
            try:
                outcome = results.get(timeout=60 if process.is_alive() else 1)
            except Exception:  # noqa: BLE001  the queue is empty: the process is dead, or reads one file for ever
                counts["crashes"] += not process.is_alive()
                counts["hangs"] += process.is_alive()
                process.kill()
                break
            if not outcome:
                break
            counts[outcome] += 1
        process.join()
    for name in ("read", "refused", "wrong", "exceptions", "memory", "crashes", "hangs"):
        print(f"{name}: {counts[name]}")
    failures = sum(counts[name] for name in ("wrong", "exceptions", "memory", "crashes", "hangs"))
    print(f"failures: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
