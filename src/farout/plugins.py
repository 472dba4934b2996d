"""Methods and scores of the user's own file beside farout's, without a fork.

A plugin is a Python file, or an importable module, with tables of farout's names: METHODS = {"margin": Margin}. It is
code, and loading it runs it: so the user alone names it, by `farout --plugin`, FAROUT_PLUGINS or `load_plugin`. Nothing
that a recipe, a detector or a checkpoint says leads here.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any, cast

from farout.errors import ConfigError

VARIABLE = "FAROUT_PLUGINS"
EXPECTED = "FAROUT_PLUGINS_EXPECTED"
"""From a process to its children: the hashes of plugins that they must find."""


@dataclass(frozen=True)
class Plugin:
    """What was loaded: (table, name) of each entry, and the hash of the source."""

    entries: frozenset[tuple[str, str]]
    source: str


LOADED: dict[str, Plugin] = {}
"""By absolute path, or by module name."""


def load_plugin(name: str | Path) -> None:
    """Add METHODS, SCORES, NETS and AUGMENTS of a Python file, or of a module, to farout's.

    Processes that this one starts load it, too. Loading it twice is nothing; a file that has changed replaces itself.

    >>> farout.load_plugin("mine.py")                                       # doctest: +SKIP
    """
    key = str(Path(name).absolute()) if _is_file(name) else str(name)
    if key not in LOADED or _is_file(key):
        _load(key, LOADED.get(key))
    named = _named()
    if key not in named:
        os.environ[VARIABLE] = os.pathsep.join([*named, key])


def load_plugins(more: Sequence[str] = ()) -> None:
    """Load what FAROUT_PLUGINS names, and `more`."""
    for name in (*_named(), *more):
        load_plugin(name)
    expected = set(filter(None, os.environ.get(EXPECTED, "").split(",")))
    if expected - {plugin.source for plugin in LOADED.values()}:
        changed = ", ".join(LOADED) or "now missing"
        raise ConfigError(f"a plugin ({changed}) was changed after this work had begun; give the command again")


def is_plugins(table: str, name: str) -> bool:
    """Whether an entry of METHODS, SCORES, ... came with a plugin."""
    return any((table, name) in plugin.entries for plugin in LOADED.values())


def sources(tree: Any) -> list[str]:
    """The hashes of those plugins of which `tree`, a config as plain data, names an entry."""
    words = set(_words(tree))
    return sorted(one.source for one in LOADED.values() if any(name in words for _, name in one.entries))


def expectation(tree: Any) -> dict[str, str]:
    """What to add to the environment of a process that trains `tree`: it refuses plugins that changed meanwhile."""
    return {EXPECTED: ",".join(sources(tree))}


def _is_file(name: str | Path) -> bool:
    return str(name).endswith(".py")


def _named() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]


def _words(tree: Any) -> Iterator[str]:
    """Every string in plain data, keys left out."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping | list | tuple):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _words(part)


def _load(key: str, old: Plugin | None) -> None:
    """Run a plugin and put its entries in the tables, all or none; those of its old source go."""
    source = _source(key)
    if old is not None and old.source == source:
        return
    try:
        module = _run_file(key, source) if _is_file(key) else import_module(key)
    except (Exception, SystemExit) as error:  # it is anyone's code
        raise ConfigError(f"the plugin {key} stopped with {_where(key, error)}: {error}") from error
    tables, before = _tables(), old.entries if old is not None else frozenset[tuple[str, str]]()
    found = _checked(key, module, tables, before)
    for table, name in before:
        del tables[table][name]
    for (table, name), entry in found.items():
        tables[table][name] = entry
    LOADED[key] = Plugin(frozenset(found), source)


def _where(key: str, error: BaseException) -> str:
    """`ValueError in line 12`, or the error's type alone where the file is not at fault."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == key]
    return type(error).__name__ + (f" in line {lines[-1]}" if lines else "")


def _source(key: str) -> str:
    """The hash of a file, of a module's file, or of all that a package has."""
    files = [Path(key)] if _is_file(key) else _module_files(key)
    try:
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    except OSError as error:
        raise ConfigError(f"there is no plugin {key} that can be read: {error.strerror}") from None


def _module_files(name: str) -> list[Path]:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a package that is missing; a name such as "."
        spec = None
    if spec is None or spec.origin is None:
        raise ConfigError(f"there is no module {name!r} to import as a plugin; a file's name ends in .py")
    home = Path(spec.origin)
    return sorted(home.parent.rglob("*.py")) if home.name == "__init__.py" else [home]


class _Now(SourceFileLoader):
    """Compiles what the file has now: a cached .pyc is told from it by its size and the second of its change alone."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _run_file(key: str, source: str) -> ModuleType:
    """A file as a module, under a name by which torch.compile and pickle find this very source in sys.modules."""
    module = ModuleType(f"farout_plugin_{source[:12]}")
    module.__file__ = key
    sys.modules[module.__name__] = module
    _Now(module.__name__, key).exec_module(module)
    return module


def _tables() -> dict[str, dict[str, Any]]:
    """Farout's tables; imported here, so that to name no plugin costs nothing."""
    from farout.data.augment import AUGMENTS
    from farout.methods import METHODS
    from farout.nets import NETS
    from farout.scores import SCORES

    tables = {"METHODS": METHODS, "SCORES": SCORES, "NETS": NETS, "AUGMENTS": AUGMENTS}
    return {title: cast(dict[str, Any], table) for title, table in tables.items()}


def _checked(
    key: str, module: ModuleType, tables: Mapping[str, Mapping[str, Any]], own: frozenset[tuple[str, str]]
) -> dict[tuple[str, str], Any]:
    """The entries {(table, name): class} of a plugin, or an error that names the first that will not do."""
    given = {title: getattr(module, title, None) for title in tables}
    given = {title: table for title, table in given.items() if table and table is not tables[title]}
    if not given:
        example = "METHODS = {'margin': Margin}"
        raise ConfigError(f"the plugin {key} has none of the tables {', '.join(tables)}; write e.g. {example}")
    found: dict[tuple[str, str], Any] = {}
    for title, table in given.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"the plugin {key}: {title} must be a mapping of names to classes, got {table!r}")
        for name, entry in table.items():
            if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
                raise ConfigError(f"the plugin {key}: a name in {title} is of letters, digits, - and _, got {name!r}")
            if name in tables[title] and (title, name) not in own:
                raise ConfigError(f"the plugin {key}: {title} has {name!r} already; choose another name")
            _check_entry(f"the plugin {key}: {title}[{name!r}]", title, entry)
            found[title, name] = entry
    return found


def _check_entry(owner: str, title: str, entry: Any) -> None:
    from farout.methods import Method
    from farout.scores import Score

    base = {"METHODS": Method, "SCORES": Score}.get(title)
    if base is not None and not (isinstance(entry, type) and issubclass(entry, base)):
        wanted = f"a subclass of {base.__module__.rpartition('.')[0]}.{base.__name__}"
        raise ConfigError(f"{owner} must be {wanted}, got {entry!r}")
    if not callable(entry):
        raise ConfigError(f"{owner} must be a class or a function that makes one, got {entry!r}")
