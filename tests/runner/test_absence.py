"""What a probe says against what was asked for."""

from __future__ import annotations

import pytest

from metalmark.backends.base import DeviceReport, Probe
from metalmark.model.plan import Device, DeviceKind, Dtype, Feed, Loader, Settings
from metalmark.model.run import FailureKind
from metalmark.runner import probing as module
from metalmark.runner.ask import NoAnswer
from metalmark.runner.probing import absence, absences
from tests.samples import plan

CPU = DeviceReport(word="cpu", present=True)
NO_CUDA = DeviceReport(word="cuda", present=False, reason="no driver.", fix="Get one.")
NO_MPS = DeviceReport(word="mps", present=False, reason="no Mac.")
BARE = Probe(framework="torch", versions={}, devices=(CPU, NO_CUDA, NO_MPS))
CUDA = Probe(framework="torch", versions={}, devices=(CPU, DeviceReport(word="cuda", present=True), NO_MPS))


def on(kind: str, **settings: object):  # type: ignore[no-untyped-def]
    return plan(device=Device(kind=DeviceKind(kind)), settings=Settings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["gpu", "cuda", "mps"])
def test_an_absent_device_has_its_reason(kind: str) -> None:
    why = absence(on(kind), BARE)
    assert why is not None
    assert why.kind is FailureKind.UNSUPPORTED
    assert ("no driver." in why.message) == (kind != "mps")
    assert ("no Mac." in why.message) == (kind != "cuda")
    assert why.hint == ("Get one." if kind != "mps" else "")


@pytest.mark.parametrize("kind", ["cpu", "any"])
def test_what_is_everywhere_is_never_absent(kind: str) -> None:
    assert absence(on(kind), BARE) is None


def test_a_present_device_is_none_but_its_settings_are_checked() -> None:
    assert absence(on("gpu"), CUDA) is None
    assert absence(on("gpu", dtype=Dtype.TF32), CUDA) is None
    why = absence(on("gpu", threads=1), CUDA)
    assert why is not None
    assert "--threads" in why.message


def test_the_loaders_settings_are_checked_too() -> None:
    metal = Probe(framework="torch", versions={}, devices=(CPU, NO_CUDA, DeviceReport(word="mps", present=True)))
    pinned = plan(device=Device(kind=DeviceKind.GPU), feed=Feed.PIPELINE, loader=Loader(pin=True))
    why = absence(pinned, metal)
    assert why is not None
    assert why.kind is FailureKind.UNSUPPORTED
    assert "--pin on torch, mps" in why.message
    assert absence(pinned, CUDA) is None
    assert absence(plan(device=Device(kind=DeviceKind.GPU), feed=Feed.PIPELINE, loader=Loader()), metal) is None


def test_a_framework_that_fails_at_import_fails_on_every_device() -> None:
    why = absence(on("gpu"), NoAnswer(reason="it fails at import: ImportError: x"))
    assert why is not None
    assert why.kind is FailureKind.CRASHED


def test_only_what_could_be_missing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def probe(names: list[str]) -> dict[str, Probe]:
        asked.extend(names)
        return dict.fromkeys(names, BARE)

    monkeypatch.setattr(module, "probe_all", probe)
    assert absences([on("cpu"), on("any")]) == [None, None]
    assert asked == []
    assert [one is None for one in absences([on("cpu"), on("gpu")])] == [True, False]
    assert asked == ["torch"]
