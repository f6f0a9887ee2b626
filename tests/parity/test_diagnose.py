"""What a difference depends on: the batch size, settings, a part of a compiled network; and a script that shows it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from metalmark.machine.durable import write_struct
from metalmark.model.codec import read_json
from metalmark.model.parity import Checked, Compared, ParityVerdict, Quantity, Statistic
from metalmark.model.plan import Device, DeviceKind, Dtype, Mode, Plan, Scalar, Settings
from metalmark.model.run import Failed, FailureKind, Software
from metalmark.parity import diagnose as diagnosis_module
from metalmark.parity import repro, worker
from metalmark.parity.diagnose import (
    Inquiry,
    Trier,
    diagnose,
    known_issues,
    reduced,
    switches,
    try_switches,
    write_repro,
)
from metalmark.parity.examine import Examined, examine
from metalmark.parity.job import Case, Options, SideJob
from metalmark.parity.networks import LayerPart, NetworkParts, ParameterPart, PartJob, TensorPart
from metalmark.parity.repro import MOST_LINES, scripts
from metalmark.parity.scripts import Setting
from metalmark.runner.ask import NoAnswer
from metalmark.runner.events import Event, Progress
from metalmark.workloads.catalog import load
from tests.simulated.conftest import Simulated, simulated

__all__ = ["simulated"]

PLAIN = Settings()
BRIEF = Options(steps=1, draws=2, repeats=0, seeds=0)
SOFTWARE = Software(python="3.11", metalmark="1", versions={}, environment={})
Answers = Callable[[Plan], ParityVerdict | Failed]

AGREES, DIFFERS = ParityVerdict.AGREES, ParityVerdict.DIFFERS


def make_plan(workload: str, framework: str, device: DeviceKind, settings: Settings = PLAIN, **params: Scalar) -> Plan:
    defaults = {param.name: param.default for param in load(workload).params}
    return Plan(
        workload=workload, params={**defaults, **params}, mode=Mode.TRAINING, framework=framework,
        device=Device(kind=device), settings=settings,
    )  # fmt: skip


def make_row(quantity: Quantity = Quantity.GRADIENT, name: str = "0.weight", *, wrong: bool = True) -> Compared:
    return Compared(
        quantity=quantity,
        name=name,
        statistic=Statistic.TYPICAL,
        distance=1.0 if wrong else 1e-7,
        sigma=1e-6,
        limit=12.0,
    )


def make_checked(*rows: Compared, placed_on: str = "cpu") -> Checked:
    return Checked(
        placed_on=placed_on, device_name="", reference_placed_on="cpu", truth="float64 on cpu", noise=(), compared=rows
    )


def make_inquiry(plan: Plan, row: Compared | None = None, placed_on: str = "cpu") -> Inquiry:
    row = row or make_row()
    reference = replace(plan, device=Device(kind=DeviceKind.CPU), settings=Settings())
    return Inquiry(plan, reference, make_checked(row, placed_on=placed_on), row, reduced(BRIEF, row), {}, [])


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[list[Plan]]]:
    """`answered(function)`: checks come to what the function says of their plans; returns the plans of each pair of
    processes. As in real ones, nothing is known of what comes after a failure."""

    def use(answer: Answers) -> list[list[Plan]]:
        rounds: list[list[Plan]] = []

        def examine_all(pairs: Sequence[tuple[Plan, Plan]], **_: Any) -> list[Examined]:
            rounds.append([plan for plan, _ in pairs])
            found: list[Examined] = []
            failure: Failed | None = None
            for plan, _reference in pairs:
                said = failure or answer(plan)
                failure = said if isinstance(said, Failed) else None
                wrong = said is DIFFERS
                outcome = failure or make_checked(make_row(wrong=wrong))
                found.append(Examined(outcome=outcome, software=SOFTWARE))
            return found

        monkeypatch.setattr(diagnosis_module, "examine_all", examine_all)
        return rounds

    return use


@pytest.mark.parametrize(
    ("wrong", "size", "expected"),
    [
        (range(9, 1000), 64, {8: AGREES, 9: DIFFERS}),
        (
            range(2, 8),
            4,
            {1: AGREES, 2: DIFFERS, 4: DIFFERS, 8: AGREES},
        ),
        (
            range(1, 1000),
            3,
            {1: DIFFERS, 2: DIFFERS, 3: DIFFERS, 6: DIFFERS},
        ),
        (range(2, 8), 2, {1: AGREES, 2: DIFFERS, 4: DIFFERS, 8: AGREES}),
        (range(517, 1000), 900, {516: AGREES, 517: DIFFERS}),
    ],
    ids=["from 9 on", "2 to 7", "all", "2 to 7, from 2", "from 517 on"],
)
def test_the_batch_size_is_found(
    answered: Callable[[Answers], list[list[Plan]]], wrong: range, size: int, expected: dict[int, ParityVerdict]
) -> None:
    rounds = answered(lambda plan: DIFFERS if plan.params["batch_size"] in wrong else AGREES)
    inquiry = make_inquiry(make_plan("mnist-mlp", "torch", DeviceKind.CPU, batch_size=size))
    found = diagnosis_module.find_batch_sizes(inquiry, Trier(inquiry))
    assert found[size] is DIFFERS
    assert expected.items() <= found.items()
    assert all(verdict is (DIFFERS if each in wrong else AGREES) for each, verdict in found.items())
    assert len(rounds) <= 8
    assert all(len(each) <= diagnosis_module.MOST_AT_ONCE for each in rounds)


def test_a_trial_that_ends_its_process_takes_no_other_along(answered: Callable[[Answers], list[list[Plan]]]) -> None:
    crash = Failed(kind=FailureKind.CRASHED, message="it was ended by SIGSEGV.")

    def answer(plan: Plan) -> ParityVerdict | Failed:
        if plan.settings.dtype is Dtype.BFLOAT16:
            return crash
        return AGREES if plan.settings.channels_last else DIFFERS

    rounds = answered(answer)
    inquiry = make_inquiry(make_plan("conv256", "torch", DeviceKind.CPU, Settings(compile=True, fused=True)))
    trials = {trial.change: trial for trial in try_switches(inquiry, Trier(inquiry))}
    assert list(trials) == [
        "inputs that are not contiguous", "--dtype bfloat16", "--compile=off", "--fused=off", "--channels-last",
        "--threads 1",
    ]  # fmt: skip
    assert trials["--dtype bfloat16"].verdict is ParityVerdict.UNTESTED
    assert trials["--dtype bfloat16"].reason == "it was ended by SIGSEGV"
    assert trials["--channels-last"].verdict is AGREES
    assert {trials[name].verdict for name in ("--compile=off", "--fused=off", "--threads 1")} == {DIFFERS}
    assert trials["--compile=off"].sigmas == pytest.approx(1e6)
    assert len(rounds) == 2


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("mnist-mlp", "torch", DeviceKind.CPU, batch_size=2)
    inquiry = make_inquiry(plan)

    def examine_all(pairs: Sequence[tuple[Plan, Plan]], **_: Any) -> list[Examined]:
        interrupted = pairs[0][0].params["batch_size"] == 2
        return [
            Examined(outcome=make_checked(make_row(wrong=False)), software=SOFTWARE, interrupted=interrupted)
            for _ in pairs
        ]

    monkeypatch.setattr(diagnosis_module, "examine_all", examine_all)
    with pytest.raises(KeyboardInterrupt) as stopped:
        diagnose(plan, inquiry.reference, inquiry.checked, options=BRIEF, paths={}, listeners=[], repro=None)
    assert isinstance(stopped.value, diagnosis_module.DiagnosisStopped)
    assert stopped.value.diagnosis.batch_sizes == {
        1: AGREES,
        2: DIFFERS,
        4: AGREES,
        8: AGREES,
    }
    assert "Ctrl-C" in stopped.value.diagnosis.notes[0]


def test_what_a_device_lacks_is_not_tried() -> None:
    plan = make_plan("conv256", "tensorflow", DeviceKind.GPU)
    inquiry = make_inquiry(plan, placed_on="mps:0")
    # Nothing is left to try but --channels-last, which this test does not.
    refused = [trial for trial in list(try_switches(inquiry, Refusing(inquiry))) if trial.reason]
    assert {trial.change for trial in refused} >= {"--dtype bfloat16", "--compile"}
    assert "tensorflow-metal has no XLA" in next(trial.reason for trial in refused if trial.change == "--compile")
    assert "--threads 1" not in {attempt.change for attempt in switches(inquiry)}


class Refusing(Trier):
    def try_all(self, attempts: Sequence[diagnosis_module.Attempt], phase: str) -> list[diagnosis_module.Answer]:  # noqa: ARG002
        assert [attempt.change for attempt in attempts] == ["--channels-last"]
        return [diagnosis_module.Answer(AGREES)]


def test_known_issues_are_those_of_the_version_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan("conv256", "torch", DeviceKind.CPU, Settings(compile=True))
    monkeypatch.setattr(diagnosis_module, "version_of", lambda _: "2.13.0+cpu")
    (issue,) = known_issues(make_inquiry(plan))
    assert "the compiled gradient of a convolution can be exactly zero" in issue
    assert known_issues(make_inquiry(replace(plan, settings=Settings()))) == ()
    on_metal = known_issues(make_inquiry(plan, placed_on="mps:0"))
    assert any(
        "BatchNorm2d's backward pass is wrong in channels_last" in each and "https://" in each for each in on_metal
    )
    monkeypatch.setattr(diagnosis_module, "version_of", lambda _: "2.12.1")
    assert known_issues(make_inquiry(plan)) == ()


def test_a_reference_that_several_trials_share_runs_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = make_plan("fake", "fake", DeviceKind.GPU)
    reference = replace(plan, device=Device(kind=DeviceKind.CPU))
    spread, lower = replace(BRIEF, contiguous=False), replace(plan, settings=Settings(dtype=Dtype.BFLOAT16))
    several = [(plan, BRIEF), (replace(plan, settings=Settings(compile=True)), BRIEF), (plan, spread), (lower, BRIEF)]
    cases = []
    for number, (each, options) in enumerate(several):
        folder = tmp_path / str(number)
        folder.mkdir()
        cases.append(Case(plan=each, reference=reference, folder=str(folder), options=options))
    examined: list[str] = []

    def examine(_side: object, case: Case, _job: object, _tell: object) -> None:
        examined.append(Path(case.folder).name)
        Path(case.folder, "truth").write_text(case.plan.settings.dtype)

    monkeypatch.setattr(worker, "examine", examine)
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    for is_reference, expected in ((True, ["0", "3"]), (False, ["0", "1", "2", "3"])):
        examined.clear()
        job = SideJob(cases=tuple(cases), is_reference=is_reference, spawned_at_s=0.0)
        write_struct(tmp_path / "job.json", job)
        worker.main(str(tmp_path / "job.json"), str(tmp_path / "outcome.json"))
        assert examined == expected
        written = [Path(case.folder, "truth").read_text() for case in cases]
        assert written == ["float32", "float32", "float32", "bfloat16"]


def test_the_software_devices_fault_begins_at_batch_9() -> None:
    """Through real workers, which have no framework to load."""
    plan = make_plan("fake", "fake", DeviceKind.GPU, batch_size=16, fault="conv-batch-9")
    reference = replace(plan, device=Device(kind=DeviceKind.CPU))
    outcome = examine(plan, reference, options=BRIEF).outcome
    assert isinstance(outcome, Checked), outcome
    heard: list[Event] = []
    found = diagnose(
        plan, reference, outcome, options=BRIEF, paths={}, listeners=[heard.append], repro=Path("not-written.py")
    )
    assert (found.batch_sizes[8], found.batch_sizes[9]) == (AGREES, DIFFERS)
    trials = {trial.change: trial for trial in found.trials}
    assert trials["--compile"].verdict is DIFFERS
    assert trials["--dtype bfloat16"].reason == "the noise there is larger than the difference"
    assert found.repro == ""
    assert any("No script was written" in note for note in found.notes)
    assert any(isinstance(event, Progress) and event.phase.startswith("batch size 8, 4, 2, 1") for event in heard)


LINEAR = LayerPart(
    name="2", text="nn.Linear(in_features=8, out_features=10, bias=True)",
    given=TensorPart(shape=(16, 8), dtype="float32", needs_gradient=True),
)  # fmt: skip
CHAIN = (
    LayerPart(
        name="0", text="nn.Linear(in_features=4, out_features=8)", given=TensorPart(shape=(16, 4), dtype="float32"),
    ),
    LayerPart(name="1", text="nn.ReLU()"),
    LINEAR,
)  # fmt: skip
PARTS = NetworkParts(
    version="2.13.0", chain=CHAIN, failing=LINEAR, loss="nn.CrossEntropyLoss()",
    outputs=TensorPart(shape=(16, 10), dtype="float32"), targets=TensorPart(shape=(16,), dtype="int64", high=10),
    compile=", dynamic=False",
    parameter=ParameterPart(
        shape=(8, 4), size=0.1, gradient_size=1e-6, optimizer="torch.optim.AdamW([parameter], lr=0.1)"
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(compile=True, dtype=Dtype.BFLOAT16, channels_last=True),
        Settings(dtype=Dtype.TF32),
        Settings(conv_search=True, environment="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ],
    ids=["plain", "compiled bfloat16", "tf32", "a variable"],
)
@pytest.mark.parametrize("quantity", [q for q in Quantity if q not in (Quantity.CURVE, Quantity.ACCURACY)])
def test_scripts_are_short_and_import_the_framework_alone(quantity: Quantity, settings: Settings) -> None:
    parts = PARTS
    if quantity is Quantity.DROPOUT:
        parts = replace(PARTS, failing=replace(LINEAR, text="nn.Dropout(p=0.25, inplace=False)", rate=0.25))
    plan = make_plan("mnist-mlp", "torch", DeviceKind.CUDA, settings)
    row = make_row(quantity, "2.weight" if quantity not in (Quantity.LOSS, Quantity.PREDICTION) else "")
    made = list(scripts(Setting(plan=plan, reference_device="cpu", device="cuda:0", suspect=row), parts, "2"))
    assert made
    for script in made:
        tree = ast.parse(script.text)
        imported = {
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert imported == {"os", "torch"}
        assert script.text.count("\n") < MOST_LINES
        assert max(map(len, script.text.splitlines())) <= 120
        if settings.environment:
            assert script.text.index('os.environ["PYTORCH_CUDA_ALLOC_CONF"] =') < script.text.index("\nimport torch")


def test_a_long_chain_is_a_short_script_that_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    exit_codes: list[int] = []
    monkeypatch.setattr("os._exit", exit_codes.append)
    middle = [LayerPart(name=f"{n}", text="nn.Linear(in_features=8, out_features=8)") for n in range(2, 18)]
    chain = (*CHAIN[:2], *middle, replace(LINEAR, name="18"))
    parts = replace(PARTS, chain=chain, failing=None)
    row = make_row(Quantity.LOSS, "")
    plan = make_plan("mnist-mlp", "torch", DeviceKind.CPU)
    made = list(scripts(Setting(plan=plan, reference_device="cpu", device="cpu", suspect=row), parts, ""))
    assert [script.what for script in made] == ["the loss alone", "the whole network with its loss"]
    for script in made:
        exec(compile(script.text, "fault.py", "exec"), {})
        assert "loss: the relative difference is 0, the tolerance is" in capsys.readouterr().out
    assert exit_codes == [0, 0]


def test_a_script_shows_the_fault_of_a_device(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The layer alone shows it, in a fresh process; without the fault, the same script finds none."""
    variables = simulated(fault="gradient-scale")
    # PyTorch's threads abort Python's own exit now and then; here it always is.
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    plan = make_plan("mnist-mlp", "torch", DeviceKind.GPU, batch_size=16)
    row = make_row(Quantity.GRADIENT, "2.weight")
    inquiry = make_inquiry(plan, row, placed_on="simulated:0")
    path = tmp_path / "fault.py"
    found = write_repro(inquiry, diagnosis_module.FaultDiagnosis(), path)
    assert path.read_text() == found.repro, found.notes
    assert "the gradient of 2.weight differs" in " ".join(found.repro.split())
    shown = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert "gradient of weight: the relative difference is 0.01, the tolerance is" in shown.stdout
    monkeypatch.setenv("SIMULATED_FAULT", "")
    right = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert right.returncode == 0, right.stdout + right.stderr


@pytest.mark.parametrize(
    ("script", "differs"),
    [
        ("print('They differ.')", True),
        ("print('They do not differ.', flush=True); import os; os.abort()", False),
        ("raise ValueError('no such layer')", "ValueError: no such layer"),
        ("import os; os._exit(1)", "it ended with exit code 1 and no answer."),
    ],
)
def test_a_script_that_fails_is_not_one_that_shows_no_difference(
    tmp_path: Path, script: str, differs: bool | str
) -> None:
    (tmp_path / "fault.py").write_text(script)
    repro.main(str(tmp_path / "fault.py"), str(tmp_path / "answer.json"))
    found = read_json((tmp_path / "answer.json").read_bytes(), repro.Shown | NoAnswer, source="answer")  # type: ignore[arg-type]
    assert (found.differs if isinstance(found, repro.Shown) else found.reason) == differs


def test_the_shortest_compiled_part_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from metalmark.parity.networks.question import opened
    from metalmark.parity.prefixes import on_torch

    def faulty(module: Any, _: Any) -> Any:
        """A compiler whose second linear layer is wrong."""
        linear = [node for node in module.graph.nodes if node.target is torch._C._nn.linear]
        if len(linear) < 2:
            return module
        with module.graph.inserting_after(linear[1]):
            scaled = module.graph.call_function(torch.mul, (linear[1], 1.01))
        linear[1].replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
        module.recompile()
        return module

    def found_with(backend: Any) -> Any:
        monkeypatch.setattr(
            on_torch, "compiled_work", lambda work, _: torch.compile(work, backend=backend, dynamic=False)
        )
        plan = make_plan("mnist-mlp", "torch", DeviceKind.CPU, Settings(compile=True), batch_size=4)
        job = PartJob(plan=plan, paths={}, quantity=Quantity.GRADIENT, name="1.weight")
        with opened(job) as network:
            return on_torch.find_compiled_part(network, job)

    assert found_with(faulty).until == LAST_LINEAR
    right = found_with("eager")
    assert right.until == ""
    assert "do not differ" in right.note


LAST_LINEAR = "2"


def test_where_nothing_is_compiled_in_part_a_note_says_so() -> None:
    notes = {}
    for framework, workload in (("jax", "mnist-mlp"), ("fake", "fake")):
        plan = make_plan(workload, framework, DeviceKind.CPU, Settings(compile=True))
        found = diagnosis_module.find_part(make_inquiry(plan), diagnosis_module.FaultDiagnosis())
        assert not found.compiled_until
        (notes[framework],) = found.notes
    assert "JAX (Keras 3, jit) compiles both sides" in notes["jax"]
    assert "is not looked for" in notes["fake"]


def test_inputs_that_are_not_contiguous_are_not_on_the_device_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """And Metalmark's own choice of a layout gives way to PyTorch's variable."""
    torch = pytest.importorskip("torch")
    import numpy as np

    from metalmark.backends.torch_compiler import compile_options
    from metalmark.parity.torch import _as_given
    from metalmark.parity.variations import is_spread_out, spread_out

    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert [is_spread_out(each) for each in (array, array.T, array[:, :, ::-1], spread_out(array))] == [False] * 3 + [
        True
    ]
    placed = torch.from_numpy(array.copy())
    assert _as_given(placed, array.T) is placed
    view = _as_given(placed, spread_out(array))
    assert not view.is_contiguous()
    assert torch.equal(view, placed)
    monkeypatch.delenv("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", raising=False)
    assert compile_options(PLAIN) == {"layout_optimization": False}
    monkeypatch.setenv("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "1")
    assert compile_options(PLAIN) == {"layout_optimization": True}
    monkeypatch.setenv("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "0")
    assert compile_options(Settings(channels_last=True)) == {"layout_optimization": False}


def test_a_variable_is_taken_back_in_processes_of_its_own() -> None:
    steered = Settings(environment="OMP_WAIT_POLICY=ACTIVE")
    inquiry = make_inquiry(make_plan("mnist-mlp", "torch", DeviceKind.CPU, steered))
    attempts = {attempt.change: attempt for attempt in switches(inquiry)}
    without = attempts["--environment=default"]
    assert without.plan.settings == PLAIN
    assert diagnosis_module._variables(without) != diagnosis_module._variables(attempts["--compile"])
