"""Say whether B is better than A, or whether it is noise: bench runs, trainings or watched runs."""

from __future__ import annotations
