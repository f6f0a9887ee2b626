"""A DataLoader with what this machine needs: workers, how they start and share, open files, pinned memory."""

from __future__ import annotations

from typing import Any

from metalmark.errors import NotInstalledError


def loader(dataset: Any, **options: Any) -> Any:
    """PyTorch's DataLoader, called as PyTorch's is.

    What you give is taken as it is; what you leave out of num_workers, multiprocessing_context, persistent_workers
    and pin_memory is chosen for this machine, and the loader's `.why` says why. The open-file limit is raised; where
    the system forbids that, tensors are shared by name instead of by open file.
    """
    try:
        from metalmark.kit.loading.on_torch import make
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise NotInstalledError(
            "mm.loader() is PyTorch's DataLoader, and PyTorch is not installed.", hint="pip install 'metalmark[torch]'"
        ) from error
    return make(dataset, options)
