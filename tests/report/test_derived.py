"""Figures of the measured window: the sample run has 140 steps of 32 samples and is measured from 4 s to 5 s."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import msgspec
import pytest

from metalmark.model.codec import decode_export, encode
from metalmark.model.measurement import BenchRun, Block, Completed
from metalmark.model.run import Absent, Series, Software, Telemetry
from metalmark.report.text.exports import comma_separated, json_text
from metalmark.report.text.run_page import run_page
from metalmark.report.text.units import joules
from metalmark.results.cells import cells_of
from metalmark.results.derived import Cost, Utilisation, derive
from tests.samples import completed, failed, record

AT_S = tuple(3.0 + 0.2 * i for i in range(16))
"""A second before the window, the window, a second after."""


def series(name: str, values: Any, source: str = "test") -> Series:
    """`values` of each moment."""
    return Series(name=name, unit="", source=source, at_s=AT_S, values=tuple(float(values(at)) for at in AT_S))


def seen(*every: Series, run: Completed | None = None, **changes: Any) -> BenchRun:
    return record(run or completed(placed_on="cuda:0"), telemetry=Telemetry(hz=5.0, series=every), **changes)


def derived(shown: BenchRun) -> Any:
    found = derive(shown)
    assert found is not None
    return found


def test_energy_is_of_the_measured_window_alone() -> None:
    """100 W in the window and 900 W around it; the counter, where there is one, wins."""
    power = series("gpu0_power", lambda at: 100 if 3.9 < at < 5.1 else 900, "nvml, measured")
    counter = series("gpu0_energy", lambda at: 280 * at, "nvml, measured")
    cost = derived(seen(power, counter)).energy
    assert isinstance(cost, Cost)
    assert cost.joules == pytest.approx(280)
    assert cost.method == "counter"
    assert not cost.modelled
    assert cost.average_w == pytest.approx(280)
    assert cost.peak_w == 100
    assert cost.joules_per_step == pytest.approx(2)
    assert cost.joules_per_sample == pytest.approx(2 / 32)
    assert cost.samples_per_joule == pytest.approx(16)
    by_power = derived(seen(power)).energy
    assert by_power.method == "trapezoid"
    assert by_power.joules == pytest.approx(100)


def test_a_part_that_used_nothing_used_nothing_and_a_device_whose_counter_stood_still_is_unknown() -> None:
    """A Mac's neural engine draws no power in most trainings; the GPU that trained can't have drawn none."""
    still = series("ane_power", lambda _: 0, "macmon, modelled"), series("gpu0_power", lambda _: 0, "macmon, modelled")
    found = derived(seen(*still))
    (engine,) = found.others
    assert (engine.part, engine.joules) == ("ane", 0)
    assert isinstance(engine.samples_per_joule, Absent)
    assert isinstance(found.energy, Absent)
    assert "stood still" in found.energy.reason
    assert "energy of ane: none" in run_page([seen(*still)])


def test_the_device_decides_whose_energy_it_is() -> None:
    gpu, cpu = series("gpu0_power", lambda _: 300), series("cpu_power", lambda _: 50, "macmon, modelled")
    on_gpu, on_cpu = derived(seen(gpu, cpu)), derived(seen(gpu, cpu, run=completed()))
    assert on_gpu.energy.part == "gpu0"
    assert [cost.part for cost in on_gpu.others] == ["cpu"]
    assert on_cpu.energy.part == "cpu"
    assert on_cpu.energy.modelled
    software = Software(metalmark="0", python="3", environment={"CUDA_VISIBLE_DEVICES": "4"})
    assert isinstance(derived(seen(gpu, software=software)).energy, Absent), "that GPU is gpu4"


def test_utilisation_of_a_gpu_and_of_cores() -> None:
    gpu, cpu = series("gpu0_utilisation", lambda at: 90 if 3.9 < at < 5.1 else 0), series("process_cpu", lambda _: 400)
    on_gpu, on_cpu = derived(seen(gpu, cpu)).utilisation, derived(seen(gpu, cpu, run=completed())).utilisation
    assert on_gpu == Utilisation(percent=90.0, of="gpu0", source="test")
    assert on_cpu == Utilisation(percent=50.0, of="8 cores", source="test"), "400% of 8 cores"


def test_swap_growth_and_work() -> None:
    swap_in, swap_out = series("system_swap_in", lambda at: 1000 * at), series("system_swap_out", lambda _: 7)
    run = completed(placed_on="cuda:0", flops_per_sample=1e6)
    blocks = tuple(Block(steps=10, elapsed_s=1.0, at_s=1.0, live_bytes=10**9 + 10_000 * i) for i in range(14))
    run = msgspec.structs.replace(run, measurement=msgspec.structs.replace(run.measurement, blocks=blocks))
    found = derived(seen(swap_in, swap_out, run=run))
    assert found.swapped_in_bytes == pytest.approx(1200), "from the last reading before the window to the last in it"
    assert found.swapped_out_bytes == 0
    assert found.flops_per_s == pytest.approx(1e6 * 32 / 0.1)
    assert found.growth[0].bytes_per_1000_steps == pytest.approx(1e6)
    assert found.last_tenth_to_first == 1.0


def test_what_is_not_there_says_why() -> None:
    off = derived(record(completed()))
    for figure in (off.utilisation, off.energy, off.swapped_in_bytes):
        assert isinstance(figure, Absent)
        assert "switched off" in figure.reason
    lost = Telemetry(hz=5.0, absent={"system_swap_in": "this kernel counts no swapped pages"})
    bare = derived(record(completed(placed_on="cuda:0"), telemetry=lost))
    assert bare.swapped_in_bytes.reason == "this kernel counts no swapped pages"
    assert "gpu0" in bare.energy.reason
    assert "gpu0_utilisation" in bare.utilisation.reason
    assert "no count" in bare.flops_per_s.reason
    assert isinstance(bare.growth, Absent)
    assert derive(record(failed())) is None


def test_the_page_shows_figures_and_reasons() -> None:
    power = series("gpu0_power", lambda _: 280, "nvml, measured")
    page = run_page([seen(power, run=completed(placed_on="cuda:0", flops_per_sample=1e6))])
    assert (
        "energy of gpu0: 280 W on average, 280 W at most; 2.00 J per step, 62.5 mJ per sample, 16.0 samples per joule"
        in page
    )
    assert "(nvml, measured; trapezoid)" in page
    assert "GFLOP/s" in page
    assert "utilisation unknown: nothing here gives gpu0_utilisation" in page
    page = run_page([record()])
    assert "energy unknown: telemetry was switched off" in page
    assert "FLOP/s unknown" in page


def test_csv_and_json_have_them_and_the_record_does_not() -> None:
    shown = seen(series("gpu0_power", lambda _: 280, "nvml, measured"))
    bad = record(failed(), cell=1)
    good_row, bad_row = csv.DictReader(io.StringIO(comma_separated(cells_of([shown, bad]))))
    assert float(good_row["joules_per_step"]) == pytest.approx(2)
    assert good_row["energy_source"] == "nvml, measured"
    assert good_row["utilisation_percent"] == ""
    assert bad_row["joules_per_step"] == ""
    assert bad_row["message"] == "no room"
    text = json_text([shown, bad])
    document = json.loads(text)
    assert set(document["derived"]) == {shown.id}
    assert document["derived"][shown.id]["energy"]["joules_per_step"] == pytest.approx(2)
    assert "reason" in document["derived"][shown.id]["utilisation"]
    assert decode_export(text.encode(), source="x") == [shown, bad]
    assert b"joules" not in encode(shown)


def test_joules_have_three_figures() -> None:
    assert [joules(value) for value in (2.0, 0.0625, 3e-6, 4e-9)] == ["2.00 J", "62.5 mJ", "3.00 µJ", "4.00 nJ"]
