"""`metalmark watch`: scripts of all kinds, unchanged, as a user starts them; and what is seen of PyTorch."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from metalmark.app.watch import NO_FRAMEWORK, NO_HOOK, NO_STEP, command_words, script_name
from metalmark.model.watch import WatchedRun, WatchedScript, WatchEnding
from metalmark.store.store import Store
from metalmark.watch.agent_package import AGENT_FOLDER, agent_module
from tests import processes
from tests.conftest import Cli
from tests.processes import heed_ctrl_c, metalmark
from tests.simulated.conftest import Simulated
from tests.watch.agents import needs

Watch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def watch(tmp_path: Path, store_file: Path) -> Watch:
    """Runs `metalmark watch -- python script.py` on some code, in a folder of its own."""

    def run(code: str, *arguments: str, options: tuple[str, ...] = (), **environment: str) -> Any:
        (tmp_path / "script.py").write_text(textwrap.dedent(code))
        command = metalmark("watch", *options, "--", sys.executable, *(arguments or ("script.py",)))
        variables = {"METALMARK_STORE": str(store_file), "OMP_NUM_THREADS": "1", **environment}
        return processes.run(command, folder=tmp_path, **variables)

    return run


def kept(store_file: Path) -> WatchedRun:
    with Store(store_file, readonly=True) as store:
        (run,) = store.load(store.rows())
    assert isinstance(run, WatchedRun)
    assert run.script is not None
    return run


def script_of(run: WatchedRun) -> WatchedScript:
    assert run.script is not None
    return run.script


PLAIN = """
    import json, os, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index % 8 == 0:
                time.sleep(0.004)
            return torch.full((4,), float(index)), torch.tensor(float(index % 3))

    if __name__ == "__main__":
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        first, second = (torch.optim.SGD([each], lr=1e-5) for each in (model.weight, model.bias))
        losses, waited = [], 0.0
        contexts = [(0, None), (2, "fork"), (1, "spawn")]
        loaders = [DataLoader(Slow(), 8, num_workers=n, multiprocessing_context=how) for n, how in contexts]
        clock = time.monotonic
        for loader in loaders:
            model.train()
            begin = clock()
            iterator = iter(loader)
            while True:
                batch = next(iterator, None)
                if batch is None:
                    break
                waited += clock() - begin
                x, y = batch
                loss = (model(x).squeeze() - y).pow(2).mean()
                loss.backward()
                # Two optimisers after one backward pass are one step.
                first.step()
                second.step()
                first.zero_grad()
                second.zero_grad()
                losses.append(loss.item())
                begin = clock()
            model.eval()
            with torch.no_grad():
                for x, y in DataLoader(Slow(), 20):
                    model(x)
            torch.save(model.state_dict(), "model.pt")
        # Gradients of two batches for one step, and each batch from a loader of its own.
        for _ in range(2):
            for _ in range(2):
                x, y = next(iter(loaders[0]))
                (model(x).squeeze() - y).pow(2).mean().backward()
            first.step()
        print(json.dumps({"losses": losses, "waited": waited, "path": sys.path, "args": sys.argv[1:]}))
        sys.stdout.flush()
        raise SystemExit(3)
"""


def test_a_plain_loop(watch: Watch, tmp_path: Path, store_file: Path) -> None:
    needs("torch")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(textwrap.dedent(PLAIN))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os\nos.environ['OF_THE_USER'] = '1'\n")
    done = watch("", "-m", "package.train", "--flag", "--", "-q", options=("--name", "plain"), PYTHONPATH="own")
    assert done.returncode == 3, done.stderr
    printed, run = json.loads(done.stdout), kept(store_file)
    script = script_of(run)
    assert printed["args"] == ["--flag", "--", "-q"]
    assert not [entry for entry in printed["path"] if "agent" in entry]
    assert (run.name, run.ended, run.error, script.exit_code) == ("plain", WatchEnding.FAILED, "exit code 3", 3)
    assert script.command == "python -m package.train --flag -- -q"
    assert sum(stretch.steps for stretch in run.stretches["train"]) == 17
    assert [(each.loop, each.steps) for each in run.passes[:6]] == [("train", 5), ("validation", 2)] * 3
    assert {each.loop for each in run.passes[6:]} == {"train"}
    (curve,) = run.curves
    assert curve.steps == tuple(range(1, 18))
    assert list(curve.values[:15]) == pytest.approx(printed["losses"])
    assert (script.frameworks, script.device, script.batch_size) == (("torch",), "cpu", 8)
    assert sorted(each.role for each in script.processes) == ["loader worker", "loader worker", "main"]
    assert set(script.phases) == {"start-up", "training", "validation", "checkpoint"}
    # Both clocks saw the same waits: a process that is not scheduled for a while waits for both, or between two calls.
    waited_s = sum(each.waited_s or 0.0 for each in run.passes if each.loop == "train" and each.steps == 5)
    assert waited_s == pytest.approx(printed["waited"], rel=0.2, abs=0.02)
    assert script.steady is not None
    assert script.steady.steps == 16
    for part in (script.steady.forward_s, script.steady.backward_s, script.steady.optimizer_s):
        assert part is not None
        assert 0 < part < script.steady.elapsed_s
    assert f"kept as {run.id}" in done.stderr
    assert run.software.versions["torch"]


RANKS = """
    import os, signal, sys, time
    import torch

    def train(steps):
        weights = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weights], lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            weights.pow(2).sum().backward()
            optimizer.step()

    train(2)
    for rank, steps in ((1, 4), (0, 5)):
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = str(rank)
            train(steps)
            sys.exit()
        os.waitpid(child, 0)
    print("done", flush=True)
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_are_followed_and_a_killed_script_leaves_what_was_seen(watch: Watch, store_file: Path) -> None:
    needs("torch")
    done = watch(RANKS)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stdout == "done\n"
    run = kept(store_file)
    script = script_of(run)
    assert (run.ended, run.error, script.exit_code, script.signal) == (
        WatchEnding.FAILED, "ended by SIGKILL", None, "SIGKILL",
    )  # fmt: skip
    followed = {each.role: (each.steps, each.ended) for each in script.processes}
    assert followed == {"main": (2, False), "rank 0": (5, True), "rank 1": (4, True)}
    assert sum(stretch.steps for stretch in run.stretches["train"]) == 5


TORCHRUN = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


def test_torchrun(watch: Watch, store_file: Path) -> None:
    needs("torch")
    done = watch(TORCHRUN, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py")
    assert done.returncode == 0, done.stderr
    run = kept(store_file)
    roles = sorted((each.role, each.steps) for each in script_of(run).processes)
    assert roles == [("main", 0), ("rank 0", 4), ("rank 1", 4)]
    assert (run.name, sum(stretch.steps for stretch in run.stretches["train"])) == ("script", 4)


DEVICE = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(8, 1).to("simulated")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in DataLoader(TensorDataset(torch.ones(24, 8)), 4):
        x = x.to("simulated")
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()  # line 13
    print(loss > 9)  # line 14, of bool: the device has no float64, in which numbers are printed
    float(loss), f"{loss:.2f}", bool(loss > 0), loss.detach().cpu(), loss.detach().to("cpu"), loss.tolist()  # line 15
    torch.accelerator.synchronize()  # line 16
    torch.zeros(4).copy_(x[0, :4])  # line 17
    str(torch.ones(2)), torch.ones(1).item(), torch.ones(1).to("cpu")
"""


def test_what_waits_for_a_device_and_what_is_copied(watch: Watch, store_file: Path, simulated: Simulated) -> None:
    done = watch(DEVICE, **simulated())
    assert done.returncode == 0, done.stderr
    run = kept(store_file)
    script = script_of(run)
    assert script.device == "simulated:0"
    found = {(each.where, each.call): each.count for each in script.syncs}
    assert found == {
        ("script.py:13", ".item()"): 6,
        ("script.py:14", "print"): 1,
        **{("script.py:15", call): 1 for call in ("float()", "format", "bool()", ".cpu()", ".to()", ".tolist()")},
        ("script.py:16", "torch.accelerator.synchronize()"): 1,
        ("script.py:17", ".copy_()"): 1,
    }
    assert [each.seconds for each in script.syncs] == sorted((each.seconds for each in script.syncs), reverse=True)
    # Weights of 8 and a bias of 1, then six batches of 4 rows of 8.
    assert [(each.up_to_bytes, each.count, each.total_bytes) for each in script.copies] == [
        (4, 1, 4), (32, 1, 32), (128, 6, 768),
    ]  # fmt: skip
    assert len(run.curves[0].values) == 6
    assert script.steady is not None
    assert script.steady.sync_s > 0


def test_a_script_without_a_framework_keeps_its_streams_and_code(tmp_path: Path, store_file: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('of the user')\n")
    code = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.stderr.write('told'); sys.exit(7)"
    command = metalmark("watch", "-q", sys.executable, "-c", code, "--token", "abc")
    environment = {**os.environ, "METALMARK_STORE": str(store_file), "PYTHONPATH": str(tmp_path / "own")}
    done = subprocess.run(command, input="in", capture_output=True, text=True, env=environment, check=False)
    # Metalmark's own Python has run the user's file, too.
    assert (done.returncode, done.stdout, done.stderr) == (7, "of the user\nof the user\nIN", "told")
    run = kept(store_file)
    assert run.notes == (NO_FRAMEWORK,)
    assert run.error == "exit code 7"
    assert "abc" not in script_of(run).command
    assert run.telemetry.series or run.telemetry.absent


def test_a_python_that_does_not_load_the_hook(watch: Watch, store_file: Path) -> None:
    done = watch("print('ran')", "-I", "script.py")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert kept(store_file).notes == (NO_HOOK,)
    assert NO_HOOK in done.stderr


def test_a_script_that_fails_at_once_and_one_that_never_steps(watch: Watch, store_file: Path) -> None:
    needs("torch")
    done = watch("import torch\nraise ValueError('no data in /home/someone/data')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    run = kept(store_file)
    assert (run.ended, run.error, run.notes) == (WatchEnding.FAILED, "ValueError: no data in data", (NO_STEP,))


def test_a_script_that_goes_into_the_background(watch: Watch, tmp_path: Path, store_file: Path) -> None:
    done = watch(
        """
        import os, sys, time
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        with open("pid.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("pid.part", "pid.txt")
        time.sleep(60)
        """
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int((tmp_path / "pid.txt").read_text())
    try:
        os.kill(pid, 0)  # it was left alone
        assert done.returncode == 0
        (note,) = [each for each in kept(store_file).notes if "background" in each]
        assert str(pid) in note
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


WAITING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print(os.getpid(), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped by the user", flush=True)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("number", "to_group", "code", "ending"),
    [
        (signal.SIGINT, True, 5, WatchEnding.FAILED),
        (signal.SIGINT, True, 130, WatchEnding.INTERRUPTED),
        (signal.SIGTERM, False, 143, WatchEnding.FAILED),
    ],
)
def test_signals_are_the_scripts(
    tmp_path: Path, store_file: Path, number: int, to_group: bool, code: int, ending: WatchEnding
) -> None:
    (tmp_path / "wait.py").write_text(WAITING)
    command = metalmark("watch", "--store", store_file, "--", sys.executable, tmp_path / "wait.py", code)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=heed_ctrl_c,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        int(process.stdout.readline())
        if to_group:  # as a terminal does
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ("stopped by the user\n" if to_group else "")
    run = kept(store_file)
    assert run.ended is ending
    assert script_of(run).signal == ("" if to_group else "SIGTERM")


def test_a_script_outlives_metalmark(tmp_path: Path, store_file: Path) -> None:
    (tmp_path / "wait.py").write_text(WAITING)
    command = metalmark("watch", "--store", store_file, "--", sys.executable, tmp_path / "wait.py", 0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            os.kill(pid, 0)
        finally:
            os.kill(pid, signal.SIGKILL)
    with Store(store_file) as store:
        assert not store.rows()


def test_the_agent_needs_nothing_but_an_old_python() -> None:
    for path in AGENT_FOLDER.rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                root = name.partition(".")[0]
                assert root in sys.stdlib_module_names or root == "metalmark_agent", f"{path.name} imports {name}"


def test_bad_input(cli: Cli, store_file: Path) -> None:
    for words, said in (
        (("no-such-command", "x"), "There is no command 'no-such-command' here."),
        (("train.py",), "train.py is a script, not a command."),
        ((), "There is no command to watch."),
    ):
        done = cli("watch", "--", *words)
        assert done.returncode == 2
        assert said in done.stderr
        assert "metalmark watch -- python" in done.stderr
    with Store(store_file) as store:
        assert not store.rows()


def test_names_and_commands() -> None:
    assert script_name(["python", "-u", "src/train.py", "--x"]) == "train"
    assert script_name(["python", "-m", "package.train"]) == "package.train"
    assert script_name(["/usr/bin/torchrun", "--nproc-per-node", "2"]) == "torchrun"
    assert command_words(["/usr/bin/python", "a b.py", "--api-key=1", "--hf-token", "x", "-q"]) == (
        "python 'a b.py' '--api-key=***' --hf-token '***' -q"
    )


def recorder_and_lines() -> tuple[Any, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    return agent_module("recorder").Recorder(lines.append), lines


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_torch_compile_is_not_disturbed_and_everything_is_put_back() -> None:
    torch = pytest.importorskip("torch")
    import pickle

    from torch._dynamo.utils import counters

    def work() -> dict[str, dict[str, int]]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)

        @torch.compile(backend="eager")
        def branch(x: Any) -> Any:
            y = x.to(torch.float64) * 2
            if y.sum().item() > 0:
                y = y + float(y.mean())
            return y

        @torch.compile(backend="eager")
        def step(x: Any) -> Any:
            loss = net(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        for size in (4, 4, 6):
            branch(torch.randn(size, 4))
            step(torch.randn(size, 4))
        torch.compile(net, backend="eager", fullgraph=True)(torch.randn(2, 4))
        return {name: dict(counters[name]) for name in ("stats", "graph_break", "recompiles", "unimplemented")}

    before = {name: vars(torch.Tensor).get(name) for name in ("item", "to", "__repr__", "copy_")}
    expected = work()
    recorder, lines = recorder_and_lines()
    troubles: list[str] = []
    undo = agent_module("install").hook_into(recorder, troubles.append)
    try:
        assert work() == expected
        tensor = pickle.loads(pickle.dumps(torch.ones(2)))
        assert pickle.loads(pickle.dumps(torch.Tensor.item)) is torch.Tensor.item
        # PyTorch has a list of the methods that a parameter without a shape knows.
        lazy = torch.nn.LazyLinear(2).to(torch.float64).to("cpu")
        assert lazy(torch.ones(1, 3, dtype=torch.float64)).shape == (1, 2)
        wrapped = type("Wrapped", (torch.Tensor,), {})
        assert type(tensor.as_subclass(wrapped).to(torch.float16)) is wrapped
    finally:
        undo()
    recorder.flush(ended=True)
    assert not troubles
    assert lines[-1]["totals"]["steps"] == 3
    assert {name: vars(torch.Tensor).get(name) for name in before} == before
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks  # type: ignore[attr-defined]
    torch._dynamo.reset()


def test_what_is_a_step_and_what_is_validation() -> None:
    """The recorder by itself, with times as they are told to it."""
    recorder, lines = recorder_and_lines()
    # A library that fetches ahead: the loader ends before its only batch is worked on.
    recorder.open_pass(1, 0.0, 1.0)
    recorder.batch(1, 1.0, 2.0)
    recorder.end_pass(1, 2.5)
    recorder.backward(3.0, 4.0)
    recorder.step(4.0, 5.0)
    # Validation and a checkpoint in the middle of a pass, between a batch and its step.
    recorder.open_pass(2, 5.0)
    recorder.batch(2, 5.0, 6.0)
    recorder.open_pass(3, 6.0)
    recorder.batch(3, 6.0, 8.0)
    recorder.sync(".item()", "a.py:1", 8.0, 8.5)
    recorder.end_pass(3, 9.0)
    recorder.outside("checkpoint", 9.0, 10.0)
    recorder.backward(11.0, 12.0)
    recorder.step(12.0, 13.0)
    recorder.step(13.0, 13.5, key=1)
    recorder.step(13.5, 14.0, key=2)
    recorder.flush(ended=True)
    (line,) = lines
    assert [(loop, count) for loop, _, count, *_ in line["passes"]] == [("train", 1), ("validation", 1), ("train", 2)]
    assert line["steps"] == [(0.0, 5.0, 2.0, 1), (5.0, 4.0, 1.0, 1), (13.0, 0.5, 0.0, 1), (13.5, 0.5, 0.0, 0)]
    totals = line["totals"]
    assert totals["phases"] == {"checkpoint": 1.0, "validation": 3.0}
    assert totals["steady"]["waited_s"] == 1.0
    assert totals["steady"]["sync_s"] == 0.0
    assert totals["steady"]["forward_s"] == 1.0


def test_a_hook_that_fails_is_told_and_costs_the_script_nothing(tmp_path: Path) -> None:
    """A framework of another version may have nothing of what we look for."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('another torch')\n")
    (tmp_path / "script.py").write_text("import torch\nprint(torch.__spec__.loader.get_source('torch').strip())\n")
    done = processes.run(
        metalmark("watch", "--store", tmp_path / "s.sqlite3", "--", sys.executable, "script.py"), folder=tmp_path
    )
    assert done.returncode == 0
    assert done.stdout == "another torch\nprint('another torch')\n"
    assert any("after the import of torch" in note for note in kept(tmp_path / "s.sqlite3").notes)
