"""Whole commands on pretend Macs of several kinds: what they measure, record and say, and how they end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from metalmark.model.codec import decode_export
from metalmark.model.measurement import BenchRun, Completed
from metalmark.model.run import Absent, Failed, FailureKind
from tests.data.files import write_idx
from tests.pretend_mac import Mac, few_files
from tests.pretend_mac.conftest import MakeMac
from tests.processes import ROOT, heed_ctrl_c

QUICK = ("--steps", "10", "--seconds", "0.2", "--json", "-q")


def records(run: subprocess.CompletedProcess[str]) -> list[BenchRun]:
    assert "Traceback" not in run.stderr, run.stderr
    return list(decode_export(run.stdout.encode(), source="stdout"))


def completed(record: BenchRun) -> Completed:
    assert isinstance(record.outcome, Completed), record.outcome
    assert not record.outcome.proof.doubts
    return record.outcome


def series(record: BenchRun) -> dict[str, Any]:
    return {one.name: one for one in record.telemetry.series}


def test_an_m4_max_trains_on_metal_and_says_so(make_mac: MakeMac) -> None:
    mac = make_mac("m4-max")
    run = mac.run("bench", "mnist-mlp", "--framework", "torch", "--device", "gpu,cpu", "--batch-size", "8", *QUICK)
    assert run.returncode == 0, run.stderr
    gpu, cpu = records(run)
    assert (completed(gpu).placed_on, completed(cpu).placed_on) == ("mps:0", "cpu")
    assert gpu.machine.chip == "Apple M4 Max"
    assert gpu.machine.os == "macOS 15.6"
    assert gpu.machine.clusters == ("12 Performance", "4 Efficiency")
    assert gpu.machine.gpus[0].cores == 40
    assert not isinstance(gpu.machine.gpus[0].peak, Absent)
    assert gpu.machine.memory_bytes == 64 * 2**30
    memory = completed(gpu).memory
    assert isinstance(memory.live_bytes, int)
    assert isinstance(memory.peak_bytes, Absent), "Metal has no peak counter"
    assert "footprint" in series(gpu)["process_memory"].source
    assert series(gpu)["gpu0_power"].values[0] == 31.5
    assert series(gpu)["gpu0_utilisation"].values[0] >= 97
    assert "throttled" not in {flag.name for flag in gpu.flags}
    assert any(call.startswith("caffeinate -i -w ") for call in mac.called())
    assert (mac.folder / "flushed").exists(), "what is promised to be on the drive is flushed to it"


def test_heat_and_a_battery_are_flagged_on_an_m5_whose_python_miscalls_its_macos(make_mac: MakeMac) -> None:
    mac = make_mac("throttling")
    run = mac.run("bench", "mnist-mlp", "--framework", "torch", "--device", "gpu", *QUICK)
    (record,) = records(run)
    assert record.machine.os == "macOS 26.1"
    assert record.machine.clusters == ("5 Super", "10 Performance")
    assert {"on_battery", "low_power_mode", "throttled"} <= {flag.name for flag in record.flags}
    assert series(record)["battery_charge"].values[0] == 41


def test_a_studio_on_its_ups_is_not_on_a_battery(make_mac: MakeMac) -> None:
    mac = make_mac("m3-ultra")
    run = mac.run("bench", "mnist-mlp", "--framework", "mlx", "--device", "gpu", *QUICK)
    (record,) = records(run)
    assert completed(record).device_name == "Apple M3 Ultra"
    assert "on_battery" not in {flag.name for flag in record.flags}


def test_a_hosted_runner_names_metal_and_does_without(make_mac: MakeMac) -> None:
    mac = make_mac("hosted-runner")
    listed = mac.run("list", "devices", "--json")
    assert listed.returncode == 0, listed.stderr
    run = mac.run("bench", "mnist-mlp", "--framework", "torch,mlx", "--device", "all", *QUICK)
    found = {(record.plan.framework, completed(record).placed_on) for record in records(run)}
    assert found == {("torch", "cpu"), ("mlx", "cpu"), ("mlx", "gpu:0")}
    absent = mac.run("bench", "mnist-mlp", "--framework", "torch", "--device", "gpu", "--steps", "10")
    assert "virtual machine" in absent.stdout + absent.stderr
    assert absent.returncode != 0


def test_mlx_that_metal_aborts_is_out_of_memory_and_the_sweep_goes_on(make_mac: MakeMac) -> None:
    mac = make_mac("m1-8gb")
    sizes = ("--batch-size", "8,20000,16")
    run = mac.run(
        "bench", "mnist-mlp", "--framework", "mlx", "--device", "gpu", *sizes, *QUICK, PRETEND_MAC_MLX_MIB="40"
    )
    small, large, middle = records(run)
    assert isinstance(large.outcome, Failed), large.outcome
    assert large.outcome.kind is FailureKind.OUT_OF_MEMORY
    assert isinstance(small.outcome, Completed)
    assert isinstance(middle.outcome, Completed)


def test_tools_that_hang_flood_fail_and_talk_nonsense_cost_their_own_figures_only(make_mac: MakeMac) -> None:
    mac = make_mac("m1-8gb")
    faults = "system_profiler=hang,pmset batt=flood,vm_stat=fail,pmset therm=nonsense,memory_pressure=slow"
    (record,) = records(
        mac.run("bench", "mnist-mlp", "--framework", "torch", "--device", "cpu", *QUICK, PRETEND_MAC_FAULTS=faults)
    )
    assert record.machine.chip == "Apple M1"
    assert record.machine.gpus == ()
    doctor = mac.run("doctor", "--json", PRETEND_MAC_FAULTS=faults)
    assert doctor.returncode == 1, doctor.stderr
    titles = [finding["title"] for finding in json.loads(doctor.stdout)["findings"]]
    for tool in ("system_profiler", "pmset -g batt", "pmset -g therm"):
        assert any(tool in title for title in titles), titles
    assert "/Users/pat" not in doctor.stdout + doctor.stderr


def test_training_killed_on_metal_goes_on_with_the_same_curve(make_mac: MakeMac, tmp_path: Path) -> None:
    mac = make_mac("m1-8gb")
    arguments = ("mnist-mlp", "--framework", "torch", "--device", "gpu", "--batch-size", "500", "--epochs", "3", "-q")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert mac.run("train", *arguments, "--out", whole).returncode == 0
    command = [sys.executable, "-m", "metalmark", "train", *arguments, "--out", str(parts)]
    with started(mac, command) as process:
        wait_for(lambda: (parts / "record.json").exists() and epochs(parts), process)
        process.kill()
    resumed = mac.run("train", f"--resume={parts}", "-q")
    assert resumed.returncode == 0, resumed.stderr
    assert epochs(parts) == epochs(whole)
    assert len(epochs(parts)) == 3


def test_ctrl_c_keeps_what_ended_and_resume_goes_on_after_finder_has_been_there(
    make_mac: MakeMac, tmp_path: Path
) -> None:
    mac = make_mac("m1-8gb")
    data = write_idx(tmp_path / "data", packed=True)
    command = [sys.executable, "-m", "metalmark", "bench", "mnist-mlp", "--framework", "torch", "--device", "cpu"]
    command += ["--data", str(data), "--batch-size", "4,8,16", "--steps", "20", "--seconds", "0.2"]
    with started(mac, command) as process:
        line = wait_for_line(process, r"\[1/3\].* a step|\[1/3\].*per step")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, line
    (data / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    resumed = mac.run("bench", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert not leftover(mac), "no process of the machine is left"


def test_a_worker_that_is_killed_is_a_cell_and_not_the_end(make_mac: MakeMac) -> None:
    mac = make_mac("m1-8gb")
    command = [sys.executable, "-m", "metalmark", "bench", "mnist-mlp", "--framework", "torch", "--device", "cpu"]
    with started(mac, [*command, "--batch-size", "4,8", *QUICK]) as process:
        wait_for(lambda: workers(process.pid), process)
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        output, errors = process.communicate(timeout=120)
    first, second = decode_export(output.encode(), source="stdout")
    assert isinstance(first.outcome, Failed), errors
    assert first.outcome.signal == "SIGKILL"
    assert isinstance(second.outcome, Completed), second.outcome


def test_a_nap_is_flagged(make_mac: MakeMac) -> None:
    mac = make_mac("m4-max")
    command = [sys.executable, "-m", "metalmark", "bench", "mnist-mlp", "--framework", "torch", "--device", "cpu"]
    with started(mac, [*command, *QUICK]) as process:
        wait_for(lambda: workers(process.pid), process)
        (mac.folder / "slept").write_text("340")
        output, errors = process.communicate(timeout=120)
    (mac.folder / "slept").unlink()
    assert process.returncode == 0, errors
    (record,) = decode_export(output.encode(), source="stdout")
    evidence = {flag.name: flag.evidence for flag in record.flags}
    assert "340 s" in evidence.get("slept", ""), (evidence, errors)


SCRIPT = """
import torch
import metalmark as mm

device = mm.device()
model = torch.nn.Linear(4, 2).to(device)
with mm.run("a loop of my own") as run:
    for batch in run.watch(torch.randn(8, 4).to(device) for _ in range(5)):
        loss = model(batch).square().mean()
        loss.backward()
        run.log(loss=loss)
print(device, mm.to_numpy(model(batch)).shape, run.result.machine.chip, len(run.result.telemetry.series) > 0)
"""


def test_a_loop_of_the_users_own(make_mac: MakeMac, tmp_path: Path) -> None:
    mac = make_mac("m1-8gb")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = mac.execute([sys.executable, str(script)], tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("mps"), run.stdout
    assert "(8, 2) Apple M1 True" in run.stdout


@pytest.mark.parametrize("mend", ["wait", "group"])
def test_without_the_mends_no_cell_ends_well(make_mac: MakeMac, tmp_path: Path, mend: str) -> None:
    """The two defects that this test bench is for: it fails where either comes back."""
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src" / "metalmark", source / "metalmark", ignore=shutil.ignore_patterns("__pycache__"))
    file = source / "metalmark" / "machine" / "processes.py"
    text = file.read_text()
    old = {
        "wait": text.replace("_wait_with_kqueue(pid)\n", "os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n", 1),
        "group": text.replace("except (ProcessLookupError, PermissionError):", "except ProcessLookupError:"),
    }[mend]
    assert old != text
    file.write_text(old)
    mac = make_mac("m1-8gb")
    path = os.pathsep.join([mac.environment()["PYTHONPATH"], str(source)])
    command = ("bench", "mnist-mlp", "--framework", "torch", "--device", "cpu", "--steps", "10", "--stall", "20")
    run = mac.run(*command, PYTHONPATH=path)
    assert run.returncode != 0, run.stdout + run.stderr
    assert {"wait": "has no attribute 'waitid'", "group": "Operation not permitted"}[mend] in run.stdout + run.stderr


class started:  # noqa: N801
    """A command that a test will interrupt; nothing of it outlives the test."""

    def __init__(self, mac: Mac, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            env={**mac.environment(), "PYTHONUNBUFFERED": "1"},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: (heed_ctrl_c(), few_files()),
        )

    def __enter__(self) -> subprocess.Popen[str]:
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(30)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "it ended before it got there"
        assert time.monotonic() < deadline_s, "it did not get there in two minutes"
        time.sleep(0.05)


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(pattern, line):
            return line
    raise AssertionError("it ended without that line")


def workers(pid: int) -> list[int]:
    """The processes that measure below a command's own."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that has just ended, a zombie included
            if "metalmark.runner.worker" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found


def leftover(mac: Mac) -> list[str]:
    """Processes that still live on the machine, given a moment to end."""
    mark = f"PRETEND_MAC={mac.folder}".encode()
    for _ in range(50):
        found = []
        for process in psutil.process_iter():
            try:
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    found.append(" ".join(process.cmdline()))
            except (OSError, psutil.Error):
                continue
        if not found:
            break
        time.sleep(0.1)
    return found


def epochs(folder: Path) -> list[float]:
    record = json.loads((folder / "record.json").read_bytes())
    return [epoch["train_loss"] for epoch in record.get("epochs", ())]
