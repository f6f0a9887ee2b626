"""Faults of the store: damage in every column, bits turned in the file, a full disk, locks, kill -9 while it writes.

python benchmarks/attack/store.py [--quick]

After each fault every verb that reads the store is asked, in this process, as a user would. A failure is an exit code
but 0, 1, 2 or 74, a traceback, a page of the server with an error of its own, damage in one body that costs another run
or can't be deleted, or a run that was stored before a kill and is not there whole afterwards. --quick: a tenth of the
bits and kills, to see that it runs.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest import mock

import msgspec
from click.testing import CliRunner
from starlette.testclient import TestClient

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.samples import plan, record, training_run, watched_run  # noqa: E402

from metalmark.cli import main as metalmark_main  # noqa: E402
from metalmark.model.plan import Sweep  # noqa: E402
from metalmark.store.store import Store  # noqa: E402
from metalmark.web.app import make_app  # noqa: E402
from metalmark.web.guard import Rules  # noqa: E402

ALLOWED = {0, 1, 2, 74}
BENCH = [f"bench{number:05}" for number in range(4)]
SWEEP, OTHER = "sweep00001", "sweep00002"
OTHERS = [f"other{number:05}" for number in range(2)]
IDS = [*BENCH, *OTHERS, "training01", "watched001"]
DAMAGED = "bench00001"
BITS, KILLS = 300, 40
BODIES: dict[str, bytes] = {
    "empty": b"", "null": b"null", "not text": b'{"schema":2,"kind":"\xff"}',
    "nested": b'{"schema":2,"plan":' + b"[" * 100_000,
    "digits": b'{"schema":2,"cell":' + b"9" * 400 + b"}", "many digits": b'{"schema":' + b"9" * 5000 + b"}",
    "zeros": b"\0" * 4096, "another kind": b'{"schema":2,"kind":"watch"}', "newer": b'{"schema":99,"kind":"bench"}',
    "no kind": b'{"schema":2}', "a list": b"[]", "bom": b"\xef\xbb\xbf{}",
}  # fmt: skip
VALUES: dict[str, tuple[str, ...]] = {
    "TEXT": ("''", "CAST(x'ff00fe' AS TEXT)", "CAST(x'1b5b33316d' AS TEXT)", "'9999-99-99T99:99:99Z'",
             "'" + "x" * 5000 + "'"),
    "INTEGER": ("-1", "9223372036854775807", "0"),
    "REAL": ("9e999", "-9e999", "0.0", "-1.0", "1e308", "5e-324"),
    "BLOB": ("x''", "x'ff00fe'", "x'2f6e6f7768657265'"),
}  # fmt: skip
VERBS: tuple[tuple[str, ...], ...] = (
    ("runs", "list"), ("runs", "list", "--json"), ("runs", "show", SWEEP), ("runs", "show", "last", "--json"),
    ("runs", "show", *IDS), ("runs", "show", SWEEP, "--csv"), ("compare", SWEEP, "--by", "framework"),
    ("compare", BENCH[0], BENCH[2]), ("runs", "export", "-o", "out.json"), ("runs", "export", "--bundle", "out.bundle"),
    ("report", "-o", "out.html", SWEEP), ("report", "-o", "out.md", *IDS), ("runs", "name", SWEEP, "main"),
    ("runs", "tag", BENCH[0], "tagged"), ("runs", "unname", "main"), ("runs", "import", "good.json"),
)  # fmt: skip
PAGES = ("/", f"/sweep/{SWEEP}", f"/run/{BENCH[0]}", f"/run/{DAMAGED}", "/run/training01", "/run/watched001",
         "/?q=torch", f"/compare?run={BENCH[0]}&run={BENCH[2]}", "/live", "/find/main")  # fmt: skip


class Attack:
    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.sound = folder, folder / "store.sqlite3", folder / "sound"
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        with Store(self.store) as store:
            store.add_all([record(id=name, repeat=number) for number, name in enumerate(BENCH)])
            store.add_all([record(id=name, repeat=number, sweep=OTHER) for number, name in enumerate(OTHERS)])
            store.add_all([training_run(id="training01"), watched_run(id="watched001")])
            store.add_sweep(Sweep(id=SWEEP, created_at="2026-11-15T08:00:00.000000Z", plans=(plan(),), repeats=4))
            store.name("main", [SWEEP])
        with closing(sqlite3.connect(self.store)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(self.store, self.sound)
        self.call("runs", "export", "-o", "good.json")

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Begin with a sound store, and count the fault."""
        for path in self.folder.glob("store.sqlite3*"):
            path.unlink()
        shutil.copy(self.sound, self.store)
        self.counts[name.partition(":")[0]] += 1
        self.name = name
        yield

    def change(self, statement: str, *values: object) -> bool:
        """Change the store behind Metalmark's back; False where SQLite itself refuses the value."""
        with closing(sqlite3.connect(self.store)) as connection:
            try:
                connection.execute(statement, values)
            except sqlite3.Error:
                return False
            connection.commit()
            return True

    def call(self, *arguments: str) -> tuple[int, str]:
        """Run a command line in this process. Return its exit code and what it printed on both streams."""
        with mock.patch.object(sys, "argv", ["metalmark", *arguments]), CliRunner().isolation() as streams:
            try:
                metalmark_main()
                code: object = 0
            except SystemExit as ended:
                code = ended.code
            except BaseException as error:  # noqa: BLE001  whatever escapes is what is looked for
                code = -2
                said = "".join(traceback.format_exception(error))
            if code != -2:
                said = (streams[0].getvalue() + streams[1].getvalue()).decode(errors="replace")
        return code if isinstance(code, int) else 0, said

    def ask(self, *arguments: str) -> int:
        code, said = self.call(*arguments)
        if code not in ALLOWED or "Traceback (most recent call last)" in said:
            self.fail(f"{' '.join(arguments)[:80]}: exit {code}: {said[-700:]}")
        return code

    def fail(self, what: str) -> None:
        self.failures.append(f"{self.name}: {what}")

    def ask_everything(self, *, pages: bool = True, verbs: Sequence[tuple[str, ...]] = VERBS) -> None:
        for arguments in verbs:
            self.ask(*arguments)
        if not pages:
            return
        client = TestClient(make_app(self.store, Rules(hosts=frozenset({"testserver"}))), raise_server_exceptions=False)
        for page in PAGES:
            answer = client.get(page)
            # A sentence on damage is a page of ours; what went wrong unseen is another one.
            if answer.status_code >= 500 and "Something went wrong here" in answer.text:
                self.fail(f"{page}: {answer.status_code}")

    # The faults

    def bodies(self) -> None:
        """Damage in one body costs that run alone, named, and it can be deleted."""
        for name, body in BODIES.items():
            with self.fault(f"bodies: {name}"):
                assert self.change("UPDATE runs SET body = ? WHERE id = ?", body, DAMAGED)
                self.ask_everything(verbs=VERBS[:-1])
                for arguments in (("runs", "show", SWEEP), ("runs", "export", "-o", "out.json"),
                                  ("compare", OTHER, SWEEP), ("report", "-o", "out.html", SWEEP)):  # fmt: skip
                    code, said = self.call(*arguments)
                    if code != 1 or DAMAGED not in said:
                        self.fail(f"{arguments}: exit {code}, and the damaged run is not named: {said[-300:]}")
                exported = msgspec.json.decode((self.folder / "out.json").read_bytes())["records"]
                if {one["id"] for one in exported} != set(IDS) - {DAMAGED}:
                    self.fail("other runs are missing in the export")
                if self.call("runs", "list")[0] != 0 or self.call("runs", "show", DAMAGED)[0] != 2:
                    self.fail("list fails, or show of the damaged run alone does not")
                if self.call("runs", "delete", DAMAGED, "--yes")[0] != 0 or self.call("runs", "show", SWEEP)[0] != 0:
                    self.fail("the damaged run can't be deleted")
            with self.fault(f"mended: {name}"):
                assert self.change("UPDATE runs SET body = ? WHERE id = ?", body, DAMAGED)
                if self.call("runs", "import", "good.json")[0] != 0 or self.call("runs", "show", DAMAGED)[0] != 0:
                    self.fail("an import does not mend the run")

    def columns(self) -> None:
        with closing(sqlite3.connect(self.sound)) as connection:
            found = [(table, row[1], row[2]) for table in ("runs", "sweeps", "names")
                     for row in connection.execute(f"PRAGMA table_info({table})")]  # fmt: skip
        for table, column, kind in found:
            for value in VALUES[kind]:
                with self.fault(f"columns: {table}.{column} = {value[:30]}"):
                    where = f"WHERE id = '{DAMAGED}'" if table == "runs" else ""
                    if self.change(f"UPDATE {table} SET {column} = {value} {where}"):
                        self.ask_everything()

    def bits(self, number: int) -> None:
        """Turn one bit anywhere in the file, so that SQLite's own structures are hit too."""
        chance = random.Random(16)
        data = self.sound.read_bytes()
        verbs = (*VERBS[:3], VERBS[8], ("runs", "delete", DAMAGED, "--yes"))
        for turn in range(number):
            with self.fault(f"bits: {turn}"):
                damaged = bytearray(data)
                # Every third one in the first page, which holds the header and the list of tables.
                place = chance.randrange(4096 if turn % 3 == 0 else len(data))
                damaged[place] ^= 1 << chance.randrange(8)
                self.store.write_bytes(damaged)
                self.name = f"bits: {turn}, byte {place}"
                self.ask_everything(pages=turn % 10 == 0, verbs=verbs)

    def files(self) -> None:
        data = self.sound.read_bytes()
        damages: dict[str, Callable[[], object]] = {
            **{f"cut to {size}": (lambda size=size: self.store.write_bytes(data[:size]))  # type: ignore[misc]
               for size in (0, 1, 15, 16, 100, 1000, 4095, 4096, 5000, len(data) // 2, len(data) - 1)},
            "text": lambda: self.store.write_text("hello"), "zeros": lambda: self.store.write_bytes(b"\0" * 8192),
            "no runs": lambda: self.change("DROP TABLE runs"), "no names": lambda: self.change("DROP TABLE names"),
            "no sweeps": lambda: self.change("DROP TABLE sweeps"),
            **{f"version {number}": (lambda number=number: self.change(f"PRAGMA user_version = {number}"))  # type: ignore[misc]
               for number in (0, 1, 3, 2**31 - 1, -1)},
            "another program's": lambda: self.change("PRAGMA application_id = 7"),
            "no column": lambda: self.change("ALTER TABLE runs RENAME COLUMN cell TO other"),
            "foreign": self._foreign, "a folder": self._folder, "a pipe": self._pipe, "a loop": self._loop,
            "a device": self._device, "rubbish beside": lambda: Path(f"{self.store}-wal").write_bytes(b"\xff" * 5000),
        }  # fmt: skip
        for name, damage in damages.items():
            with self.fault(f"files: {name}"):
                damage()
                self.ask_everything(verbs=VERBS[:-1])
                for path in (self.store, *self.folder.glob("store.sqlite3*")):
                    with suppress(OSError):
                        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()

    def _foreign(self) -> None:
        self.store.unlink()
        self.change("CREATE TABLE songs (title TEXT)")

    def _folder(self) -> None:
        self.store.unlink()
        self.store.mkdir()

    def _pipe(self) -> None:
        self.store.unlink()
        os.mkfifo(self.store)

    def _loop(self) -> None:
        self.store.unlink()
        self.store.symlink_to(self.store)

    def _device(self) -> None:
        self.store.unlink()
        self.store.symlink_to("/dev/null")

    def unwritable(self) -> None:
        writing = (
            ("runs", "name", SWEEP, "other"),
            ("runs", "delete", DAMAGED, "--yes"),
            ("runs", "import", "more.json"),
        )
        (self.folder / "more.json").write_bytes((self.folder / "good.json").read_bytes().replace(b"bench0", b"third0"))
        with self.fault("locked"), closing(sqlite3.connect(self.store, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            if self.ask(*writing[0]) != 2:
                self.fail("a name was given in a locked store")
            self.ask("runs", "list")
        with self.fault("full disk"):
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # SQLite's log takes more for any change
            try:
                codes = [self.ask(*arguments) for arguments in writing]
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            self.expect_whole(IDS)
            if 0 in codes:
                self.fail("something was written where there is no room")
        with self.fault("read-only"):
            self.store.chmod(0o444)
            self.folder.chmod(0o555)
            root = os.geteuid() == 0
            if root:
                os.seteuid(65534)
            try:
                for arguments in (*writing, *VERBS[:7]):
                    self.ask(*arguments)
            finally:
                if root:
                    os.seteuid(0)
                self.folder.chmod(0o755)
                self.store.chmod(0o644)
            self.expect_whole(IDS)

    def kills(self, number: int) -> None:
        """End a process that writes runs one after another, at any moment."""
        chance = random.Random(16)
        script = ("import sys\nfrom pathlib import Path\nfrom tests.samples import record\n"
                  "from metalmark.store.store import Store\n"
                  "with Store(Path(sys.argv[1])) as store:\n    while True:\n        run = record()\n"
                  "        store.add(run)\n"
                  "        print(run.id, flush=True)\n")  # fmt: skip
        for turn in range(number):
            with self.fault(f"kills: {turn}"):
                command = [sys.executable, "-c", script, str(self.store)]
                process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
                assert process.stdout is not None
                first = process.stdout.readline()
                time.sleep(chance.random() * 0.1)
                process.send_signal(signal.SIGKILL)
                rest = process.stdout.read()
                process.wait()
                process.stdout.close()
                # The last line may be cut; what it names was committed before it was printed.
                stored = [line.decode() for line in (first + rest).splitlines() if len(line) == 10]
                self.counts["runs stored before a kill"] += len(stored)
                self.expect_whole([*IDS, *stored])

    def expect_whole(self, ids: Sequence[str]) -> None:
        with closing(sqlite3.connect(self.store)) as connection:
            if (said := connection.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
                self.fail(f"SQLite finds damage: {said}")
        with Store(self.store, readonly=True) as store:
            found = {run.id for run in store.load(store.rows())}
        if not found >= set(ids):
            self.fail(f"lost: {sorted(set(ids) - found)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    share = 10 if parser.parse_args().quick else 1
    warnings.simplefilter("ignore")
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="metalmark-") as name:
        os.environ.update(METALMARK_STORE=str(Path(name, "store.sqlite3")), XDG_DATA_HOME=str(Path(name, "data")))
        Path(name).chmod(0o755)
        os.chdir(name)
        attack = Attack(Path(name))
        attack.bodies()
        attack.columns()
        attack.files()
        attack.unwritable()
        attack.bits(BITS // share)
        attack.kills(KILLS // share)
        os.chdir(ROOT)
    for kind, count in attack.counts.items():
        print(f"{kind.replace(' ', '_')}: {count}")
    for failure in attack.failures[:40]:
        print(failure, file=sys.stderr)
    print(f"seconds: {time.monotonic() - begin_s:.0f}")
    print(f"failures: {len(attack.failures)}")
    return 1 if attack.failures else 0


if __name__ == "__main__":
    sys.exit(main())
