"""What `rawnn bench` measures: bench.toml, or a file of the user's own.

bench.toml stands at the top of the repository; the link next to this file puts it into the package.

Every key is a field of a struct in the module of its case; docs/suites.md explains them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast, get_args, get_type_hints

import msgspec
from msgspec import Meta

from rawnn.bench.case import all_cases
from rawnn.common.errors import ConfigError, nearest
from rawnn.model.workloads import workload

OTHERS = "others"
"""The key for workloads that have none of their own."""
PACKAGED = Path(__file__).with_name("bench.toml")

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


def check_workloads(names: Iterable[str], key: str = "") -> None:
    """Raise ValueError for a name of no workload. To be called by `__post_init__` of a table, for
    its names or those under a key of it."""
    for name in names:
        try:
            workload(name)
        except ConfigError as error:
            refuse(str(error), key)


def refuse(reason: str, key: str = "") -> NoReturn:
    """Raise the ValueError by which `__post_init__` of a table says what means nothing in it."""
    raise ValueError(f"[{key}]: {reason}")


class AllSuite(Settings, frozen=True, kw_only=True):
    """`bench all`: which suites, in which order; none is begun after `budget` seconds, and `shares`
    says how many of them are each suite's: what one leaves the next ones have as well."""

    suites: list[str]
    budget: Annotated[float, Meta(gt=0)]
    shares: dict[str, Annotated[float, Meta(gt=0)]] = msgspec.field(default_factory=dict)


class Suites(Settings, frozen=True, kw_only=True):
    """The whole file: a table for each case that has settings, and `all`."""

    all: AllSuite

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The settings of a case, by the name of its table."""


@cache
def _whole() -> type[Suites]:
    """Suites with the tables of all cases."""
    tables = [(case.table, case.settings) for case in all_cases().values() if case.settings]
    return cast(type[Suites], msgspec.defstruct(
        "Suites", tables, bases=(Suites,), module=__name__, frozen=True, kw_only=True))


def suite_name(name: str) -> str:
    """Today's name of a suite, as files and command lines may still call it otherwise."""
    for case in all_cases().values():
        if name in case.aliases:
            return case.name
    return "sample" if name == "random" else name


def read_suites(path: str | None = None) -> Suites:
    """The packaged suites, with what a file of the user's says in their place. Raises ConfigError
    for a file that cannot be read, and for keys and values that mean nothing."""
    packaged = tomllib.loads(PACKAGED.read_text())
    if path is None:
        return _converted(packaged, str(PACKAGED))
    try:
        own = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the suites {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return _converted(_laid_over(packaged, _renamed(own)), path)


def _renamed(own: dict[str, Any]) -> dict[str, Any]:
    """A user's file with today's names of tables and suites."""
    found = {_table(name): table for name, table in own.items()}
    whole = found.get("all")
    if isinstance(whole, dict):
        whole = dict(whole)
        if isinstance(names := whole.get("suites"), list):
            whole["suites"] = [suite_name(name) for name in names]
        if isinstance(shares := whole.get("shares"), dict):
            whole["shares"] = {suite_name(name): share for name, share in shares.items()}
        found["all"] = whole
    return found


def _table(name: str) -> str:
    """Today's name of a table."""
    today = suite_name(name)
    return name if today == name else all_cases()[today].table


def _laid_over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A table with the keys of another in place of its own, tables within likewise; lists are
    replaced whole."""
    found = dict(below)
    for name, value in own.items():
        before = found.get(name)
        found[name] = _laid_over(before, value) \
            if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def _converted(values: dict[str, Any], path: str) -> Suites:
    try:
        return msgspec.convert(values, _whole())
    except msgspec.ValidationError as error:
        text = str(error)
        if refused := re.fullmatch(r"\[(.*?)\]: (.*) - at `\$\.([^`]*)`", text, re.DOTALL):
            where = ".".join(filter(None, (re.sub(r"\[[^\]]*\]", "", refused[3]), refused[1])))
            raise ConfigError(f"{path}, [{where}]: {refused[2]}") from None
        unknown = re.search(r"unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?", text)
        if not unknown:
            raise ConfigError(f"{path}: {text}") from None
        where = f" in [{unknown[2]}]" if unknown[2] else ""
        raise ConfigError(f"{path}: unknown key '{unknown[1]}'{where}"
                          + nearest(unknown[1], _keys(unknown[2] or ""))) from None


def _keys(where: str) -> Iterator[str]:
    """The keys that may stand in a table of the file, the top level for an empty name."""
    hint: Any = _whole()
    for name in filter(None, re.sub(r"\[[^\]]*\]", "", where).split(".")):
        if _is_table(hint):
            hint = get_type_hints(hint).get(name, _whole())
        while get_args(hint):
            hint = get_args(hint)[-1]
    yield from get_type_hints(hint if _is_table(hint) else _whole())


def _is_table(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Settings)


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    return msgspec.json.schema(_whole())
