from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from metalmark.report.compare_page import comparison_table
from metalmark.store.store import Store
from metalmark.web import run_page
from metalmark.web.app import make_app
from metalmark.web.guard import Rules
from tests.compare.test_kinds import several, training
from tests.samples import completed, record
from tests.web.conftest import HOSTILE, Ask


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


MOMENT = "2026-11-15T08:00:00Z"


def runs_of(text: str) -> list[str]:
    return re.findall(r'<a href="/run/(\w+)"', text)


PAGES = [
    "/", "/?q=conv256", "/?q=%3Cscript%3E", "/run/evil000000", "/sweep/sweepevil1", "/sweep/sweepab001",
    "/run/cell000000", "/live", "/live/sweepab001", "/compare?run=sweepab001&by=framework",
    "/compare?run=cell000000&run=evil000000", "/compare?run=" + HOSTILE, "/run/" + "x" * 300, "/find/last",
]  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_nothing_on_a_page_runs_or_leads_elsewhere(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status_code in (200, 303, 400, 404)
    page = read(answer.text)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "style")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        if tag == "script":
            assert str(attributes["src"]).startswith("/static/")
        for name in ("href", "src", "action", "formaction"):
            if attributes.get(name):
                assert re.match(r"(/(?!/)|#)", str(attributes[name])), attributes
    assert "\x1b" not in answer.text
    assert "alert(1)</script>" not in answer.text


def test_hostile_names_are_text(ask: Ask) -> None:
    for path in ("/", "/run/evil000000", "/sweep/sweepevil1", "/?" + urlencode({"q": HOSTILE})):
        answer = ask(path)
        assert HOSTILE in read(answer.text).text or HOSTILE in str(read(answer.text).tags)
        assert HOSTILE not in answer.text


def test_the_list_goes_page_by_page_and_back(ask: Ask) -> None:
    seen, query = [], ""
    for _ in range(5):
        text = ask(f"/{query}").text
        seen.append(runs_of(text))
        older = re.search(r'name="before" value="(\w+)"', text)
        if older is None:
            break
        query = f"?before={older[1]}"
    assert [len(page) for page in seen] == [50, 50, 20]
    assert len({run for page in seen for run in page}) == 120
    assert seen[0][0] == "evil000000", "the newest first"
    newer = re.search(r'name="after" value="(\w+)"', ask(query and f"/{query}").text)
    assert newer is not None
    assert runs_of(ask(f"/?after={newer[1]}").text) == seen[1]
    assert runs_of(ask("/?before=nosuchrun").text) == seen[0]


@pytest.mark.parametrize(
    ("words", "count"),
    [("torch", 50), ("jax", 3), ("JAX", 3), ("jax training", 3), ("jax conv256", 0), ("main", 1), ("sweepab001", 6),
     ("cell0100", 1), ("%", 0), ("_", 0), ("out of memory", 1), ("2026-11-15T10", 1), ("'; DROP TABLE runs; --", 0)],
)  # fmt: skip
def test_search(ask: Ask, words: str, count: int) -> None:
    answer = ask("/?" + urlencode({"q": words}))
    assert answer.status_code == 200
    assert len(runs_of(answer.text)) == count
    if not count:
        assert "No run holds all of these words" in answer.text


def test_what_was_chosen_on_another_page_stays_chosen(ask: Ask) -> None:
    page = read(ask("/?q=jax&run=cell000000&run=cell100000").text)
    checked = [a["value"] for tag, a in page.tags if a.get("type") == "checkbox" and "checked" in a]
    assert sorted(map(str, checked)) == ["cell000000", "cell100000"]


def test_a_run_that_is_added_shows_up(tmp_path: Path, client_of: Callable[..., TestClient]) -> None:
    path = tmp_path / "store.sqlite3"
    with Store(path):
        pass
    client = client_of(path)
    assert "Nothing has been measured yet" in client.get("/").text
    with Store(path) as store:
        store.add(record(completed(), id="fresh00000"))
        assert runs_of(client.get("/").text) == ["fresh00000"]


def test_a_run_and_its_sweep(ask: Ask) -> None:
    page = ask("/run/cell000000")
    assert page.status_code == 200
    for part in (
        "mnist-mlp training batch 32 torch cpu",
        "loss 2.3 → 0.1",
        "Named main",
        "takes 10.0 ms per step",
        '/sweep/sweepab001"',
        '/run/cell010000"',
    ):
        assert part in page.text
    assert "<svg" in page.text
    sweep = ask("/sweep/sweepab001").text
    assert "by=framework" in sweep
    assert "<svg" in sweep
    assert ask("/find/main").headers["location"] == "/run/cell000000"
    assert ask("/find/sweepab001").headers["location"] == "/sweep/sweepab001"
    assert ask("/find/last").headers["location"] == "/sweep/sweepevil1"


@pytest.mark.parametrize("path", ["/nope", "/run/none000000", "/sweep/none", "/live/none", "/find/x"])
def test_what_is_not_there_is_a_404_with_words(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer.status_code == 404
    assert 'href="/"' in answer.text
    assert "Traceback" not in answer.text


def test_compare_says_what_the_command_says(ask: Ask, filled: Path) -> None:
    from metalmark.app.compare import compare

    answer = ask("/compare?run=cell100000&run=cell000000")
    assert answer.status_code == 200
    (found,) = compare("cell000000", "cell100000", store=filled)
    text = " ".join(read(answer.text).text.split())
    table = comparison_table(found)
    for words in (table.caption, *table.rows[0], *table.notes):
        assert " ".join(words.split()) in text
    assert "faster" in text
    assert "cell100000 (B) against cell000000 (A)" in text, "the oldest is the baseline"
    swapped = ask("/compare?run=cell100000&run=cell000000&base=cell100000").text
    assert "slower" in swapped


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "Choose runs"),
        ("run=cell000000", "Compare it with what?"),
        ("run=cell000000&run=many000000", "is not like for like"),
        ("run=cell000000&run=cell010000", "does not differ from itself"),
        ("run=/etc/passwd&run=cell000000", "There is no run, sweep or name"),
        ("run=../store.sqlite3&run=cell000000", "There is no run, sweep or name"),
        ("run=sweepab001&by=colour", "say nothing of"),
        ("&".join(f"run=many{n:06d}" for n in range(61)), "too many"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(ask: Ask, query: str, said: str) -> None:
    answer = ask(f"/compare?{query}")
    assert answer.status_code == 400
    assert said in read(answer.text).text


def test_anyway_is_marked(ask: Ask) -> None:
    answer = ask("/compare?run=cell000000&run=many000000&anyway=1")
    assert answer.status_code == 200
    assert "not like for like" in answer.text


def test_trainings_and_watched_runs_are_compared_too(tmp_path: Path, client_of: Callable[..., TestClient]) -> None:
    path = tmp_path / "store.sqlite3"
    with Store(path) as store:
        for device, accuracies in (("cpu", (0.850, 0.852)), ("any", (0.880, 0.882))):
            runs = [training(value, seed, device=device, started_at=MOMENT) for seed, value in enumerate(accuracies)]
            store.add_all(runs)
            store.name(f"on-{device}", [run.id for run in runs])
        store.add_all([*several("slowloop"), *several("fastloop", step_s=0.05)])
    client = client_of(path)
    page = read(client.get("/compare?run=on-cpu&run=on-any&base=on-cpu&target=84%25").text).text
    assert "on-any is more accurate than on-cpu: 88.10% against 85.10%" in page
    assert "time to 84.00%" in page
    assert "--target-accuracy 84" in page
    loops = client.get("/compare?run=slowloop&run=fastloop&base=slowloop").text
    assert "fastloop is 2.00x faster than slowloop" in loops
    for query, said in {"run=slowloop": "Only runs of one kind", "run=on-any&target=x": "not an accuracy"}.items():
        answer = client.get(f"/compare?run=on-cpu&{query}")
        assert answer.status_code == 400
        assert said in read(answer.text).text


def test_the_words_to_copy_are_quoted_for_a_shell(ask: Ask) -> None:
    answer = ask("/compare?" + urlencode({"run": "x; rm -rf ~"}))
    assert "metalmark compare 'x; rm -rf ~'" in read(answer.text).text


def test_a_broken_store_is_said(tmp_path: Path, client_of: Callable[..., TestClient]) -> None:
    path = tmp_path / "store.sqlite3"
    path.write_bytes(b"not a store at all, only text" * 100)
    answer = client_of(path).get("/")
    assert answer.status_code == 503
    assert "not a SQLite file" in answer.text


def test_a_fault_of_ours_shows_no_traceback(
    filled: Path, client_of: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(run_page, "answer", broken)
    client = client_of(filled)
    client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    answer = client.get("/run/cell000000")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "content-security-policy" in answer.headers


def test_static_files_are_those_few(ask: Ask) -> None:
    for name, kind in {"page.css": "text/css", "page.js": "text/javascript", "live.js": "text/javascript",
                       "icon.svg": "image/svg+xml"}.items():  # fmt: skip
        assert ask(f"/static/{name}").headers["content-type"].startswith(kind)
    for name in ("serve.css", "app.py", "..%2fapp.py", "page.py", ""):
        assert ask(f"/static/{name}").status_code == 404


def test_a_damaged_run_is_named_and_costs_no_page_of_others(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    with Store(path) as store:
        store.add_all([record(id=f"bench{number:05}", repeat=number) for number in range(3)])
        store.database.connection.execute(
            "UPDATE runs SET body = ? WHERE id = 'bench00001'", (b'{"plan":' + b"[" * 99_999,)
        )
        store.database.connection.execute("INSERT INTO sweeps VALUES ('sweep00001', '2026-11-15T08:00:00Z', x'ff')")
    client = TestClient(make_app(path, Rules(hosts=frozenset({"testserver"}))), raise_server_exceptions=False)
    assert "bench00001" in client.get("/").text
    for page in ("/sweep/sweep00001", "/run/bench00000", "/compare?run=bench00000&run=bench00002"):
        answer = client.get(page)
        assert "Run bench00001 of" in answer.text, page
        assert "nested too deeply" in answer.text
        assert answer.status_code == 200 or "compare" in page
    assert "Sweep sweep00001 of" in client.get("/sweep/sweep00001").text
    alone = client.get("/run/bench00001")
    assert alone.status_code == 500
    assert "metalmark runs delete bench00001" in alone.text
