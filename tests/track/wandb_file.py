"""Reads a run that W&B kept offline, through W&B's own messages: its file is a LevelDB log of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, MAGIC = 32768, 7, b":W&B"
FULL, LAST = 1, 4


class OfflineRun:
    def __init__(self, folder: Path) -> None:
        (path,) = folder.glob("*.wandb")
        self.run: Any = None
        self.rows: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.artifacts: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        self.exit_code: int | None = None
        for record in _records(path.read_bytes()):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
            elif kind == "history":
                self.rows.append({item.nested_key[0]: json.loads(item.value_json) for item in record.history.item})
            elif kind == "config":
                self.config |= {item.key: json.loads(item.value_json) for item in record.config.update}
            elif kind == "artifact":
                self.artifacts[record.artifact.type] = record.artifact
            elif kind == "metric" and record.metric.step_metric:
                self.axes[record.metric.name] = record.metric.step_metric
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    def curve(self, name: str, axis: str) -> list[tuple[float, float]]:
        return [(row[axis], row[name]) for row in self.rows if name in row]


def _records(data: bytes) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    assert data.startswith(MAGIC)
    position, whole = HEADER, b""
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        _, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        if left < HEADER or not kind:
            position += left
            continue
        whole += data[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
            whole = b""
