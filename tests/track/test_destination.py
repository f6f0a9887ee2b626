"""Words for trackers: what they mean, what is refused, and that no password gets any further."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from metalmark.errors import NotInstalledError, UsageError
from metalmark.track import destination
from metalmark.track.destination import Destination, parse_track, redact, without_user
from tests.conftest import Cli


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METALMARK_STORE", str(tmp_path / "store.sqlite3"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def one(text: str, **variables: str) -> Destination:
    (found,) = parse_track(text, variables).destinations
    return found


def test_mlflow_is_a_file_of_our_own_unless_told_otherwise(tmp_path: Path) -> None:
    assert one("mlflow").place == f"sqlite:///{tmp_path.resolve()}/mlflow.sqlite3"
    assert one("mlflow", MLFLOW_TRACKING_URI="http://here:5000").place == "http://here:5000"
    assert one("mlflow=https://there/x", MLFLOW_TRACKING_URI="http://here:5000").place == "https://there/x"
    assert one("mlflow=postgresql+psycopg2://db/x").place == "postgresql+psycopg2://db/x"
    assert one("mlflow").project == "metalmark"
    assert one("mlflow", MLFLOW_EXPERIMENT_NAME="mine").project == "mine"


def test_wandb_is_offline_without_a_key_and_says_so(tmp_path: Path) -> None:
    wish = parse_track("wandb", {})
    assert [each.place for each in wish.destinations] == ["offline"]
    assert wish.notes == ("wandb: no API key was found, so this run is kept offline.",)
    assert wish.destinations[0].folder == str(tmp_path.resolve())
    assert parse_track("wandb", {"WANDB_API_KEY": "k" * 40}).destinations[0].place == "online"
    assert parse_track("wandb=offline", {"WANDB_API_KEY": "k" * 40}).destinations[0].place == "offline"
    assert parse_track("wandb=offline", {}).notes == ()
    assert parse_track("wandb", {"WANDB_MODE": "disabled"}).destinations == ()
    assert one("wandb", WANDB_MODE="dryrun", WANDB_PROJECT="p", WANDB_ENTITY="e").project == "p"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.wandb.ai login user password x\n")
    netrc.chmod(0o600)
    assert one("wandb", NETRC=str(netrc)).place == "online"
    assert one("wandb", NETRC=str(netrc), WANDB_BASE_URL="https://other").place == "offline"


def test_several_and_the_same_twice() -> None:
    assert [each.tracker for each in parse_track("mlflow, wandb=offline,mlflow", {}).destinations] == [
        "mlflow",
        "wandb",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("excel", "no tracker 'excel'"),
        ("mlflow,", "no tracker ''"),
        ("mlflow=", "no tracker 'mlflow='"),
        ("mlflow=./mlruns", "plain folder"),
        ("mlflow=file:///tmp/x", "plain folder"),
        ("mlflow=ftp://here/x", "MLflow cannot keep runs"),
        ("mlflow=http://", "names no server"),
        ("mlflow=http://here:99999", "MLflow cannot keep runs"),
        ("mlflow=sqlite://x.db", "names no file"),
        ("mlflow=sqlite:///", "names no file"),
        ("mlflow=\x1b[31m", "MLflow cannot keep runs"),
        ("wandb=sometimes", "not a mode of W&B"),
        ("wandb=online", "needs an API key"),
    ],
)
def test_bad_words_are_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_track(text, {})
    assert caught.value.hint
    assert "\x1b" not in caught.value.message


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "find_spec", lambda _: None)
    with pytest.raises(NotInstalledError, match="package wandb") as caught:
        parse_track("wandb", {})
    assert "metalmark[wandb]" in caught.value.hint


def test_passwords_go_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    wish = parse_track("mlflow=https://ann:s3cret@there:5000/x?token=t0ken", {})
    (found,) = wish.destinations
    assert found.place == "https://there:5000/x"
    assert wish.uri == "https://ann:s3cret@there:5000/x?token=t0ken"
    assert without_user("postgresql://u:p@db/x") == "postgresql://db/x"
    monkeypatch.setenv("WANDB_API_KEY", "abcd1234")
    assert redact("no route to https://ann:s3cret@there, key abcd1234") == "no route to https://there, key ***"
    with pytest.raises(UsageError) as caught:
        parse_track("mlfow=https://ann:s3cret@there", {})
    assert "s3cret" not in str(caught.value)


def test_the_commands_answer_bad_words(cli: Cli) -> None:
    for arguments in (
        ("train", "mnist-mlp", "--track", "excel"),
        ("bench", "mnist-mlp", "--track", "mlflow=./runs"),
        ("runs", "push", "--to", "wandb=never", "last"),
        ("runs", "push", "--to", "mlflow", "nosuchrun"),
        ("track", "sync", "nosuchrun"),
        ("track", "delete", "nosuchrun"),
    ):
        run = cli(*arguments)
        assert run.returncode == 2, run.stderr
        assert "Traceback" not in run.stderr
        assert run.stderr.startswith("metalmark: ")


PARENT = """
import sys
sys.argv = ["metalmark", *sys.argv[1:]]
from metalmark.cli import main
try:
    main()
finally:
    print(sorted(set(sys.modules) & {"mlflow", "wandb", "torch", "tensorflow", "jax", "mlx"}), file=sys.stderr)
"""


def test_the_command_itself_imports_no_tracker(tmp_path: Path) -> None:
    arguments = ["bench", "fake", "-f", "fake", "--steps", "10", "--seconds", "0.2", "-q", "--track", "wandb=offline"]
    done = subprocess.run([sys.executable, "-c", PARENT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    assert list((tmp_path / "wandb" / "data").rglob("*")), "artifacts are staged elsewhere"
