"""Tables as a window of 80 columns shows them: columns are left out and named, figures and their units never cut."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Settings
from metalmark.model.run import FailureKind, Flag
from metalmark.report.compare_page import comparison_table
from metalmark.report.text.run_tables import run_tables, training_table
from metalmark.report.text.side_by_side import side_tables
from metalmark.report.text.tables import Table, ceiling_table, published_tables, sweep_table
from metalmark.report.text.terminal import fitted, print_table
from metalmark.report.text.watch_page import watched_table
from metalmark.report.text.width import WIDE, fit, window_columns, wrapped
from metalmark.results.cells import cells_of
from metalmark.results.comparison import compare
from metalmark.store.store import Store
from metalmark.workloads.ceiling import COPY, MATMUL
from tests.compare.sides import repeats, side
from tests.conftest import Verb
from tests.processes import metalmark
from tests.samples import completed, epoch, failed, plan, record, training_run, watched_run

BUSY = (Flag(name="busy_machine", evidence="others used 1.0 of 2 cores"), Flag(name="unsteady", evidence="±9% only"))
GPU = Device(kind=DeviceKind.GPU)


def printed(table: Table, columns: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    print_table(table, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def sweep(*plans: Plan, outcomes: dict[int, Any] | None = None) -> Table:
    steps = outcomes or {}
    runs = [
        record(steps.get(at, completed(0.0123, placed_on="cuda:0")), plan=one, cell=at, flags=BUSY)
        for at, one in enumerate(plans)
    ]
    return sweep_table(cells_of(runs))


def wide_sweep() -> Table:
    dtypes = [Settings(dtype=dtype, compile=on) for dtype in (Dtype.FLOAT32, Dtype.BFLOAT16) for on in (False, True)]
    modes = (Mode.TRAINING, Mode.INFERENCE)
    return sweep(
        *(plan(settings=one, mode=mode, device=GPU, framework="tensorflow") for one in dtypes for mode in modes)
    )


def several() -> list[Table]:
    frameworks = sweep(*(plan(framework=name, params={"batch_size": 256}) for name in ("torch", "tensorflow")))
    ceilings = [
        record(
            completed(0.1, flops_per_sample=1.5e9),
            plan=plan(workload=name, params={"size": 768, "megafloats": 64}),
            cell=at,
        )
        for at, name in enumerate((MATMUL, COPY))
    ]
    compared = compare(side("torch", repeats()), side("jax", repeats(plan(framework="jax"), 0.2)))
    trainings = [training_run(epochs=tuple(epoch(n, n / 100) for n in range(1, 90))) for _ in range(4)]
    return [
        frameworks,
        wide_sweep(),
        ceiling_table(cells_of(ceilings)),
        comparison_table(compared),
        training_table(trainings[0]),
        *side_tables(trainings, columns=80),
        watched_table(watched_run()),
    ]


@pytest.mark.parametrize("number", range(7))
def test_every_table_fits_80_columns_and_no_figure_is_cut(number: int) -> None:
    tables = several()
    for table in tables[number:] if number == 6 else tables[number : number + 1]:
        lines = printed(table)
        assert max(map(len, (line.rstrip() for line in lines))) <= 80
        assert "…" not in "".join(lines)
        shown = fitted(table, 80)
        kept = [header.replace("\n", " ") for header in shown.headers]
        missing = [header for header in table.headers if header not in kept]
        assert bool(missing) == any(note.startswith("Not shown (use --wide): ") for note in shown.notes)
        for header in missing:
            assert header in shown.notes[0]
        text = "\n".join(lines)
        for row in shown.rows:
            for value, numeric in zip(row, shown.numeric, strict=True):
                assert not numeric or value in text, "with its unit"


def test_columns_go_in_order_and_come_back_with_room() -> None:
    table = sweep(*(plan(framework=name, params={"batch_size": 32}) for name in ("torch", "jax")))
    assert fitted(table, WIDE) is table
    assert [*fitted(table, 120).headers] == [*table.headers]
    shown = fitted(table, 80)
    assert shown.headers[:5] == ("framework", "device", "step", "±95%", "samples/s")
    assert "flags" in shown.headers
    assert "proof" not in shown.headers, "wide; the empty memory went before it, and the first step had room again"
    assert shown.notes[0].startswith("Not shown (use --wide): memory, proof")


def test_what_is_the_same_in_each_row_is_said_once() -> None:
    shown = fitted(wide_sweep(), 80)
    assert "framework (tensorflow in each row)" in shown.notes[0]
    assert {"mode", "dtype", "compile", "step", "±95%"} <= set(shown.headers)


def test_a_failure_is_told_where_the_column_of_proofs_is_left_out() -> None:
    table = sweep(plan(), plan(params={"batch_size": 64}), outcomes={1: failed(FailureKind.OUT_OF_MEMORY)})
    assert table.rows[1][table.headers.index("step")] == "-"
    shown = fitted(table, 80)
    assert "proof" not in shown.headers
    assert shown.rows[1][shown.headers.index("step")] == "out of memory"


def test_headers_take_two_lines_before_a_column_goes() -> None:
    found = fit(["batch size", "step"], [["8", "1.00 ms"]], 17, drop=("batch size",))
    assert found.headers == ("batch\nsize", "step")
    assert found.dropped == ()
    assert fit(["batch size", "step"], [["8", "1.00 ms"]], 12, drop=("batch size",)).dropped == ("batch size",)


def test_a_command_in_a_note_stays_one_line() -> None:
    command = "metalmark bench mnist-mlp -f torch -d cpu --mode training --seconds 10 --batch-size 256 --repeat 16"
    note = f"mnist-mlp training on torch cpu: can't tell: 2.0% lies inside the noise band of 3.0%. About 11: {command}"
    lines = printed(Table(headers=("a",), numeric=(True,), rows=(("1",),), caption="", notes=(note,)))
    assert lines[-1] == f"  {command}"
    assert lines[-3].startswith("• ")
    assert lines[-2].startswith("  ")


def test_lines_are_broken_between_words_and_output_is_not() -> None:
    text = "  parameters: " + "word " * 30 + "\n    | a line of a program's output " + "x" * 80
    first, *rest = wrapped(text, 60).split("\n")
    assert len(first) <= 60
    assert rest[0].startswith("    word")
    assert rest[-1] == "    | a line of a program's output " + "x" * 80
    assert wrapped(text, WIDE) == text


def test_how_wide_a_window_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert window_columns() == WIDE, "nothing is cut in a file or a pipe"
    for said, columns in (("80", 80), ("132", 132), ("1", 40), ("0", WIDE), ("-5", WIDE), ("many", WIDE), ("", WIDE)):
        monkeypatch.setenv("COLUMNS", said)
        assert window_columns() == columns


def test_wide_shows_everything(verb: Verb, store_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with Store(store_file) as store:
        store.add_all([*repeats(sweep="aaaaaaaaaa"), *repeats(plan(framework="jax"), 0.2, sweep="aaaaaaaaaa", cell=1)])
    for words, header in (
        (["runs", "show"], "memory"),
        (["compare", "last", "--by", "framework"], "energy"),
        (["runs", "list"], "dtype"),
    ):
        narrow, wide = verb(*words), verb(*words, "--wide")
        missing = narrow.output.partition("Not shown (use --wide): ")[2].partition(".\n")[0]
        assert header in missing
        assert max(map(len, (line.rstrip() for line in narrow.output.splitlines() if "metalmark " not in line))) <= 80
        assert "Not shown" not in wide.output
        assert header in wide.output


def test_the_list_says_how_a_run_ended_where_it_came_to_nothing(
    verb: Verb, store_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with Store(store_file) as store:
        store.add_all([record(), record(failed(FailureKind.CRASHED), cell=1, plan=plan(framework="tensorflow"))])
    bad, good = sorted(verb("runs", "list").stdout.splitlines()[1:], key=lambda line: "tensorflow" not in line)
    assert good.endswith("100 ms per step")
    assert bad.endswith("crashed")
    assert "tensorflow" in bad


def test_a_terminal_of_80_columns(store_file: Path) -> None:
    """A real one, without COLUMNS: its width is asked for."""
    with Store(store_file) as store:
        store.add_all(repeats(sweep="aaaaaaaaaa"))
    main, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"METALMARK_STORE": str(store_file), "TERM": "dumb"}
    done = subprocess.run(metalmark("runs", "list"), stdout=inner, stderr=subprocess.PIPE, env=environment, check=True)
    os.close(inner)
    lines = os.read(main, 65536).decode().splitlines()
    os.close(main)
    assert max(map(len, lines)) <= 80
    assert b"Not shown (use --wide): " in done.stderr


def test_nothing_is_left_out_of_a_file_or_python() -> None:
    (table,) = run_tables([record()])
    assert "first step" in table.headers
    assert not any(note.startswith("Not shown") for note in table.notes)
    assert published_tables([]) == []
