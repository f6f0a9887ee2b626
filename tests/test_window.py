from __future__ import annotations

import pytest

from metalmark.model.run import Series, Telemetry
from metalmark.stats.window import Window
from tests.samples import completed


def window(placed_on: str = "cpu", visible: str = "", **series: dict[float, float]) -> Window:
    """The sample run is measured from 4 s to 5 s."""
    seen = tuple(
        Series(name=name, unit="", source="test", at_s=tuple(values), values=tuple(values.values()))
        for name, values in series.items()
    )
    environment = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    return Window.measured(completed(placed_on=placed_on), Telemetry(hz=5.0, series=seen), environment)


def test_warm_up_and_proof_are_outside() -> None:
    seen = window(x={3.9: 1.0, 4.0: 2.0, 4.5: 3.0, 5.1: 4.0})
    assert seen.values("x") == [2.0, 3.0]
    assert seen.values("y") == []


def test_a_slow_series_holds_its_last_value() -> None:
    assert window(x={1.0: 7.0, 3.0: 8.0, 6.0: 9.0}).held("x") == [8.0]
    assert window(x={6.0: 9.0}).held("x") == []


def test_a_counter_counts_from_the_windows_beginning() -> None:
    assert window(x={1.0: 0.0, 3.9: 100.0, 4.5: 150.0, 6.0: 1000.0}).counted("x") == 50.0
    assert window(x={4.5: 150.0}).counted("x") is None
    assert window().counted("x") is None


@pytest.mark.parametrize(
    ("placed_on", "visible", "gpu"),
    [
        ("cpu", "", None),
        ("CPU:0", "", None),
        ("cuda:0", "", "gpu0"),
        ("mps:0", "", "gpu0"),
        ("gpu", "", "gpu0"),
        ("GPU:1", "", "gpu1"),
        ("cuda:1", "3,5", "gpu5"),
        ("cuda:0", "GPU-8932f937", None),
        ("cuda:2", "3,5", None),
    ],
)
def test_which_gpu_it_was(placed_on: str, visible: str, gpu: str | None) -> None:
    assert window(placed_on, visible).gpu == gpu
