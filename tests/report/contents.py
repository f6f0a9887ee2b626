"""Contents of reports made by hand: every kind of run, and names that would like to be markup."""

from __future__ import annotations

from typing import Any

import msgspec

from metalmark.model.measurement import BenchRun, Block, Completed, Phases
from metalmark.model.plan import Settings
from metalmark.model.run import FailureKind, Flag, Series, Software, Telemetry
from metalmark.model.training import Ending, Epoch, Goal, TrainingRun, TrainingSession, TrainingSetup
from metalmark.model.watch import Curve, Pass, Stretch, WatchedRun, WatchEnding
from metalmark.report.content import Content
from tests.samples import MACHINE, completed, failed, plan, record

SCRIPT = "<script>alert(1)</script>"
HOSTILE = (
    SCRIPT,
    "</style><img src=x onerror=alert(2)>",
    "]]><svg onload=alert(3)>",
    "javascript:alert(4)",
    "\" onmouseover=alert(5) x='",
    "{{ 7 * 7 }}{% raw %}",
    "</script><script src=https://elsewhere.example/x.js></script>",
)
PHASES = Phases(import_s=0.0, build_s=2.0, first_step_s=3.0, warmup_s=4.0, measure_s=5.0, end_s=15.0)


def series(name: str, unit: str, values: list[float], *, hz: float = 5.0) -> Series:
    return Series(
        name=name,
        unit=unit,
        source=f"a sensor of {unit}",
        at_s=tuple(number / hz for number in range(len(values))),
        values=tuple(values),
    )


def telemetry(points: int = 80) -> Telemetry:
    rising = [float(number) for number in range(points)]
    return Telemetry(
        hz=5.0,
        series=(
            series("process_cpu", "%", [100.0 + value % 7 for value in rising]),
            series("process_memory", "bytes", [2.0**30 + value * 1e6 for value in rising]),
            series("cpu_power", "W", [10.0 + value % 3 for value in rising]),
        ),
        absent={"nvidia": f"no driver {HOSTILE[1]}"},
    )


def run(step_s: float = 0.1, *, blocks: int = 20, drift: float = 0.0, batch: int = 32, **changes: Any) -> Completed:
    """Blocks of a known step, slower from one to the next by `drift`, with a little noise that does not drift."""
    done = completed(step_s, blocks=1, samples=batch, phases=PHASES, flops_per_sample=1e9, **changes)
    made = tuple(
        Block(
            steps=10,
            elapsed_s=10 * step_s * (1 + drift * number) * (1 + 0.001 * (number % 3)),
            at_s=5.0 + number * 0.5,
            proof=1.0,
        )
        for number in range(blocks)
    )
    return msgspec.structs.replace(done, measurement=msgspec.structs.replace(done.measurement, blocks=made))


def records() -> list[BenchRun]:
    """Two frameworks at three batch sizes, one drifting; one that failed; hostile words everywhere."""
    found = []
    for number, (framework, batch) in enumerate((f, b) for f in ("torch", "jax") for b in (4, 32, 256)):
        step_s = 0.01 * batch**0.5 * (2 if framework == "jax" else 1)
        found.append(
            record(
                run(step_s, batch=batch, drift=0.02 if number == 0 else 0.0, notes=(f"a note {HOSTILE[2]}",)),
                id=f"{framework}{batch:04d}0000"[:12],
                cell=number,
                plan=plan(framework=framework, params={"batch_size": batch}, workload=SCRIPT),
                telemetry=telemetry(),
                flags=(Flag(name="drifting", evidence=f"slower {HOSTILE[0]}"),) if number == 0 else (),
                software=Software(metalmark="0.1.0", python="3.11.7", environment={"X": HOSTILE[4]}),
            )
        )
    lost = msgspec.structs.replace(
        failed(FailureKind.CRASHED, f"it fell {HOSTILE[6]}"), hint=f"try {HOSTILE[3]}", detail=f"| {HOSTILE[1]}\n| end"
    )
    other = plan(workload=f"my{HOSTILE[4]}.py:net", settings=Settings(compile=True), framework="torch")
    return [*found, record(lost, id="lost000000", cell=6, plan=other)]


def training(identifier: str = "trained0001", *, framework: str = "torch", epochs: int = 3) -> TrainingRun:
    return TrainingRun(
        id=identifier,
        started_at="2026-11-15T09:00:00.000000Z",
        plan=plan(framework=framework, workload=f"net{HOSTILE[0]}"),
        goal=Goal(epochs=epochs, target_accuracy=0.9),
        ending=Ending.EPOCHS,
        setting=TrainingSetup(
            placed_on="cpu", device_name="CPU", parameters=10, trainable_parameters=10, data=HOSTILE[2],
            data_digest="d", train_samples=100, validation_samples=10, classes=10, workers=1, notes=(HOSTILE[5],),
        ),
        epochs=tuple(
            Epoch(
                number=number, session=0, begin_s=number * 4.0, end_s=number * 4.0 + 4, samples=100, steps=4,
                losses=(2.0 / number, 1.8 / number, 1.7 / number, 1.6 / number), train_loss=1.7 / number,
                validation_loss=1.5 / number, accuracy=1 - 0.5 / number, top5=1.0, validation_samples=10,
                learning_rate=0.1, input_s=0.5, compute_s=3.0, first_steps_s=0.5, first_steps_samples=20,
                validation_s=0.5,
            )
            for number in range(1, epochs + 1)
        ),
        sessions=(
            TrainingSession(
                started_at="2026-11-15T09:00:00.000000Z", first_epoch=1, machine=MACHINE,
                software=Software(metalmark="0.1.0", python="3.11.7"), telemetry=telemetry(),
            ),
        ),
    )  # fmt: skip


def watched() -> WatchedRun:
    return WatchedRun(
        id="watched0001",
        name=f"loop {SCRIPT}",
        started_at="2026-11-15T10:00:00.000000Z",
        elapsed_s=12.0,
        ended=WatchEnding.FAILED,
        error=f"ValueError: {HOSTILE[1]}",
        params={f"rate{HOSTILE[4]}": HOSTILE[0]},
        machine=MACHINE,
        software=Software(metalmark="0.1.0", python="3.11.7"),
        stretches={"train": (Stretch(steps=5, at_s=0.0, elapsed_s=2.0, waited_s=0.5),)},
        passes=(Pass(loop="train", at_s=0.0, steps=5, elapsed_s=2.0, waited_s=0.5, first_wait_s=0.1),),
        curves=(Curve(name=f"loss{HOSTILE[2]}", steps=(1, 2, 3), at_s=(0.1, 0.2, 0.3), values=(3.0, None, 1.0)),),
        telemetry=telemetry(),
        notes=(HOSTILE[5],),
    )


def everything() -> Content:
    found = records()
    return Content(
        runs=(*found, training(), training("trained0002", framework="jax"), watched()),
        plans=(*(one.plan for one in found), plan(framework="mlx")),
        left_out=(f"mlx gpu not run: {HOSTILE[0]}",),
        published=True,
    )
