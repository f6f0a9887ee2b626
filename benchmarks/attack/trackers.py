"""Damaged queues and cut connections: does a tracker get everything, once?

python benchmarks/attack/trackers.py [--rounds 400] [--seed 1] [--quick]

Queues: each round writes a queue for two destinations, sends some of it, damages one or two of its files at random
(cut short, bits flipped, zeros, rubbish, deep nesting, long integers, emptied, removed), clears what is sent, and then
sends the rest to a tracker in memory. Counted:

- deleted: queues that were cleared though a destination had not got everything
- missing, doubled: points of an undamaged stream of events that a tracker does not have, or has twice
- tracebacks: whatever is raised by clearing, listing and sending
- hidden: queues that wait and that `track list` does not show

Connections: runs are sent to a real `mlflow server` through a proxy that passes every request on, and cuts the
connection before the answer at random, MLflow's own repeats on or off. Counted: runs that are there twice or not at
all, and curves that are not what was logged.

--quick: 40 rounds and 2 runs, to see that it runs.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.track.fake import FakeTracker  # noqa: E402
from tests.track.servers import cutting_proxy, free_port, mlflow_server  # noqa: E402

from metalmark.errors import MetalmarkError  # noqa: E402
from metalmark.track import sender  # noqa: E402
from metalmark.track.destination import Destination  # noqa: E402
from metalmark.track.queue import (  # noqa: E402
    DESTINATIONS,
    EVENTS,
    Begin,
    End,
    EndStatus,
    Known,
    MetricAxis,
    MetricRow,
    Queue,
    QueueWriter,
    clear_sent,
    queues,
)
from metalmark.track.sender import Deliverer  # noqa: E402
from metalmark.track.waiting import waiting  # noqa: E402

ROUNDS, QUICK_ROUNDS = 400, 40
RUNS, QUICK_RUNS = 12, 2
POINTS = 20
MOST_TRIES = 60
CUT = ("runs/create", "runs/log-batch", "runs/update", "runs/search", "experiments/get-by-name", "experiments/create")
PLACES = (Destination(tracker="mlflow", place="http://127.0.0.1:1"), Destination(tracker="wandb", place="offline"))


def damaged(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(8)
    if kind == 0:
        return data[:at]
    if kind == 1 and data:
        flipped = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    others = (bytes(len(data)), chance.randbytes(200), b"[" * 100_000, b'{"sent":' + b"9" * 400 + b"}", b"", b"null")
    return data[:at] + others[kind - 2] + data[at:] if kind > 1 and chance.random() < 0.5 else others[kind - 2]


def written(identifier: str) -> Queue:
    with QueueWriter(identifier, PLACES) as writer:
        rows = [MetricRow(axis=MetricAxis.STEP, x=x, at_ms=x, values={"loss": 1 / x}) for x in range(1, POINTS + 1)]
        writer.append(Begin(id=identifier, name="a run", kind="run", at_ms=1), Known(params={"rate": 0.1}), *rows)
        writer.end(End(at_ms=99, status=EndStatus.FINISHED))
    return writer.queue


def attack_queue(number: int, chance: random.Random, counts: Counter[str]) -> None:
    queue = written(f"queue{number:05}")
    trackers = {place.key: FakeTracker() for place in PLACES}
    for place in PLACES:
        if chance.random() < 0.5:
            Deliverer(queue, place.key, trackers[place.key].service).run(follow=False)
    files = [f"{place.key}.json" for place in PLACES] + [DESTINATIONS, EVENTS]
    hit = chance.sample(files, chance.choice((1, 1, 2)))
    for name in hit:
        path = queue.folder / name
        if chance.random() < 0.15:
            path.unlink()
        else:
            path.write_bytes(damaged(path.read_bytes(), chance))
    clear_sent()
    complete = all(len(tracker.points) == POINTS for tracker in trackers.values())
    if not queue.folder.exists():
        # Two files may be damaged into the very words that all was sent; one may not.
        counts["deleted"] += not complete
        return
    # Of a queue without a single line nobody can say that it was ever more than that.
    if not complete and (queue.read()[0] or queue.damage()):
        counts["hidden"] += queue.id not in {run.run for run in waiting()}
    for place in PLACES:
        # As the process that sends does it: what can't be read stays, and the next destination gets its own.
        try:
            Deliverer(queue, place.key, trackers[place.key].service).run(follow=False)
        except (MetalmarkError, OSError):
            counts["kept, since nothing names the destination"] += 1
            counts["deleted"] += not queue.folder.exists()
    clear_sent()
    for key, tracker in trackers.items():
        known = key in {delivery.destination.key for delivery in queue.deliveries()}
        positions = [x for _, x, _ in tracker.points]
        counts["doubled"] += len(positions) - len(set(positions))
        if EVENTS not in hit and (not queue.folder.exists() or known):
            counts["missing"] += POINTS - len(set(positions))
    queue.remove()


def attack_connections(folder: Path, runs: int, chance: random.Random, counts: Counter[str]) -> None:
    from mlflow import MlflowClient

    os.environ |= {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0"}
    with mlflow_server(folder / "server", free_port()) as uri:
        client = MlflowClient(uri)
        for number in range(runs):
            os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = chance.choice(("0", "1", "5"))
            cuts = {"runs/create": 1, **{end: chance.randrange(3) for end in chance.sample(CUT, 3)}}
            identifier = f"mlrun{number:05}"
            with cutting_proxy(uri, cuts) as proxy:
                to = Destination(tracker="mlflow", place=proxy.uri)
                with QueueWriter(identifier, [to]) as writer:
                    queue = writer.queue
                    begin = Begin(id=identifier, name="a run", kind="run", at_ms=1)
                    writer.append(begin, Known(params={"rate": 0.1}))
                    writer.append(
                        *(
                            MetricRow(axis=MetricAxis.STEP, x=x, at_ms=x, values={"loss": 1 / x})
                            for x in range(1, POINTS + 1)
                        )
                    )
                    writer.end(End(at_ms=99, status=EndStatus.FINISHED))
                for _ in range(MOST_TRIES):
                    if sender.main(to.key, [str(queue.folder)], follow=False) == 0:
                        break
                counts["connections cut"] += proxy.cut
                queue.remove()
            experiment = client.get_experiment_by_name("metalmark").experiment_id
            found = client.search_runs([experiment], f"tags.`metalmark.id` = '{identifier}'")
            counts["runs missing"] += not found
            counts["runs doubled"] += max(0, len(found) - 1)
            for run in found:
                curve = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss"))
                counts["curves wrong"] += curve != [(x, 1 / x) for x in range(1, POINTS + 1)]
                counts["runs not finished"] += run.info.status != "FINISHED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rounds, runs = (QUICK_ROUNDS, QUICK_RUNS) if given.quick else (given.rounds, RUNS)
    chance, counts = random.Random(given.seed), Counter[str]()
    for name in [name for name in os.environ if name.startswith(("MLFLOW", "WANDB"))]:
        del os.environ[name]
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["METALMARK_STORE"] = str(Path(folder, "store.sqlite3"))
        for number in range(rounds):
            try:
                attack_queue(number, chance, counts)
            except Exception:  # noqa: BLE001  whatever it is, it is what is counted here
                counts["tracebacks"] += 1
                traceback.print_exc()
                for queue in queues():
                    queue.remove()
        attack_connections(Path(folder), runs, chance, counts)
    informative = ("kept, since nothing names the destination", "connections cut")
    bad = ("deleted", "missing", "doubled", "hidden", "tracebacks", "runs missing", "runs doubled", "curves wrong",
           "runs not finished")  # fmt: skip
    print(f"queues damaged: {rounds}")
    print(f"runs sent: {runs}")
    for name in (*informative, *bad):
        print(f"{name}: {counts[name]}")
    failures = sum(counts[name] for name in bad)
    print(f"failures: {failures}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
