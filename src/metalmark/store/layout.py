"""What a store's file is made of: its tables, its indexes, and how it is known as one."""

from __future__ import annotations

LAYOUT = 1
APPLICATION_ID = 0x4D65746D  # "Metm", so that a foreign SQLite file is known as one

TABLES = """
CREATE TABLE IF NOT EXISTS sweeps (id TEXT PRIMARY KEY, created_at TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS records (
    id TEXT PRIMARY KEY, sweep TEXT NOT NULL, cell INTEGER NOT NULL, repeat INTEGER NOT NULL,
    started_at TEXT NOT NULL, workload TEXT NOT NULL, framework TEXT NOT NULL, device TEXT NOT NULL,
    mode TEXT NOT NULL, batch_size INTEGER, dtype TEXT NOT NULL, outcome TEXT NOT NULL, step_s REAL,
    samples_s REAL, body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS records_by_sweep ON records (sweep, cell, repeat);
CREATE INDEX IF NOT EXISTS records_by_time ON records (started_at);
CREATE INDEX IF NOT EXISTS records_by_workload ON records (workload);
"""

LIST = """CREATE INDEX IF NOT EXISTS records_in_list ON records (
    started_at, id, sweep, workload, framework, device, mode, batch_size, dtype, outcome, step_s, samples_s)"""
"""All that a list shows, so that it reads no bodies. A store made before this index gains it at its next write."""

NEWEST = """WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER (PARTITION BY workload, framework, device, dtype ORDER BY started_at DESC) AS place
        FROM records WHERE workload IN ({names}){more})
    WHERE place <= 8)"""
"""Of some workloads, bounded however often they were measured."""
