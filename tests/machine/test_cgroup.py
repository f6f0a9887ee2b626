"""Container limits, on small trees in the shape of /sys/fs/cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metalmark.machine.cgroup import Limits, limits, parse_membership


def tree(root: Path, files: dict[str, str], membership: str) -> Limits:
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "membership").write_text(membership)
    return limits(root / "cgroup", root / "membership")


def test_version_2_takes_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    files = {
        "pod/cpu.max": "400000 100000\n",
        "pod/box/cpu.max": "max 100000\n",
        "pod/memory.max": "max\n",
        "pod/box/memory.max": "2147483648\n",
    }
    assert tree(tmp_path, files, "0::/pod/box\n") == Limits(cores=4, memory_bytes=2**31)


def test_version_1_reads_each_controller(tmp_path: Path) -> None:
    files = {
        "cpu/docker/x/cpu.cfs_quota_us": "150000\n",
        "cpu/docker/x/cpu.cfs_period_us": "100000\n",
        "memory/docker/x/memory.limit_in_bytes": "1073741824\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    membership = "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n0::/\n"
    assert tree(tmp_path, files, membership) == Limits(cores=2, memory_bytes=2**30)


def test_a_container_that_sees_only_the_host_s_path_finds_its_own_root(tmp_path: Path) -> None:
    assert tree(tmp_path, {"cpu.max": "200000 100000"}, "0::/../../host/only\n") == Limits(cores=2)


def test_less_than_a_core_is_one(tmp_path: Path) -> None:
    assert tree(tmp_path, {"cpu.max": "10000 100000"}, "0::/\n") == Limits(cores=1)


@pytest.mark.parametrize("text", ["", "max", "max 100000", "-1", "0 100000", "100000", "100000 0", "nonsense here"])
def test_no_quota(tmp_path: Path, text: str) -> None:
    assert tree(tmp_path, {"cpu.max": text, "memory.max": text.split(" ")[0] + "x"}, "0::/\n") == Limits()


def test_version_1_without_a_quota(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert tree(tmp_path, files, "1:cpu:/\n") == Limits()


def test_nothing_mounted(tmp_path: Path) -> None:
    assert limits(tmp_path / "none", tmp_path / "nothing") == Limits()


def test_this_machine_answers() -> None:
    found = limits()
    assert found.cores is None or found.cores >= 1
    assert found.memory_bytes is None or found.memory_bytes > 0


@given(st.text())
def test_any_membership_is_read(text: str) -> None:
    for controller, parts in parse_membership(text):
        assert controller in ("", "cpu", "memory")
        assert not {"", ".", ".."} & set(parts)
