"""The rows: ratio, verdict, memory and energy beside it, and what is said of what is missing."""

from __future__ import annotations

import msgspec
import pytest

from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Budget, Loader, Settings
from metalmark.model.run import Absent, DeviceMemory, Flag, Series, Telemetry
from metalmark.report.compare_page import comparison_table
from metalmark.results.command import bench_command
from metalmark.results.comparison import Ratio, compare
from metalmark.results.measured import published_side
from metalmark.results.pairing import Side
from metalmark.stats.difference import Difference, Verdict
from tests.compare.sides import repeats, side
from tests.samples import failed, plan, record

AT_S = tuple(3.0 + 0.2 * i for i in range(16))


def watts(value: float) -> Telemetry:
    power = Series(name="gpu0_power", unit="W", source="nvml, measured", at_s=AT_S, values=(value,) * len(AT_S))
    return Telemetry(hz=5.0, series=(power,))


def held(size: int) -> DeviceMemory:
    return DeviceMemory(live_bytes=size, driver_bytes=size, peak_bytes=size)


def flagged(records: list[BenchRun], name: str) -> list[BenchRun]:
    return [msgspec.structs.replace(one, flags=(Flag(name=name, evidence="seen"),)) for one in records]


def text(a: Side, b: Side, **options: object) -> str:
    table = comparison_table(compare(a, b, **options))  # type: ignore[arg-type]
    return "\n".join([table.caption, *(" | ".join(row) for row in table.rows), *table.notes])


def test_speed_memory_and_energy_stand_side_by_side() -> None:
    a = repeats(step_s=0.1, run={"placed_on": "cuda:0", "memory": held(1000)}, telemetry=watts(100))
    b = repeats(plan(framework="jax"), 0.08, run={"placed_on": "cuda:0", "memory": held(2000)}, telemetry=watts(50))
    found = compare(side("a", a), side("b", b))
    (row,) = found.rows
    assert row.verdict is Verdict.FASTER
    assert isinstance(row.speed, Difference)
    assert row.speed.ratio == pytest.approx(1.25)
    assert row.memory == Ratio(value=2.0)
    assert isinstance(row.energy, Ratio)
    assert row.energy.value == pytest.approx(0.5)
    assert row.energy.low is not None
    assert row.a.energy_of == "gpu0, nvml, measured"
    assert row.b.step_s == pytest.approx(0.08, rel=1e-3)
    shown = text(side("a", a), side("b", b))
    for part in ("1.250x", "faster", "2.00x", "0.50x", "torch → jax", "different sweeps"):
        assert part in shown


def test_what_a_build_wants_said_is_said() -> None:
    slow = repeats(plan(framework="mlx"), 0.2, run={"notes": ("this is not its speed elsewhere.",)})
    assert "mlx: this is not its speed elsewhere." in text(side("a", repeats()), side("b", slow))


def test_energy_and_memory_of_two_kinds_are_told_apart() -> None:
    on_gpu = repeats(run={"placed_on": "cuda:0", "memory": held(1000)}, telemetry=watts(100))
    power, memory = (
        Series(name=name, unit="", source="rapl, measured", at_s=AT_S, values=(200.0,) * len(AT_S))
        for name in ("cpu_power", "process_memory")
    )
    on_cpu = repeats(plan(framework="jax"), telemetry=Telemetry(hz=5.0, series=(power, memory)))
    row = compare(side("a", on_gpu), side("b", on_cpu)).rows[0]
    assert isinstance(row.energy, Ratio)
    assert row.energy.value == pytest.approx(2.0)
    assert row.memory == Absent(reason="A's is what the device counted, B's what the process did")
    shown = text(side("a", on_gpu), side("b", on_cpu))
    assert "A's is of gpu0, nvml, measured, B's of cpu, rapl, measured" in shown


def test_what_is_not_there_says_why() -> None:
    found = compare(side("a", repeats()), side("b", repeats()))
    row = found.rows[0]
    assert row.energy == Absent(reason="telemetry was switched off")
    assert isinstance(row.memory, Absent)
    assert "energy: not compared where telemetry was switched off" in text(side("a", repeats()), side("b", repeats()))


def test_one_process_per_side_gets_the_line_to_type() -> None:
    a, b = side("a", repeats(count=1)), side("b", repeats(plan(framework="jax"), count=1))
    shown = text(a, b)
    assert "can't tell" in shown
    assert "one process per side" in shown
    assert "metalmark bench mnist-mlp -f jax -d cpu --mode training --repeat 5" in shown
    assert compare(a, b).mean is None


def test_flags_stand_beside_the_verdict() -> None:
    a, b = side("a", flagged(repeats(), "busy_machine")), side("b", flagged(repeats(step_s=0.2), "throttled"))
    table = comparison_table(compare(a, b))
    assert table.rows[0][-1] == "A: busy_machine; B: throttled"
    assert any(note.startswith("throttled: seen (B") for note in table.notes)


def test_the_geometric_mean_and_the_columns_that_differ() -> None:
    sizes = [plan(params={"batch_size": size}) for size in (16, 32)]
    a = side("a", repeats(sizes[0], 0.1), repeats(sizes[1], 0.2))
    b = side("b", repeats(sizes[0], 0.05), repeats(sizes[1], 0.4))
    found = compare(a, b)
    assert found.mean is not None
    assert found.mean.ratio == pytest.approx(1.0)
    table = comparison_table(found)
    assert table.headers[0] == "batch size"
    assert [row[0] for row in table.rows] == ["16", "32"]
    assert table.notes[0].startswith("Geometric mean over 2 cells: 1.000x")
    assert found.rows[1].name.endswith("batch size 32"), "a message names the cell"


def test_a_cell_that_failed_has_no_ratio() -> None:
    found = compare(side("a", repeats()), side("b", [record(failed(message="no room"))]))
    row = found.rows[0]
    assert isinstance(row.speed, Absent)
    assert row.verdict is Verdict.CANT_TELL
    assert "no room" in row.reason
    shown = text(side("a", repeats()), side("b", [record(failed(message="no room"))]))
    assert "out of memory" in shown


def test_two_different_things_are_marked_wherever_they_are_shown() -> None:
    a, b = side("a", repeats()), side("b", repeats(plan(params={"batch_size": 64}), 0.1))
    found = compare(a, b, anyway=True)
    assert isinstance(found.rows[0].speed, Difference)
    assert found.rows[0].speed.ratio == pytest.approx(2.0), "of samples per second"
    shown = text(a, b, anyway=True)
    assert "faster, not like for like" in shown
    assert "A and B did different things: batch size 32 against 64" in shown


def test_other_numbers_of_parameters_are_told() -> None:
    found = compare(side("a", repeats()), side("b", repeats(run={"trainable_parameters": 90})))
    assert "trained parameters 100 → 90" in found.rows[0].changes


def test_published_figures_get_a_ratio_and_no_verdict() -> None:
    bert = plan(workload="bert", params={"batch_size": 16, "seq_len": 128, "size": "base", "attention": "sdpa"})
    ours = side("ours", repeats(bert, 0.86))
    found = compare(Side("published", published_side()), ours)
    ratios = {row.a.keys["device"]: row.speed.ratio for row in found.rows if isinstance(row.speed, Difference)}
    assert ratios["Apple M1 Max GPU (32-core)"] == pytest.approx(0.5, rel=0.01), "43 s for 100 steps"
    assert {row.verdict for row in found.rows} == {Verdict.CANT_TELL}
    assert len(compare(ours, Side("published", published_side())).rows) == len(found.rows)
    shown = text(Side("published", published_side()), ours)
    assert "Published, not measured by us" in shown
    assert "no synchronisation" in shown


def test_a_plan_as_the_command_that_measures_it() -> None:
    asked = plan(
        workload="my net.py:net",
        params={"hidden": 64, "batch_size": 8},
        settings=Settings(compile=True, threads=2),
        loader=Loader(workers=4),
        budget=Budget(steps=50),
        data="cifar10",
    )
    assert bench_command(asked) == (
        "metalmark bench 'my net.py:net' -f torch -d cpu --mode training --hidden 64 --batch-size 8 --compile=on "
        "--threads=2 --data cifar10 --workers=4 --steps 50"
    )
    assert bench_command(plan()) == "metalmark bench mnist-mlp -f torch -d cpu --mode training"
