"""A lineup: what is planned, written, trained and gone on with. No framework is needed for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from metalmark.errors import FormatError, MetalmarkError, UsageError
from metalmark.machine.durable import write_struct
from metalmark.model.plan import Device, DeviceKind, Plan
from metalmark.model.run import Failed, FailureKind
from metalmark.model.training import NOT_BEGUN, Ending, Goal, Target, TrainingRun
from metalmark.store.selection import load, select
from metalmark.store.store import Store
from metalmark.training import lineup
from metalmark.training.folder import (
    JOB,
    LINEUP,
    RECORD,
    Changes,
    Member,
    Request,
    discard,
    folder_name,
    new_folder,
    new_run,
    read_record,
    read_request,
    stored_training,
    write_record,
    write_request,
)
from metalmark.training.lineup import (
    discard_lineup,
    impossible,
    is_lineup,
    new_lineup,
    plan_lineup,
    read_lineup,
    read_members,
    run_members,
)
from tests.samples import epoch, failed, plan, training_run, training_session

REQUEST = Request(id="training00", plan=plan(seed=7), goal=Goal(epochs=1))
CPU, CUDA = Device(kind=DeviceKind.CPU), Device(kind=DeviceKind.CUDA, index=1)
CELLS = [("torch", CPU), ("jax", CUDA)]


@pytest.fixture(autouse=True)
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(plans: list[Plan]) -> list[Failed | None]:
        return [failed(FailureKind.UNSUPPORTED, "no GPU") if each.framework == "mlx" else None for each in plans]

    monkeypatch.setattr(lineup, "absences", answer)


def say_nothing(_: str) -> None: ...


def keep_nothing(run: TrainingRun, folder: Path) -> None: ...


def made(tmp_path: Path, *, repeats: int = 2, cells: list[tuple[str, Device]] = CELLS) -> list[Member]:
    return new_lineup(plan_lineup(REQUEST, cells, repeats=repeats), new_folder(tmp_path / "many"), say_nothing)


def ended(member: Member) -> TrainingRun:
    """Train it at once."""
    run = training_run(
        id=member.run.id, sweep=member.run.sweep, cell=member.run.cell, repeat=member.run.repeat,
        plan=member.run.plan, goal=member.run.goal, epochs=(epoch(1),), sessions=(training_session(),),
    )  # fmt: skip
    write_record(member.folder, run)
    return run


def test_every_cell_once_then_again_with_the_next_seed() -> None:
    requests = plan_lineup(REQUEST, CELLS, repeats=3)
    assert [(one.cell, one.repeat, one.plan.framework, one.plan.seed) for one in requests] == [
        (0, 0, "torch", 7), (1, 0, "jax", 7), (0, 1, "torch", 8), (1, 1, "jax", 8),
        (0, 2, "torch", 9), (1, 2, "jax", 9),
    ]  # fmt: skip
    assert len({one.id for one in requests}) == 6
    assert len({one.sweep for one in requests}) == 1
    assert requests[1].plan.device == CUDA


def test_members_are_written_and_read_back(tmp_path: Path) -> None:
    members = made(tmp_path)
    names = ["torch-cpu", "jax-cuda-1", "torch-cpu-repeat2", "jax-cuda-1-repeat2"]
    assert [member.folder.name for member in members] == names
    assert is_lineup(tmp_path / "many")
    assert read_lineup(tmp_path / "many").id == members[0].run.sweep
    assert read_members(tmp_path / "many") == members
    assert read_record(members[3].folder).sweep == members[0].run.sweep
    assert (members[3].run.cell, members[3].run.repeat) == (1, 1)
    longer = read_members(tmp_path / "many", Changes(epochs=9))
    assert {member.request.goal.epochs for member in longer} == {9}
    with pytest.raises(UsageError, match="holds a training already"):
        new_folder(tmp_path / "many")


def test_folders_of_an_older_version_have_their_place(tmp_path: Path) -> None:
    for member in made(tmp_path, repeats=1):
        for name in (JOB, RECORD):
            path = member.folder / name
            fields = msgspec.json.decode(path.read_bytes())
            for field in ("sweep", "cell", "repeat", "kind"):
                fields.pop(field, None)
            path.write_bytes(msgspec.json.encode({**fields, **({"schema": 1} if name == RECORD else {})}))
    assert read_request(tmp_path / "many" / "torch-cpu").sweep == ""
    members = read_members(tmp_path / "many")
    identifier = read_lineup(tmp_path / "many").id
    assert [(one.run.sweep, one.run.cell, one.run.repeat) for one in members] == [
        (identifier, 0, 0),
        (identifier, 1, 0),
    ]
    assert [one.request.cell for one in members] == [0, 1]


def test_what_cannot_be_trained_here_is_said_once_and_not_repeated(tmp_path: Path) -> None:
    said: list[str] = []
    requests = plan_lineup(REQUEST, [("mlx", CPU), ("torch", CPU)], repeats=2)
    members = new_lineup(requests, new_folder(tmp_path / "many"), said.append)
    assert said == ["mlx on cpu can't be trained: no GPU"]
    assert [member.folder.name for member in members] == ["mlx-cpu", "torch-cpu", "torch-cpu-repeat2"]
    assert members[0].run.ending is Ending.FAILED
    runs, stopped = run_members(members, ended, keep_nothing, said.append)
    assert not stopped
    assert not impossible(runs)
    assert said[1:] == [
        "[1 of 3] mlx on cpu: unsupported.", "[2 of 3] torch on cpu:", "[3 of 3] torch on cpu, repeat 2:",
    ]  # fmt: skip


def test_nothing_possible_leaves_nothing(tmp_path: Path) -> None:
    members = made(tmp_path, cells=[("mlx", CPU)])
    runs, stopped = run_members(members, lambda _: pytest.fail("it must not begin"), keep_nothing, say_nothing)
    assert impossible(runs)
    assert not stopped
    discard_lineup(tmp_path / "many", members)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_the_rest_and_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    members = made(tmp_path)
    begun: list[str] = []

    def session(member: Member) -> TrainingRun:
        begun.append(member.folder.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return ended(member)

    runs, stopped = run_members(members, session, keep_nothing, say_nothing)
    assert stopped
    assert [run.ending for run in runs[:2]] == [Ending.EPOCHS, Ending.INTERRUPTED]
    said: list[str] = []
    # There are no checkpoints here, so the epochs are those of the record.
    members = [member._replace(run=read_record(member.folder)) for member in read_members(tmp_path / "many")]
    runs, stopped = run_members(members, session, keep_nothing, said.append)
    assert not stopped
    assert begun[2:] == ["jax-cuda-1", "torch-cpu-repeat2", "jax-cuda-1-repeat2"]
    assert said[0] == "[1 of 4] torch on cpu: all epochs done."
    assert all(run.ending is Ending.EPOCHS for run in runs)


@pytest.mark.parametrize(
    ("kind", "repeated"),
    [(FailureKind.OUT_OF_MEMORY, False), (FailureKind.UNSUPPORTED, False), (FailureKind.WRONG_RESULT, True)],
)
def test_a_failure_that_no_seed_changes_is_not_repeated(tmp_path: Path, kind: FailureKind, repeated: bool) -> None:
    begun: list[str] = []
    kept: dict[str, tuple[str, Path]] = {}

    def session(member: Member) -> TrainingRun:
        begun.append(member.folder.name)
        if member.request.cell == 0:
            return msgspec.structs.replace(member.run, ending=Ending.FAILED, failure=failed(kind))
        return ended(member)

    def keep(run: TrainingRun, folder: Path) -> None:
        kept[run.id] = run.header.ending, folder

    members = made(tmp_path)
    runs, _ = run_members(members, session, keep, say_nothing)
    assert ("torch-cpu-repeat2" in begun) is repeated
    assert runs[2].failure == failed(kind)
    assert runs[3].ending is Ending.EPOCHS
    # What has no session is kept by nobody else: all of them at first, and then the repeat that was left out.
    assert set(kept) == {member.run.id for member in members}
    assert kept[runs[2].id] == (NOT_BEGUN if repeated else kind.value, members[2].folder)


def test_one_training_by_itself(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / folder_name("my.py:net", "abc"))
    assert folder.name == "my.py-net-abc"
    write_request(folder, REQUEST)
    write_record(folder, new_run(REQUEST))
    target = Target(name="val_loss", falls=True, value=0.3)
    request, run, where = stored_training(folder, Changes(epochs=4, target=target, patience=3))
    assert (request.goal.epochs, run.id, run.sweep, where) == (4, REQUEST.id, "", folder)
    assert (request.goal.wanted, request.goal.patience) == (target, 3)
    (folder / "of the user.txt").write_text("kept")
    discard(folder)
    assert [path.name for path in folder.iterdir()] == ["of the user.txt"]
    assert not (folder / LINEUP).exists()


def test_a_damaged_member_costs_that_member_alone(tmp_path: Path) -> None:
    whole = training_run(sweep="sweep00001")
    for name in ("whole", "damaged"):
        (tmp_path / name).mkdir()
        write_record(tmp_path / name, whole)
    (tmp_path / "damaged" / RECORD).write_bytes(b'{"schema":2,"id":"\xff"}')
    write_struct(tmp_path / LINEUP, lineup.Lineup(id="sweep00001", created_at="2026", members=("whole", "damaged")))
    errors: list[MetalmarkError] = []
    with Store(tmp_path / "store.sqlite3") as store:
        assert load([select(str(tmp_path), store)], store, on_error=errors.append) == [whole]
        with pytest.raises(FormatError, match="damaged"):
            select(str(tmp_path / "damaged"), store)
    assert "not text in UTF-8" in errors[0].message
