"""Callbacks for the libraries that run the loop themselves: each makes a watched run of every fit, as mm.run does.

A library is imported when its callback is asked for, by the file that is named for it.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from metalmark.errors import NotInstalledError
from metalmark.kit.running import HZ, Track

if TYPE_CHECKING:
    from metalmark.kit.fits import FitOptions

_PACKAGES = {"keras": ("keras",), "lightning": ("lightning", "pytorch_lightning"), "transformers": ("transformers",)}
_INSTALLS = {
    "keras": "pip install 'metalmark[tensorflow]' (or [jax])",
    "lightning": "pip install lightning",
    "transformers": "pip install 'metalmark[bert]' accelerate",
}


def keras_callback(
    name: str | None = None,
    *,
    track: Track = None,
    params: Mapping[str, Any] | None = None,
    hz: float | None = HZ,
    store: str | os.PathLike[str] | None = None,
) -> Any:
    """Make a callback for Keras 3: `model.fit(..., callbacks=[mm.keras_callback()])`.

    Each fit becomes a run. `name`: the model's own by default; the rest is as in `mm.run`. `callback.run` is the
    newest run, `callback.runs` all of them. With `with mm.keras_callback() as watched:` around the fit, whatever
    ends it is known at once; Keras tells its callbacks only of what ends well.
    """
    return _make("keras", name, track, params, hz, store)


def lightning_callback(
    name: str | None = None,
    *,
    track: Track = None,
    params: Mapping[str, Any] | None = None,
    hz: float | None = HZ,
    store: str | os.PathLike[str] | None = None,
) -> Any:
    """Make a callback for Lightning 2: `Trainer(callbacks=[mm.lightning_callback()])`.

    Each `trainer.fit` becomes a run. `name`: the module's class by default; the rest is as in `mm.run`.
    `callback.run` is the newest run, `callback.runs` all of them.
    """
    return _make("lightning", name, track, params, hz, store)


def transformers_callback(
    name: str | None = None,
    *,
    track: Track = None,
    params: Mapping[str, Any] | None = None,
    hz: float | None = HZ,
    store: str | os.PathLike[str] | None = None,
) -> Any:
    """Make a callback for Hugging Face's Trainer: `Trainer(..., callbacks=[mm.transformers_callback()])`.

    Each `trainer.train` becomes a run, and a step of it is an optimiser's step. `name`: the model's class by default;
    the rest is as in `mm.run`. `callback.run` is the newest run, `callback.runs` all of them. With
    `with mm.transformers_callback() as watched:` around the training, whatever ends it is known at once; the Trainer
    tells its callbacks only of what ends well.
    """
    return _make("transformers", name, track, params, hz, store)


def make_again(library: str, options: "FitOptions") -> Any:
    """Make a callback like one that was sent to another process."""
    return import_module(f"metalmark.kit.{library}_callback").make_callback(options)


def _make(
    library: str,
    name: str | None,
    track: Track,
    params: Mapping[str, Any] | None,
    hz: float | None,
    store: str | os.PathLike[str] | None,
) -> Any:
    from metalmark.kit.fits import FitOptions

    options = FitOptions(name=name, track=track, params=dict(params or {}), hz=hz, store=store)
    try:
        return make_again(library, options)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES[library]:
            raise
        raise NotInstalledError(
            f"mm.{library}_callback() needs {library}, which this Python does not have.", hint=_INSTALLS[library]
        ) from error
