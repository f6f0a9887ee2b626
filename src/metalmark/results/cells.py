"""Cell: the bench runs of one plan, and the figures a table shows, derived from raw blocks when asked for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metalmark.model.codec import AnyRun
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.parity import ParityVerdict
from metalmark.model.plan import Plan
from metalmark.model.run import NOTES, Absent, Failed
from metalmark.results.derived import OPEN_DEVICES, Memory, flags_of, memory_used
from metalmark.stats.difference import typical
from metalmark.stats.summary import Interval, median, median_interval, step_interval
from metalmark.stats.window import is_cpu

UNSTEADY = "unsteady"


@dataclass(frozen=True, kw_only=True)
class Cell:
    plan: Plan
    records: tuple[BenchRun, ...]

    @property
    def failure(self) -> Failed | None:
        """The last failure; a cell that failed in any process is a failed cell."""
        failures = [record.outcome for record in self.records if isinstance(record.outcome, Failed)]
        return failures[-1] if failures else None

    @property
    def completed(self) -> list[Completed]:
        return [record.outcome for record in self.records if isinstance(record.outcome, Completed)]

    @property
    def step_times(self) -> list[list[float]]:
        return [[block.elapsed_s / block.steps for block in run.measurement.blocks] for run in self.completed]

    @property
    def step_s(self) -> float:
        """The geometric mean of the processes' median step times: what the interval is around, and what is compared."""
        return typical(self.step_times)

    @property
    def interval(self) -> Interval | None:
        return step_interval(self.step_times)

    @property
    def samples_s(self) -> float:
        return self.completed[0].samples_per_step / self.step_s

    @property
    def tokens_s(self) -> float | None:
        """None where samples are not made of tokens."""
        tokens = self.completed[0].tokens_per_sample
        return None if tokens is None else tokens * self.samples_s

    @property
    def first_step_s(self) -> float:
        return median([run.measurement.first_step_s for run in self.completed])

    @property
    def peak_bytes(self) -> int | None:
        """The device's own peak where it counts one; tensorflow-metal counted none, and older runs have its 0."""
        peaks = [run.memory.peak_bytes for run in self.completed]
        known = [peak for peak in peaks if isinstance(peak, int) and peak > 0]
        return max(known) if known else None

    @property
    def memory(self) -> Memory | Absent:
        """What the device counted; on the CPU, and where nothing counts, what the process held."""
        devices = [run.placed_on for run in self.completed if not is_cpu(run.placed_on)]
        held = self.process_bytes
        return memory_used(devices[0] if devices else "cpu", self.peak_bytes, () if held is None else (held,))

    @property
    def memory_bytes(self) -> int | None:
        return None if isinstance(self.memory, Absent) else self.memory.bytes

    @property
    def process_bytes(self) -> int | None:
        """The most that the workers' processes held, as sampled."""
        held = [
            value
            for record in self.records
            for series in record.telemetry.series
            if series.name == "process_memory"
            for value in series.values
        ]
        return int(max(held)) if held else None

    @property
    def waiting_share(self) -> float | None:
        """The share of the measured time that steps waited for the loader; None where batches are resident."""
        blocks = [block for run in self.completed for block in run.measurement.blocks if block.waited_s is not None]
        if not blocks:
            return None
        return sum(block.waited_s or 0.0 for block in blocks) / sum(block.elapsed_s for block in blocks)

    @property
    def flags(self) -> dict[str, str]:
        """Name → evidence of each flag that any of the processes has."""
        flags = {flag.name: flag.evidence for record in self.records for flag in flags_of(record)}
        intervals = [median_interval(times) for times in self.step_times] if UNSTEADY in flags else []
        widths = [interval.half_share for interval in intervals if interval is not None]
        if widths:
            # In the figure that the table shows of the same blocks, however it was rounded when the run ended.
            whose = "the median step" if len(intervals) == 1 else "the median step of one process"
            flags[UNSTEADY] = f"{whose} is known to ±{max(widths) * 100:.1f}% only"
        return flags

    @property
    def parity(self) -> ParityVerdict | None:
        """The verdict of its parity check, of several the worst; None: none was asked for."""
        return worst_verdict(self.records)

    @property
    def spoiling_flags(self) -> list[str]:
        """Those that could spoil the figure, without notes."""
        return [name for name in self.flags if name not in NOTES]

    @property
    def device(self) -> str:
        """What was asked for, and where it ran when that left it open."""
        asked = str(self.plan.device)
        ran = sorted({run.placed_on for run in self.completed})
        return f"{asked} → {', '.join(ran)}" if ran and self.plan.device.kind in OPEN_DEVICES else asked


def worst_verdict(runs: Iterable[AnyRun]) -> ParityVerdict | None:
    """Return the verdict that these runs carry: that something differs, where one of them does."""
    marks = [mark.verdict for run in runs if (mark := getattr(run, "parity", None)) is not None]
    return min(marks, key=[ParityVerdict.DIFFERS, ParityVerdict.UNTESTED, ParityVerdict.AGREES].index, default=None)


def cells_of(records: Iterable[BenchRun]) -> list[Cell]:
    """One Cell for each cell of each sweep, in their order; of a repeat that was run twice, the newer run counts."""
    groups: dict[tuple[str, int], dict[int, BenchRun]] = {}
    for record in records:
        repeats = groups.setdefault((record.sweep, record.cell), {})
        held = repeats.get(record.repeat)
        if held is None or held.started_at < record.started_at:
            repeats[record.repeat] = record
    return [
        Cell(plan=next(iter(group.values())).plan, records=tuple(group[repeat] for repeat in sorted(group)))
        for _, group in sorted(groups.items(), key=lambda item: item[0])
    ]


def varying(plans: Sequence[Plan]) -> tuple[list[str], list[str]]:
    """The parameters and settings that differ between the plans: the columns a table needs."""
    params = list(dict.fromkeys(name for plan in plans for name in plan.params))
    params = [name for name in params if len({str(plan.params.get(name)) for plan in plans if name in plan.params}) > 1]
    fields = plans[0].settings.__struct_fields__ if plans else ()
    settings = [name for name in fields if len({getattr(plan.settings, name) for plan in plans}) > 1]
    settings += ["data"] if len({plan.data for plan in plans}) > 1 else []
    settings += ["feed"] if len({plan.feed for plan in plans}) > 1 else []
    settings += ["processes"] if len({plan.processes for plan in plans}) > 1 else []
    settings += ["scaling"] if len({plan.world.scaling for plan in plans if plan.world}) > 1 else []
    loaders = [plan.loader for plan in plans if plan.loader is not None]
    names = loaders[0].__struct_fields__ if loaders else ()
    settings += [name for name in names if len({getattr(loader, name) for loader in loaders}) > 1]
    return params, settings
