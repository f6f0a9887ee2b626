"""The frameworks by name, known without importing one: how to find them, and which settings they lack where."""

import tomllib
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert

from metalmark.backends.environment import known_pairs, pairs, refusal
from metalmark.backends.ranks import ONE, Ranks
from metalmark.errors import NotInstalledError, UnsupportedError, UsageError, did_you_mean
from metalmark.model.plan import DEFAULT_SETTINGS, Dtype, Loader, Plan, Settings

if TYPE_CHECKING:
    from metalmark.backends.base import Backend

UNKNOWN = "unknown"
"""The version of a package whose description is damaged: it may still be imported and used."""


MODE_WITHOUT_COMPILE = "--compile-mode says how --compile compiles, and --compile is off."


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A setting that works only on some types of device, and why. Without a value it is any but the default."""

    setting: str
    value: str = ""
    only: tuple[str, ...] = ()
    loader: bool = False
    """Whether it is one of the loader's settings, which only a plan with a pipeline has."""
    reason: str

    @property
    def flag(self) -> str:
        return f"--{self.setting.replace('_', '-')} {self.value}".strip()

    def forbids(self, settings: Settings, device_type: str, loader: Loader | None = None) -> bool:
        chosen, usual = (loader or Loader(), Loader()) if self.loader else (settings, DEFAULT_SETTINGS)
        asked = getattr(chosen, self.setting)
        wanted = asked == self.value if self.value else asked != getattr(usual, self.setting)
        return wanted and device_type not in self.only


class Framework(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `frameworks.toml`, whose first lines describe the fields."""

    name: str
    title: str
    family: str
    packages: tuple[str, ...]
    limits: tuple[Limit, ...]
    hidden: bool = False
    variables: dict[str, str] = {}
    threads_variable: str = ""
    tf32_variable: str = ""
    first_step_modules: tuple[str, ...] = ()
    compile_modules: tuple[str, ...] = ()
    launcher: str = ""
    no_world: str = ""
    one_machine: str = ""

    def environment(self, settings: Settings) -> dict[str, str]:
        """Return the variables that must be set before the framework is imported."""
        # Only those that are known: settings may come from a file, and `check` refuses the others.
        variables = {**known_pairs(settings.environment, self.name), **self.variables}
        if self.threads_variable and settings.threads is not None:
            variables[self.threads_variable] = str(settings.threads)
        if self.tf32_variable:
            variables[self.tf32_variable] = "1" if settings.dtype is Dtype.TF32 else "0"
        return variables

    def missing(self) -> list[str]:
        return [package for package in self.packages if find_spec(package) is None]

    def backend(self) -> "Backend":
        """Import the framework: for workers and probes only."""
        return import_module(f"metalmark.backends.{self.name}").BACKEND  # type: ignore[no-any-return]

    def join(self, plan: Plan) -> Ranks:
        """Meet the other processes of a plan for several; for workers only, and before anything else is asked."""
        ranks: Ranks = import_module(f"metalmark.backends.{self.name}_world").join(plan) if plan.world else ONE
        return ranks

    def check(self, settings: Settings, device_type: str, loader: Loader | None = None) -> None:
        """Raise for a setting this framework does not have on this device; nothing asked for is ignored."""
        for limit in self.limits:
            if limit.forbids(settings, device_type, loader):
                raise UnsupportedError(f"{limit.flag} on {self.name}, {device_type}: {limit.reason}")
        for name, value in pairs(settings.environment).items():
            why = refusal(name, value, self.name, device_type, version_of(self.packages[0]) if self.packages else None)
            if why:
                raise UnsupportedError(f"--environment {name}={value} on {self.name}, {device_type}: {why}")
        if settings.compile_mode and not settings.compile:
            raise UnsupportedError(MODE_WITHOUT_COMPILE, hint="Add --compile, or leave --compile-mode out.")


def _read_frameworks() -> dict[str, Framework]:
    table = tomllib.loads(Path(__file__).with_name("frameworks.toml").read_text(encoding="utf-8"))
    limits = convert(table["limits"], dict[str, Limit])
    entries = [{**entry, "limits": [limits[name] for name in entry["limits"]]} for entry in table["frameworks"]]
    return {entry["name"]: convert(entry, Framework) for entry in entries}


FRAMEWORKS = _read_frameworks()


def visible() -> list[Framework]:
    return [framework for framework in FRAMEWORKS.values() if not framework.hidden]


def installed() -> list[Framework]:
    return [framework for framework in visible() if not framework.missing()]


def find(name: str) -> Framework:
    """Return the framework of that name, which must be installed."""
    framework = FRAMEWORKS.get(name)
    if framework is None:
        raise UsageError(
            f"There is no framework {name!r}{did_you_mean(name, FRAMEWORKS)}",
            hint=f"Frameworks: {', '.join(f.name for f in visible())}, or all.",
        )
    missing = framework.missing()
    if missing:
        raise NotInstalledError(
            f"{framework.title} is not installed: Python finds no package {missing[0]!r}.",
            hint=f'Install it: pip install "metalmark[{name}]"',
        )
    return framework


def version_of(package: str, module: Any = None) -> str | None:
    """Return the version that `module` has in `__version__`, else its package's; None where it is not installed."""
    told = getattr(module, "__version__", None)
    if isinstance(told, str) and told:
        return str(told)
    try:
        described = metadata.distribution(package).metadata
        # Asked first: from Python 3.12 on, a missing field is a warning, and later an error.
        return (described["Version"] or UNKNOWN) if "Version" in described else UNKNOWN
    except metadata.PackageNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):  # newer Pythons, where the description is missing as a whole
        return UNKNOWN
