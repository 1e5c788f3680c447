"""Extensions: objects that a setting names as "module:name", and the options that they declare.

An extension annotates ``options`` with a frozen dataclass, in its class or as an argument of its
function (docs/how-to/extend.md). A config holds them as a table, so that it can be read where the
extension is not installed; ``build_options`` makes the dataclass of the table.
"""

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from paint.core.credentials import is_reference, read_references
from paint.core.errors import ConfigError, cut, did_you_mean, format_short, reason, wrap_errors
from paint.core.recipe_packages import is_shipped
from paint.core.settings import check_value, convert_value, is_setting_type, require_no_secret
from paint.core.storage import digest_of_file
from paint.core.trust import Executable, is_asked, require_trusted
from paint.core.user_code import UserCodeError, line_of, user_code, user_errors

_SPEC = re.compile(r"\w+(\.\w+)*:\w+")
_RECORDS = ("run.json", "settings.json")  # files of folders in which paint records what it did

_passed: dict[str, Any] = {}  # objects that were passed in Python, by their names


def load_object(spec: str, setting: str, known: Iterable[str]) -> Any:
    """Import the object "module:name" that ``spec`` names, from sys.path or the working directory.

    Messages name the setting and its ``known`` built-in values.

    Raises ConfigError if there is no such object, or it is one of Python's own.
    """
    if spec in _passed:
        return _passed[spec]
    value = f"{setting} is {format_short(spec)}"
    module_name, _, name = spec.partition(":")
    if module_name.endswith(".py"):
        raise ConfigError(
            f"{value}, which names a file; name its module, {Path(module_name).stem}:{name}, and "
            f"put its folder into PYTHONPATH"
        )
    if not is_spec(spec):
        names = list(known)
        must_be = f"one of {', '.join(names)}, or module:name" if names else "module:name"
        raise ConfigError(
            f"{setting} must be {must_be}, got {format_short(spec)}{did_you_mean(spec, names)}"
        )
    why = _not_an_extension(spec)
    if why:
        raise ConfigError(f"{value}, {why}; name an object of a module of your own")
    require_trusted([Executable(setting, spec)], f"name it yourself as {setting}")
    try:
        # A script without a main guard may call sys.exit on import.
        with _working_directory_on_path(spec), user_code():
            module = importlib.import_module(module_name)
            # A module may make its objects when they are asked for, and fail then.
            is_there = hasattr(module, name)
    except Exception as error:
        kind = "" if isinstance(error, UserCodeError) else f"{type(error).__name__}: "
        raise ConfigError(
            f"{value}, and {module_name} cannot be imported: {kind}{reason(error)}"
            f"{line_of(error)}; correct the module, or put its folder into PYTHONPATH"
        ) from error
    if not is_there:
        raise ConfigError(f"{value}, and {module_name} has no {name}")
    return getattr(module, name)


@contextmanager
def _working_directory_on_path(spec: str) -> Iterator[None]:
    here = str(Path.cwd())
    # A record is data: it holds no module, unless the user asks for it.
    is_record = any((Path(here) / name).exists() for name in _RECORDS)
    # What an installed module imports must not be taken from there either.
    if is_shipped(spec) or (is_record and not is_asked(spec)):
        yield
        return
    # Last, so that a file in the working directory cannot replace an installed module.
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def is_passed(spec: str) -> bool:
    """Return whether an object was passed in Python, in this process, by this name."""
    return spec in _passed


def _not_an_extension(spec: str) -> str:
    """Say, as a clause, why an object is Python's own; "" where it is none."""
    module_name, _, name = spec.partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        # Not imported for the message: some of these modules do something then.
        found = getattr(sys.modules.get(module_name), name, None)
        return f"an object {of_type(found)} of Python's standard library"
    parts = [*module_name.split("."), name]
    # A script's own module, which Python calls __main__, is the user's.
    if module_name == "__main__":
        parts = [name]
    if any(re.fullmatch("__.*__", part) for part in parts):
        return "a name that Python keeps for itself"
    return ""


def of_type(value: object) -> str:
    """Name the type of an object from outside of the package; its content may be a secret."""
    return "that is a class" if isinstance(value, type) else f"of type {type(value).__name__}"


def extension_errors(setting: str, spec: str) -> AbstractContextManager[None]:
    """Turn errors of a "module:name" into ConfigErrors that name the setting."""
    if ":" not in spec:
        return nullcontext()
    return user_errors(f"{setting} {spec}", ConfigError, "correct it in its module")


def spec_of(value: Any, name: str = "", module: str = "") -> str:
    """Name an object as "module:name" by which ``load_object`` finds it in this process."""
    name = name or re.sub(r"\W", "", value.__qualname__.rpartition(".")[2])
    spec = f"{module or value.__module__}:{name}"
    _passed[spec] = value
    return spec


def require_call(place: str, function: Any, wanted: str, *given: object, **named: object) -> None:
    """Raise ConfigError for a function that cannot be called with these arguments."""
    if not callable(function):
        raise ConfigError(f"{place} is an object {of_type(function)}; declare it as {wanted}")
    signature = _signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        parameters = signature.replace(return_annotation=inspect.Signature.empty)
        raise ConfigError(
            f"{place} has the parameters {cut(str(parameters), 120)} and cannot be called "
            f"({error}); declare it as {wanted}"
        ) from None


def _signature_of(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one that is written in C
        return None


def require_method(place: str, kind: Any, name: str, *arguments: str) -> None:
    """Raise ConfigError where a method of a class cannot be called with these arguments."""
    method = getattr(kind, name, None)
    if method is None:
        return
    takes_self = isinstance(kind, type) and inspect.isfunction(inspect.getattr_static(kind, name))
    of_instance = ["self"] if takes_self else []
    wanted = f"{name}({', '.join([*of_instance, *arguments])})"
    require_call(f"{place}: {name}", method, wanted, *of_instance, *arguments)


def require_overrides(extension: object, place: str) -> None:
    """Raise ConfigError for a method whose arguments are not those of the shipped one below it."""
    for name in sorted(set(dir(type(extension)))):
        if name.startswith("_"):
            continue
        # Of the class and its bases, the first that defines it.
        definitions = [kind for kind in type(extension).__mro__ if name in vars(kind)]
        bases = [kind for kind in definitions if is_shipped(kind.__module__)]
        if not bases or bases[0] is definitions[0] or not inspect.isfunction(vars(bases[0])[name]):
            continue
        _, *parameters = inspect.signature(vars(bases[0])[name]).parameters
        require_method(place, type(extension), name, *parameters)


def is_spec(value: object) -> bool:
    """Return whether a setting's value is written as "module:name"."""
    return isinstance(value, str) and _SPEC.fullmatch(value) is not None


def source_digest(spec: str) -> str:
    """Return the digest of the file of a loaded object; "" for one of a script."""
    module = spec.partition(":")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or not file or not Path(file).is_file():
        return ""
    return digest_of_file(Path(file))[:16]


def is_importable(spec: str) -> bool:
    """Return whether another process finds the object by its name, too."""
    if spec not in _passed:
        return True
    # Not one of a script, a notebook or another function.
    module, _, name = spec.partition(":")
    is_there = getattr(sys.modules.get(module), name, None) is _passed[spec]
    return is_there and module != "__main__" and not _not_an_extension(spec)


class OptionTable(dict[str, Any]):
    """Options by name, as a recipe holds them. As configs have hashes, none is changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


NO_OPTIONS = OptionTable()


def options_of(owner: str, **built_in: str) -> Any:
    """Declare a section's field that holds the options of what the setting ``owner`` names.

    ``built_in`` are the values of ``owner`` that have options, each with its "module:name".
    """
    metadata = {"options_of": owner, "built_in": built_in}
    return dataclasses.field(default=NO_OPTIONS, metadata=metadata)


def option_fields(section: type) -> dict[str, str]:
    """Return the fields of a section that hold options, each with the setting of their owner."""
    fields = dataclasses.fields(section)
    return {f.name: f.metadata["options_of"] for f in fields if "options_of" in f.metadata}


def plain_options(name: str, table: Any) -> OptionTable:
    """Check a table of options, or an instance of the extension's dataclass, by itself."""
    if dataclasses.is_dataclass(table) and not isinstance(table, type):
        table = dataclasses.asdict(table)
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name} must be a table, got {format_short(table)}; write [{name}]")
    plain = {key: tuple(one) if isinstance(one, list) else one for key, one in table.items()}
    require_no_secret(name, plain)
    for key, value in plain.items():
        items = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(item, int | float | str | None) for item in items):
            raise ConfigError(
                f"{name}.{key} must be a number, text, true, false, or a list of them, got "
                f"{format_short(value)}"
            )
    return OptionTable(plain)


def declared_options(extension: Any, setting: str) -> Any:
    """Return the dataclass that annotates an extension's ``options``; None without one."""
    with wrap_errors(f"{setting}: options", ConfigError, "correct the annotation"), user_code():
        kind: Any = _annotation_of_options(extension)
    if kind in (None, Any):
        return None
    declared = getattr(kind, "__dataclass_params__", None)
    if declared is None or not declared.frozen:
        annotated = format_short(kind) if isinstance(kind, type) else f"an object {of_type(kind)}"
        raise ConfigError(
            f"{setting}: options is annotated with {annotated}; annotate it with a frozen dataclass"
        )
    with wrap_errors(f"{setting}: {kind.__name__}", ConfigError, "correct its annotations"):
        types = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING or not is_setting_type(types[field.name]):
            raise ConfigError(
                f"{setting}: {kind.__name__}.{field.name} must have a default, and be a bool, int, "
                f"float or str, a Literal of texts, a tuple[..., ...] of these, or a union of them "
                f"with None"
            )
    return kind


def _annotation_of_options(extension: Any) -> Any:
    if isinstance(extension, type):
        for base in extension.__mro__:
            # Only where it stands: other annotations may name what is imported for checkers alone.
            if "options" in inspect.get_annotations(base):
                return inspect.get_annotations(base, eval_str=True)["options"]
        return None
    signature = _signature_of(extension)
    if signature is None or "options" not in signature.parameters:
        return None
    return inspect.signature(extension, eval_str=True).parameters["options"].annotation


def build_options(extension: Any, table: Mapping[str, Any], name: str, setting: str) -> Any:
    """Make the options that an extension declares from a table; None where it declares none.

    Values such as ``env:JUDGE_API_KEY`` are read from the environment of this process. Options of
    other extensions in the table are passed over. Messages begin with the name of the table, such
    as train.options, or with the setting, such as 'train.method "mine:Rlsd"'.

    Raises ConfigError if an option is refused, or a variable is not set.
    """
    kind = declared_options(extension, setting)
    if kind is None:
        return None
    values = _option_values(extension, kind, table, name)
    references = {key: value for key, value in values.items() if is_reference(value)}
    for key, reference in references.items():
        try:
            values[key] = read_references(reference)
        except KeyError as error:
            raise ConfigError(
                f"{name}.{key} is {format_short(reference)}, and the environment has no "
                f"{error.args[0]}; set it"
            ) from None
        for allowed, accepts in kind.__dataclass_fields__[key].metadata.get("checks", ()):
            if not accepts(values[key]):
                raise ConfigError(
                    f"{name}.{key} must be {allowed}, and what it reads from the environment is "
                    f"not ({format_short(reference)})"
                )
    try:
        return _instance_of(kind, values, name)
    except ConfigError:
        if not references:
            raise
        read = ", ".join(map(format_short, references.values()))
        # Neither its text nor its cause, which may have the values.
        raise ConfigError(f"{name} with the values of {read} is refused; change them") from None


def _option_values(
    extension: Any, kind: Any, table: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return the values of all options by name, with references to the environment as they are."""
    own = getattr(extension, "options", None)  # a class may set own defaults
    if not isinstance(own, kind):
        own = None
    types = get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        full_name = f"{name}.{field.name}"
        value = getattr(own, field.name, field.default)
        if field.name in table:
            value = convert_value(full_name, table[field.name], types[field.name])
            if not is_reference(value):
                check_value(full_name, value, field)
        values[field.name] = value
    return values


def _instance_of(kind: Any, values: Mapping[str, Any], name: str) -> Any:
    # A ValueError of its __post_init__.
    with wrap_errors(name, ConfigError, "change it"), user_code():
        return kind(**values)


def bind_options(
    function: Callable[..., Any], table: Mapping[str, Any], name: str, setting: str
) -> Callable[..., Any]:
    options = build_options(function, table, name, setting)
    if options is None:
        return function
    return partial(function, options=options)


def named_options(section: Any, key: str, prefix: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the options of every extension that shares the table ``key`` of a section.

    Each is a dataclass and its values, in which references to the environment stay as they are.
    """
    field = type(section).__dataclass_fields__[key]
    owner = field.metadata["options_of"]
    named = getattr(section, owner)
    for name in named if isinstance(named, tuple) else (named,):
        spec = field.metadata["built_in"].get(name, name)
        if ":" not in spec:  # built in, without options
            continue
        extension = load_object(spec, f"{prefix}{owner}", ())
        kind = declared_options(extension, f"{prefix}{owner} {spec}")
        if kind is not None:
            values = _option_values(extension, kind, getattr(section, key), f"{prefix}{key}")
            # Defaults stand for references in this check, as their variables need not be set.
            given = {name: value for name, value in values.items() if not is_reference(value)}
            _instance_of(kind, given, f"{prefix}{key}")
            yield kind, values


def complete_options(section: Any, prefix: str) -> Any:
    """Return the section with the values and defaults of all options that its extensions declare.

    A run records them, as an extension may change its defaults later.

    Raises ConfigError if an option is refused, is nobody's, or has two defaults.
    """
    changes = {}
    for key, owner in option_fields(type(section)).items():
        complete: dict[str, Any] = {}
        for _, values in named_options(section, key, prefix):
            for name, value in values.items():
                # One table cannot hold two defaults of one name.
                if complete.setdefault(name, value) != value:
                    raise ConfigError(
                        f"{prefix}{key}.{name} is an option of two of {prefix}{owner}, with the "
                        f"defaults {complete[name]!r} and {value!r}; set it, for both"
                    )
        for name in getattr(section, key):
            if name not in complete:
                named = format_short(getattr(section, owner))
                raise ConfigError(
                    f"unknown option {prefix}{key}.{name} of {prefix}{owner} {named}; it has "
                    f"{', '.join(complete) or 'none'}"
                )
        changes[key] = OptionTable(complete)
    return dataclasses.replace(section, **changes)
