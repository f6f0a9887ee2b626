"""The open-file limit: raised to what a loader's workers need, or a clear error where it can't be."""

import resource

from metalmark.errors import UnsupportedError

FILES_PER_BATCH = 8
"""Descriptors that a batch in flight has open: PyTorch shares its tensors by descriptor on Linux."""


def allow_files(needed: int) -> None:
    """Raise the limit to `needed`, or raise an error that explains it.

    macOS gives a process 256 files, and "Too many open files" deep inside a loader explains nothing.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise _too_few(needed, f"this system allows {hard}")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError) as error:
        # macOS names no hard limit, and refuses more than its kernel's own (kern.maxfilesperproc) all the same.
        raise _too_few(needed, f"this system allows {soft} and refuses to raise that ({error})") from error


def _too_few(needed: int, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"The loader's workers need about {needed} open files; {why}.",
        hint=f"Use fewer --workers or less --prefetch, or have an administrator raise it: ulimit -Hn {needed}",
    )
