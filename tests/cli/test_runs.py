from __future__ import annotations

import json
from pathlib import Path

from metalmark.model.codec import encode_export
from metalmark.model.run import FailureKind
from metalmark.store.sqlite import Store
from tests.conftest import Cli
from tests.samples import completed, failed, plan, record


def fill(store_file: Path) -> tuple[str, str]:
    good = record(completed(0.02))
    bad = record(failed(FailureKind.CRASHED, "it fell\x1b[31m over"), cell=1, plan=plan(framework="jax"))
    with Store(store_file) as store:
        store.add_all([good, bad])
    return good.id, bad.id


def test_list(cli: Cli, store_file: Path) -> None:
    assert "metalmark bench" in cli("runs", "list").stderr
    good, bad = fill(store_file)
    run = cli("runs", "list")
    assert good in run.stdout
    assert "crashed" in run.stdout
    assert json.loads(cli("runs", "list", "--json").stdout)[0]["workload"] == "mnist-mlp"
    run = cli("runs", "list", "--limit", "1")
    assert len(run.stdout.splitlines()) == 2
    assert "newest 1 of 2" in run.stderr
    del bad


def test_show(cli: Cli, store_file: Path) -> None:
    good, _ = fill(store_file)
    run = cli("runs", "show", good[:7])
    assert run.returncode == 0, run.stderr
    for part in ("20.0 ms", "Test chip", "torch 2.13.0", "loss 2.3 → 0.1", "not counted"):
        assert part in run.stdout
    shown = cli("runs", "show", "last")
    assert "it fell" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert cli("runs", "show", "last", "--markdown").stdout.count("| torch |") == 1
    assert json.loads(cli("runs", "show", good, "--json").stdout)["records"][0]["id"] == good


def test_export_delete_import(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    good, bad = fill(store_file)
    whole, one = tmp_path / "whole.json", tmp_path / "one.json"
    assert cli("runs", "export", "-o", whole).returncode == 0
    assert cli("runs", "export", good, "-o", one).returncode == 0
    assert [r["id"] for r in json.loads(one.read_text())["records"]] == [good]
    assert not list(tmp_path.glob("*.part"))
    refused = cli("runs", "delete", good)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert cli("runs", "delete", good, bad, "--yes").returncode == 0
    assert cli("runs", "list").stdout == ""
    run = cli("runs", "import", whole, one)
    assert "2 runs imported, 1 were there already" in run.stderr
    assert good in cli("runs", "list").stdout


def test_an_edited_record_is_refused(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    good, _ = fill(store_file)
    document = json.loads(cli("runs", "export", good).stdout)
    document["records"][0]["outcome"]["samples_per_step"] = 999
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    run = cli("runs", "import", path)
    assert run.returncode == 2
    assert "other contents" in run.stderr


def test_export_where_nothing_can_be_written(cli: Cli, store_file: Path, tmp_path: Path) -> None:
    fill(store_file)
    run = cli("runs", "export", "-o", tmp_path / "no" / "where.json")
    assert run.returncode == 2
    assert "can't be written" in run.stderr


def test_hostile_names_are_shown_as_text(cli: Cli, tmp_path: Path) -> None:
    evil = record(plan=plan(workload="<script>alert(1)</script>|\x1b]0;x\x07=cmd()", params={"batch_size": 1}))
    path = tmp_path / "evil.json"
    path.write_bytes(encode_export([evil]))
    assert cli("runs", "import", path).returncode == 0
    for arguments in (["runs", "list"], ["runs", "show", "last"], ["runs", "show", "last", "--csv"]):
        run = cli(*arguments)
        assert run.returncode == 0, run.stderr
        assert "\x1b" not in run.stdout
        assert "\x07" not in run.stdout
    assert "<script>" not in cli("runs", "show", "last", "--markdown").stdout.replace("\\<script\\>", "")
