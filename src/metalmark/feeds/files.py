"""The open-file limit: raised to what a loader's workers need, or said clearly where it can't be."""

from __future__ import annotations

import resource

from metalmark.errors import UnsupportedError


def allow_files(needed: int) -> None:
    """macOS gives a process 256 files, and "Too many open files" deep inside a loader explains nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UnsupportedError(
            f"The loader's workers need about {needed} open files; this system allows {hard}.",
            hint=f"Use fewer --workers or less --prefetch, or have an administrator raise it: ulimit -Hn {needed}",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
