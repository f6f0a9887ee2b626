"""What can't be trained by several processes: a sentence that says what, why and what to type, and exit code 2."""

from __future__ import annotations

import pytest

from metalmark import errors
from metalmark.app import worlds
from metalmark.backends.base import DeviceReport, Probe
from metalmark.model.plan import Device, DeviceKind, Scaling, World
from metalmark.runner.world import Meeting, await_meeting
from tests.conftest import Cli
from tests.world.ports import free_port

BENCH = ("bench", "mnist-mlp", "-f", "torch", "-d", "cpu")
NODES = ("--nnodes", "2", "--rdzv", "127.0.0.1:29400")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nproc", "2", "--batch-size", "33"), "--batch-size 32 or 34"),
        (("--nproc", "4", "--batch-size", "3"), "--batch-size 4;"),
        (("--nproc", "0"), "from 1 to 64, not 0"),
        (("--nproc", "65"), "from 1 to 64, not 65"),
        (("--nproc", "two"), "--nproc takes numbers"),
        (("--nproc", "2", "--mode", "inference"), "--nproc is for training"),
        (("--nproc", "2", "--graph"), "--graph can't be combined with --nproc"),
        (("--nproc", "2", "--compile"), "--compile can't be combined with --nproc"),
        (("--nproc", "2", "--accumulate", "2"), "--accumulate can't be combined with --nproc"),
        (("--nproc", "2", "--parity"), "--parity checks one process"),
        (("--scaling", "weak"), "there is one process"),
        (("--nproc", "2", "--scaling", "elastic"), "no --scaling 'elastic'"),
        (("--nproc", "2", "--rdzv", "127.0.0.1:29400"), "--rdzv is for several machines"),
        (("--nproc", "2", "--node-rank", "1"), "--node-rank is for several machines"),
        (("--nnodes", "2", "--node-rank", "0"), "needs --rdzv"),
        (NODES, "needs --node-rank"),
        ((*NODES, "--node-rank", "2"), "from 0 to 1"),
        (("--nnodes", "2", "--rdzv", "here", "--node-rank", "0"), "--rdzv is HOST:PORT"),
        ((*NODES, "--node-rank", "0", "--nproc", "1,2"), "the same one cell"),
        ((*NODES, "--node-rank", "0", "--repeat", "2"), "the same one cell"),
        (("--resume", "--nproc", "2"), "--resume goes on"),
    ],
)
def test_bad_words_are_answered(inside: Cli, words: tuple[str, ...], said: str) -> None:
    lead = ("bench",) if "--resume" in words else BENCH
    done = inside(*lead, *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_train_takes_one_world(inside: Cli) -> None:
    done = inside("train", "mnist-mlp", "-f", "torch", "-d", "cpu", "--nproc", "1,2")
    assert done.returncode == 2
    assert "one value for --nproc" in done.stderr


def test_an_address_where_nothing_listens(inside: Cli) -> None:
    where = f"127.0.0.1:{free_port()}"
    done = inside(*BENCH, "--nnodes", 2, "--rdzv", where, "--node-rank", 1, "--rdzv-timeout", 1)
    assert done.returncode == 2
    assert f"Nothing listens at --rdzv {where}" in done.stderr


def test_the_first_machine_must_have_the_address() -> None:
    # 192.0.2.0/24 is for documentation: no machine has it.
    with pytest.raises(errors.UsageError, match="can't listen there"):
        await_meeting(Meeting(host="192.0.2.7", port=29400))


def devices(*reports: DeviceReport, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(framework="torch", versions={}, devices=reports)
    monkeypatch.setattr(worlds, "probe_all", lambda names: dict.fromkeys(names, probe))


def test_each_process_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices(DeviceReport(word="cuda", present=True, count=2), monkeypatch=monkeypatch)
    cuda, two, four = [Device(kind=DeviceKind.CUDA)], World(nproc=2), World(nproc=4)
    assert worlds.refuse_devices([two], {"torch": cuda}, named=True) == {}
    with pytest.raises(errors.UsageError, match="4 processes need a device each, and there are 2"):
        worlds.refuse_devices([four], {"torch": cuda}, named=True)
    with pytest.raises(errors.UsageError, match="none can be named"):
        worlds.refuse_devices([two], {"torch": [Device(kind=DeviceKind.CUDA, index=1)]}, named=True)


def test_a_mac_has_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices(DeviceReport(word="mps", present=True), monkeypatch=monkeypatch)
    for kind in (DeviceKind.MPS, DeviceKind.GPU, DeviceKind.ANY):
        with pytest.raises(errors.UsageError, match="a Mac has one GPU"):
            worlds.refuse_devices([World(nproc=2)], {"torch": [Device(kind=kind)]}, named=True)
    # Of all devices, it is left out and the CPU is not.
    both = [Device(kind=DeviceKind.MPS), Device(kind=DeviceKind.CPU)]
    assert list(worlds.refuse_devices([World(nproc=2)], {"torch": both}, named=False)) == [("torch", "mps")]


def test_frameworks_that_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch=monkeypatch)
    cpu = [Device(kind=DeviceKind.CPU)]
    with pytest.raises(errors.UsageError, match="one object in one process"):
        worlds.refuse_devices([World(nproc=2)], {"fake": cpu}, named=True)
    for framework in ("tensorflow", "mlx"):
        with pytest.raises(errors.UsageError, match="address of every process"):
            worlds.refuse_devices([World(nproc=1, nnodes=2)], {framework: cpu}, named=True)


def test_a_weak_batch_need_not_divide() -> None:
    weak = World(nproc=2, scaling=Scaling.WEAK)
    worlds.refuse_batches([weak], {"mnist-mlp": [{"batch_size": 33}]})
