from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metalmark.errors import UsageError
from metalmark.model.measurement import BenchRun
from metalmark.model.plan import Dtype, Settings
from metalmark.model.run import Flag, Gpu
from metalmark.report.html.site import MARK, find_bundles, write_site
from metalmark.results.leaderboard import board_of, slug
from metalmark.store.bundle import encode_bundle
from tests.conftest import Cli
from tests.samples import MACHINE, completed, failed, plan, record

SLOW = msgspec.structs.replace(MACHINE, chip="Slow chip")
GPU = msgspec.structs.replace(MACHINE, chip="Big chip", gpus=(Gpu(name="Big GPU"),))
HOSTILE = "</script><script>alert(1)</script>"


def cells(step_s: float, repeats: int = 3, noise: float = 0.002, **changes: Any) -> list[BenchRun]:
    """One cell: `repeats` processes that differ by `noise`."""
    return [record(completed(step_s * (1 + noise * number)), repeat=number, **changes) for number in range(repeats)]


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    folder = tmp_path / "bundles"
    folder.mkdir()
    flag = (Flag(name="on_battery", evidence=f"the charger was out {HOSTILE}"),)
    evil = cells(0.1, 1, plan=plan(workload=f"{HOSTILE}../../up.py:x"), sweep="sweep00009")
    lost = [record(failed(message="no room"), machine=SLOW, cell=5, plan=plan(framework="jax"), sweep="sweep00008")]
    sets = {
        "a.bundle": cells(0.010) + evil,
        "b.bundle": cells(0.020, machine=SLOW, sweep="sweep00002", flags=flag) + lost,
        "c.bundle": cells(0.0101, machine=GPU, sweep="sweep00003", noise=0.02)
        + cells(0.001, machine=GPU, sweep="sweep00004", plan=plan(settings=Settings(dtype=Dtype.BFLOAT16)))
        + cells(0.001, machine=GPU, sweep="sweep00005", plan=plan(params={"batch_size": 64})),
    }
    for name, records in sets.items():
        (folder / name).write_bytes(encode_bundle(records))
    return folder


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.scripts += tag == "script"
        self.ids |= {str(given["id"])} if given.get("id") else set()
        self.found += [str(given[name]) for name in ("href", "src", "action") if given.get(name)]


def test_like_with_like_only() -> None:
    records = cells(0.010) + cells(0.001, machine=GPU, sweep="sweep00004", plan=plan(params={"batch_size": 64}))
    records += cells(0.002, sweep="sweep00006", plan=plan(settings=Settings(dtype=Dtype.BFLOAT16)))
    questions = board_of([records]).questions["mnist-mlp"]
    assert len(questions) == 3
    assert all(entry.rank == 1 for question in questions for entry in question.entries)
    assert {"batch size 32", "batch size 64"} <= {part for one in questions for part in one.words.split(", ")}


def test_ranks_are_shared_where_intervals_meet() -> None:
    records = cells(0.010) + cells(0.0101, machine=GPU, sweep="sweep00003", noise=0.02)
    records += cells(0.020, machine=SLOW, sweep="sweep00002")
    (question,) = board_of([records]).questions["mnist-mlp"]
    assert [entry.rank for entry in question.entries] == [1, 1, 3]
    assert [entry.samples_s for entry in question.entries] == sorted(
        (entry.samples_s for entry in question.entries), reverse=True
    )
    for entry in question.entries:
        assert entry.low is not None
        assert entry.high is not None
        assert entry.low < entry.samples_s < entry.high


def test_a_bundle_that_claims_the_sweep_of_another_hides_nothing() -> None:
    ours = cells(0.010)
    theirs = cells(0.001, machine=GPU, started_at="2026-12-31T00:00:00Z")
    (question,) = board_of([ours, theirs]).questions["mnist-mlp"]
    assert [entry.machine.split(",")[0] for entry in question.entries] == ["Big chip", "Test chip"]
    more = cells(0.030, started_at="2026-12-31T00:00:00Z")
    (question,) = board_of([ours, more]).questions["mnist-mlp"]
    assert len(question.entries[0].cell.processes) == 6


def test_what_a_build_wants_said_is_said(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    slow = record(completed(0.2, notes=("this is not its speed elsewhere.",)), plan=plan(framework="mlx"))
    (tmp_path / "in" / "a.bundle").write_bytes(encode_bundle([slow]))
    write_site(find_bundles(tmp_path / "in"), tmp_path / "out")
    (workload,) = (tmp_path / "out" / "workload").iterdir()
    assert "mlx: this is not its speed elsewhere." in workload.read_text()


def test_one_process_is_marked() -> None:
    (question,) = board_of([cells(0.010, 1)]).questions["mnist-mlp"]
    assert question.entries[0].few


def test_a_name_becomes_a_file_and_no_path() -> None:
    for name in ("../../etc/passwd", "mnist-mlp", "a" * 300, "", "Ünï", "con", HOSTILE):
        assert re.fullmatch(r"[a-z0-9-]{1,60}", slug(name))
    assert slug("a b") != slug("a-b")


def test_the_site(bundles: Path, tmp_path: Path) -> None:
    out = tmp_path / "public"
    site = write_site(find_bundles(bundles), out)
    assert site.refused == {}
    assert site.machines == 3
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.html")} == set(site.pages)
    ids: dict[Path, set[str]] = {}
    links: list[tuple[Path, str]] = []
    for name in site.pages:
        path = (out / name).resolve()
        reader = Links()
        text = path.read_text()
        reader.feed(text)
        assert reader.scripts == 1, "the page's own, and no other"
        assert HOSTILE not in text
        assert "http://" not in re.sub(r"http://www\.w3\.org/\S+", "", text)
        assert "https://" not in text
        ids[path] = reader.ids
        links += [(path, link) for link in reader.found]
    for path, link in links:
        assert not link.startswith("/"), "a site may lie below any address"
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        assert there in ids, link
        assert not anchor or anchor in ids[there]
    board = (out / "workload" / f"{slug('mnist-mlp')}.html").read_text()
    for part in ("Slow chip", "on_battery", "the charger was out", "out of memory: no room", "batch size 64"):
        assert part in board
    assert re.search(r'<tr class="flagged">.*?Slow chip', board, re.DOTALL)
    machine = next(out.glob("machine/slow-chip*.html")).read_text()
    assert "3 of 3" in machine
    assert "no room" in machine


def test_written_again_it_drops_what_is_gone_and_touches_nothing_else(bundles: Path, tmp_path: Path) -> None:
    out = tmp_path / "public"
    first = set(write_site(find_bundles(bundles), out).pages)
    (out / "CNAME").write_text("mine")
    (out / MARK).write_text((out / MARK).read_text() + "CNAME\n../bundles/a.bundle\n")
    (bundles / "b.bundle").unlink()
    second = set(write_site(find_bundles(bundles), out).pages)
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.html")} == second
    assert first - second == {f"machine/{path}" for path in (page.removeprefix("machine/") for page in first - second)}
    assert first - second
    assert (out / "CNAME").read_text() == "mine"
    assert (bundles / "a.bundle").exists()


def test_a_folder_of_something_else_is_left_alone(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="holds other things"):
        write_site(find_bundles(bundles), tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]


def test_what_is_refused_is_named(cli: Cli, bundles: Path, tmp_path: Path) -> None:
    (bundles / "d.bundle").write_bytes((bundles / "a.bundle").read_bytes()[:-9])
    twin = cells(0.5)[0]
    original = record(completed(0.5), id=twin.id)
    (bundles / "e.bundle").write_bytes(encode_bundle([twin]))
    (bundles / "f.bundle").write_bytes(encode_bundle([msgspec.structs.replace(original, cell=9)]))
    run = cli("report", "--site", tmp_path / "public", bundles)
    assert run.returncode == 1
    assert "left out: d.bundle" in run.stderr
    assert "left out: f.bundle" in run.stderr
    assert str(tmp_path / "public" / "index.html") in run.stdout
    assert "2 files of the folder were refused" in (tmp_path / "public" / "index.html").read_text()


def test_bad_words(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x").write_text("no bundle")
    for words in ([tmp_path / "none"], [tmp_path / "empty"], [tmp_path / "bad"], [], [tmp_path, "-o", "x"]):
        run = cli("report", "--site", tmp_path / "out", *words)
        assert run.returncode == 2, words
        assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()
