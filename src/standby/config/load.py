"""Reading the configuration: flag over env over file over default, and every problem said in words."""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from standby.config.contradictions import contradictions
from standby.config.model import SECTIONS, Config, Source, defaults, keys_of
from standby.config.values import did_you_mean
from standby.core.errors import ConfigError

FILE_NAME: Final = "standby.toml"
FILE_MAX: Final = 2**20
ENV_PREFIX: Final = "STANDBY_"
ENV_OTHERS: Final = frozenset(
    ENV_PREFIX + name
    for name in (
        *("CONFIG", "URL", "KEY"),  # for the command line and the client
        *("ORDER_ID", "RUN_ID", "ATTEMPT", "NONCE", "PAYLOAD_FILE", "POOL", "PROJECT"),  # what work is told
        *("SOCKET", "SLOT", "SLOT_TOKEN", "SILENCE_S", "RUN_TOKEN"),  # what workers are told
    )
)
ENV_OURS: Final = f"{ENV_PREFIX}TEST_"
"""The test suite talks to itself by these."""
_TRUTHS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_TYPES: Final = {str: "a text", bool: "true or false", int: "an integer", float: "a number", list: "a list"}

C = TypeVar("C", bound=Config)
Place = tuple[str, ...]


def load_config(
    path: Path | None = None, env: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Config:
    """The configuration: flag over env over file over default. Raises ConfigError with every problem, one a line."""
    env = os.environ if env is None else env
    named = path or (Path(env["STANDBY_CONFIG"]) if env.get("STANDBY_CONFIG") else None)
    file = named or Path(FILE_NAME)
    keys = _read(file, must_be_there=named is not None)
    sources = {".".join(each): Source("file", str(file)) for each in paths(keys)}
    if env.get("DATABASE_URL") and "database" not in keys:
        _put(keys, sources, ("database",), env["DATABASE_URL"], Source("env", "DATABASE_URL"))
    for where, key, text in _twins(env, keys):
        _put(keys, sources, key, _from_env(_annotation(key), text), Source("env", where))
    for flag, value in (flags or {}).items():
        if value is not None:
            _put(keys, sources, (flag,), value, Source("flag", f"--{flag.replace('_', '-')}"))
    return checked(Config, keys, sources, str(file))


def checked(kind: type[C], keys: Mapping[str, Any], sources: Mapping[str, Source], file: str) -> C:
    """A configuration of keys from anywhere; ConfigError says each problem with its source."""
    try:
        config = kind.model_validate(_filled(keys))
    except ValidationError as error:
        raise ConfigError("\n".join(_say(each, sources, file) for each in error.errors())) from None
    problems = [f"{_where(about, sources, file)}: {about[0]}: {text}" for about, text in contradictions(config)]
    if problems:
        raise ConfigError("\n".join(problems))
    config._sources.update({**dict(defaults(config)), **sources})
    return config


def _read(file: Path, *, must_be_there: bool) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            found = opened.read(FILE_MAX + 1)
        if len(found) > FILE_MAX:
            raise ConfigError(f"{file}: is larger than {FILE_MAX // 1024} KB; is it a configuration?")
        return tomllib.loads(found.decode())
    except FileNotFoundError:
        if not must_be_there:
            return {}
        raise ConfigError(f"{file}: there is no such file; name another one with --config or STANDBY_CONFIG") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text; save it as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{file}: is not valid TOML: nested too deeply") from None
    except ValueError as error:
        line = re.search(r" \(at line ([0-9]+), column [0-9]+\)$", str(error))
        place = f"{file}:{line[1]}" if line else str(file)
        raise ConfigError(f"{place}: is not valid TOML: {error}") from None


def paths(keys: Mapping[str, Any]) -> Iterator[Place]:
    """Where there is a value: `port`, `pools.default.slots_max`."""
    for key, value in keys.items():
        tables = value.items() if key in SECTIONS and isinstance(value, dict) else ()
        inner: list[Place] = [(key, name, each) for name, table in tables if isinstance(table, dict) for each in table]
        yield from inner or [(key,)]


def _put(keys: dict[str, Any], sources: dict[str, Source], path: Place, value: Any, source: Source) -> None:
    """Lay a value over what is there; what cannot hold it is left for the check to refuse."""
    table: Any = keys
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return
    table[path[-1]] = value
    if (before := sources.get(".".join(path))) is not None:
        source = Source(source.value_from, source.where, (before.where, *before.over))
    sources[".".join(path)] = source


def twin(path: Iterable[str]) -> str:
    """The variable that sets a key: STANDBY_PORT, STANDBY_POOLS_DEFAULT_SLOTS_MAX."""
    return ENV_PREFIX + "_".join(path).upper().replace("-", "_")


def _twins(env: Mapping[str, str], keys: Mapping[str, Any]) -> Iterator[tuple[str, Place, str]]:
    """Variable, key and text of each setting in the environment; ConfigError names all that mean none."""
    tops = {twin([key]): (key,) for key in keys_of(Config)}
    unknown = []
    for name in sorted(each for each in env if each.startswith(ENV_PREFIX)):
        if name in ENV_OTHERS or name.startswith(ENV_OURS):
            continue
        if (found := tops.get(name) or _in_section(name, keys)) is not None:
            yield name, found, env[name]
        else:
            unknown.append(name)
    if unknown:
        known = [*tops, *ENV_OTHERS, *(twin(path) for path in _known(keys))]
        raise ConfigError("\n".join(f"{name}: unknown variable; {did_you_mean(name, known)}" for name in unknown))


def _known(keys: Mapping[str, Any]) -> Iterator[Place]:
    """The keys of every section that is there."""
    filled = _filled(keys)
    for section, model in SECTIONS.items():
        for name in filled.get(section) or () if isinstance(filled.get(section), dict) else ():
            yield from ((section, str(name), key) for key in keys_of(model))


def _in_section(variable: str, keys: Mapping[str, Any]) -> Place | None:
    """The key of a section that a variable means: of one that is there, else the longest key that fits."""
    there = {twin(path): path for path in _known(keys)}
    if variable in there:
        return there[variable]
    for section, model in SECTIONS.items():
        rest = variable.removeprefix(twin([section]) + "_")
        for key in sorted(keys_of(model), key=len, reverse=True) if rest != variable else ():
            name = rest.removesuffix(f"_{key.upper()}")
            if name not in (rest, ""):
                return section, name.lower().replace("_", "-"), key
    return None


def _annotation(path: Place) -> Any:
    model = SECTIONS[path[0]] if len(path) > 1 else Config
    return model.model_fields[keys_of(model)[path[-1]]].annotation


def _from_env(annotation: Any, text: str) -> Any:
    """An env text as the value it means; what does not fit is left for the check to refuse."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if bool in kinds:
        return _TRUTHS.get(text.lower(), text)
    if int in kinds and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if float in kinds and re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", text):
        return float(text)
    if any(getattr(kind, "__origin__", None) is list for kind in kinds):
        return [name.strip() for name in text.split(",") if name.strip()]
    return text


def _filled(keys: Mapping[str, Any]) -> dict[str, Any]:
    """With a host `local` and a pool `default` where none is named."""
    filled = {"hosts": {}, "pools": {}, **keys}
    if filled["hosts"] == {}:
        filled["hosts"] = {"local": {"driver": "process"}}
    if filled["pools"] == {}:
        filled["pools"] = {"default": {}}
    return filled


def _say(error: ErrorDetails, sources: Mapping[str, Source], file: str) -> str:
    """One problem in words: where, which key, what to do. Never the value of a secret."""
    where = [str(part) for part in error["loc"] if part != "[key]"]
    source, key = _where([".".join(where[:depth]) for depth in (3, 1)], sources, file), ".".join(where) or "the file"
    if error["type"] == "extra_forbidden":
        model = SECTIONS.get(where[0], Config) if len(where) > 1 else Config
        known = [*keys_of(model), *(SECTIONS if model is Config else ())]
        return f"{source}: {key}: unknown key; {did_you_mean(where[-1], known)}"
    if error["type"] == "string_pattern_mismatch":
        return f"{source}: {key}: write a name of a-z, 0-9 and -, at most 63 long, beginning with a letter or digit"
    text = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    got = _TYPES.get(type(error["input"]))
    return f"{source}: {key}: {text}{f', not {got}' if got and error['type'].endswith('_type') else ''}"


def _where(about: Iterable[str], sources: Mapping[str, Source], file: str) -> str:
    return next((sources[key].where for key in about if key in sources), file)
