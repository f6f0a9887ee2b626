"""Settings files: written for a tuning, and applied by `bench` and `train` in place of options."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from metalmark.app.choices import Choice, listed, members
from metalmark.backends.environment import parse_environment
from metalmark.errors import FormatError, UsageError
from metalmark.machine.durable import read_whole, write_whole
from metalmark.model.plan import DeviceKind, Mode
from metalmark.model.settings_file import MAKE_ONE, SettingsFile, decode_settings, encode_settings
from metalmark.model.workload import WorkloadInfo
from metalmark.runner.values import expanded, parse_device, split_list

MOST_BYTES = 1 << 20
OF_NO_TYPE = (DeviceKind.GPU, DeviceKind.ANY)
"""Words for a device that leave its type open."""


def write_settings(path: str | os.PathLike[str], file: SettingsFile) -> Path:
    """Write a settings file, whole or not at all, and return its path."""
    target = expanded(os.fspath(path))
    try:
        write_whole(target, encode_settings(file))
    except OSError as error:
        raise UsageError(
            f"{target} can't be written: {error.strerror}.", hint="Name a file in a folder that you may write to."
        ) from error
    return target


def read_settings(path: str | os.PathLike[str]) -> SettingsFile:
    """Read a settings file, and check it."""
    source = expanded(os.fspath(path))
    try:
        data = read_whole(source, MOST_BYTES)
    except FileNotFoundError as error:
        raise UsageError(f"There is no settings file {source}.", hint=MAKE_ONE) from error
    except OSError as error:
        raise UsageError(f"{source} can't be read: {error.strerror}.", hint=MAKE_ONE) from error
    file = decode_settings(data, source=str(source))
    try:
        environment = parse_environment(file.settings.environment)
    except UsageError as error:
        raise FormatError(f"{source}: {error.message}", hint=error.hint) from error
    return replace(file, settings=replace(file.settings, environment=environment))


def settings_for(
    path: str | os.PathLike[str],
    workloads: Sequence[WorkloadInfo],
    *,
    mode: Choice | None = None,
    framework: Choice | None = None,
    options: Mapping[str, Choice | None],
    params: Mapping[str, str],
) -> SettingsFile:
    """Read the settings file for what was asked for, and refuse one that was made for something else.

    `options` are those that the file decides, by name, and `params` the parameters of the workload, as they were given
    beside it: two answers to one question are refused, even where they are the same.
    """
    name, file = os.fspath(path), read_settings(path)
    for option in [*(each for each, value in options.items() if value is not None), *(set(params) & set(file.params))]:
        flag = f"--{option.replace('_', '-')}"
        raise UsageError(f"{flag} is given, and {name} sets it too.", hint=f"Leave out {flag}, or --settings.")
    asked = ", ".join(info.name for info in workloads)
    if [info.name for info in workloads] != [file.workload]:
        raise UsageError(f"{name} has the settings for {file.workload}, not for {asked}.", hint=_tune(asked))
    if workloads[0].digest != file.workload_digest:
        raise UsageError(
            f"{asked} has changed since the settings in {name} were found, and they may no longer be right for it.",
            hint=_tune(asked),
        )
    if framework is not None and split_list(listed(framework), what="--framework") != [file.framework]:
        raise UsageError(
            f"{name} has the settings for {file.framework}, not for --framework {listed(framework)}.",
            hint=f"Leave --framework out, or tune for it: metalmark tune {asked} --framework {listed(framework)}",
        )
    if mode is not None and members(Mode, mode, what="--mode", plural="Modes") != [file.mode]:
        raise UsageError(
            f"{name} has the settings for {file.mode.value}, not for {listed(mode)}.",
            hint=f"Tune for it: metalmark tune {asked} --mode {listed(mode)}",
        )
    return file


def device_for(path: str | os.PathLike[str], file: SettingsFile, device: Choice | None) -> str:
    """Return the words for the devices to run on: those that were asked for, which must be of the file's type, or that
    type."""
    if device is None:
        return _device_word(file)
    return ",".join(_device_for(path, file, word) for word in split_list(listed(device), what="--device"))


def _device_for(path: str | os.PathLike[str], file: SettingsFile, word: str) -> str:
    mine = _device_word(file)
    asked = None if word == "all" else parse_device(word)
    if asked is not None and asked.kind == file.device:
        return word
    on_cpu = asked is not None and asked.kind is DeviceKind.GPU and file.device == DeviceKind.CPU
    if asked is None or asked.kind not in OF_NO_TYPE or on_cpu:
        raise UsageError(
            f"{os.fspath(path)} has the settings for {file.device}, not for --device {word}.",
            hint=f"Write --device {mine}, or leave --device out.",
        )
    # What `gpu` and `any` mean here need not be what the file is for.
    return mine if asked.index is None else f"{mine}:{asked.index}"


def _device_word(file: SettingsFile) -> str:
    """Return the type of device as a word of --device: accelerators that it has no word for are called gpu."""
    return file.device if file.device in list(DeviceKind) else DeviceKind.GPU.value


def _tune(workloads: str) -> str:
    return f"Find settings for it: metalmark tune {workloads}"
