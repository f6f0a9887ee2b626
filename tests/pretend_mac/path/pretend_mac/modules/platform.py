"""platform on a Mac."""

from __future__ import annotations

from typing import Any

from pretend_mac import machine


def changed(real: Any) -> dict[str, Any]:
    # A Python that was built with an older SDK calls macOS 26 "16.0"; the scene has what its own call gave.
    version = "16.0" if str(machine.scene()["macos"]).startswith("26") else machine.scene()["macos"]
    architecture = machine.scene()["architecture"]

    def mac_ver(*_: object) -> tuple[str, tuple[str, str, str], str]:
        return version, ("", "", ""), architecture

    def no_os_release() -> dict[str, str]:
        raise OSError("Unable to read files /etc/os-release, /usr/lib/os-release")

    return {
        "system": lambda: "Darwin",
        "machine": lambda: architecture,
        "processor": lambda: "arm",
        "mac_ver": mac_ver,
        "freedesktop_os_release": no_os_release,
        "platform": lambda *_: f"macOS-{version}-{architecture}-{real.architecture()[0]}",
        "libc_ver": lambda *_: ("", ""),
    }
