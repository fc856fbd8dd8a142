"""JSON schemas as the grammar compiler takes them.

Schemas come with keywords that say something about a value without narrowing it, which are left
out; with keywords that narrow it and that no grammar can follow, which are refused by name; and
with objects that list their properties and say nothing of others. The standard lets these have any
others. The schemas of programs do not mean that, and small models would write them without end:
such objects are closed, as llama.cpp, vLLM and OpenAI have it, unless a schema opens them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any
from urllib.parse import quote, unquote, urljoin

from weft.bounds import SCHEMA_ADDRESS, SCHEMA_UNITS
from weft.errors import ContextError

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE = ("items", "additionalProperties", "additionalItems")
_JOINS = ("allOf", "anyOf", "oneOf", "$ref")
_VALUES = frozenset((
    *("type", "enum", "const", "required", "multipleOf", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties"),
    *("maxProperties", "x-guidance"),
))  # fmt: skip
_FORMATS = frozenset((
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
))  # fmt: skip
"""The formats that a grammar follows; all others are annotations, as the standard has them."""
_DRAFT = re.compile(r"https?://json-schema\.org/(draft-0[4-7]|draft/(2019-09|2020-12))/schema#?")
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_UNHELD = re.compile(r"\(\?(?:[=!]|<[=!])|\\[bB1-9]|\\k<")
"""Constructs of patterns that no automaton can follow: lookaround and back references."""
_ESCAPE = re.compile(
    r"\\(?:[pP]\{[^{}]*\}|[ux]\{[0-9a-fA-F]+\}"
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|c[a-zA-Z]|.?)",
    re.S,
)
_CLASS = re.compile(r"\\[dDwWsSpP]")
_META = ".^$*+?()[]{}|/\\-&~"
"""Characters that the grammar compiler takes behind a backslash."""
_LARGEST = {"integer": (1 << 63) - 1024, "number": 10**18}
"""The largest bounds of numbers that it takes."""
_MOST_REFERENCES = 32
"""Maximum number of references that are followed from one to the next."""
_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")


def held_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without annotations, with closed objects, and with references that are pointers.

    Raises ContextError for a keyword that narrows values and cannot be held."""
    try:
        work = _Schema(schema)
        held = work.held(schema, "#", "")
        return held if isinstance(held, dict) else {"not": {}}
    except RecursionError:
        raise ContextError("it is nested too deeply") from None


def pointer(*names: str) -> str:
    """The end of a pointer to a member of a member."""
    escaped = (name.replace("~", "~0").replace("/", "~1") for name in names)
    return "".join("/" + quote(name, "~!$&'()*+,;=:@", errors="surrogatepass") for name in escaped)


def pointed(root: Any, ref: str) -> Any:
    """The target of a local reference, or None."""
    if not ref.startswith("#"):
        return None
    at = root
    for part in ref[1:].split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(at, Mapping):
            at = at.get(name)
        elif isinstance(at, list) and name.isdigit() and len(name) < 8:
            at = at[int(name)] if int(name) < len(at) else None
        else:
            return None
    return at


def under(schema: Any, where: str) -> Any:
    """A schema whose references are pointers, for a place `where` in another one, as
    `#/properties/arguments`."""
    if isinstance(schema, list):
        return [under(one, where) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: where + value[1:]
        if name == "$ref" and isinstance(value, str) and value.startswith("#")
        else value
        if name in ("enum", "const") and not isinstance(value, Mapping)
        else under(value, where)
        for name, value in schema.items()
    }


def has_references(schema: Any) -> bool:
    """True if a schema refers to another one."""
    if isinstance(schema, list):
        return any(map(has_references, schema))
    if not isinstance(schema, Mapping):
        return False
    return isinstance(schema.get("$ref"), str) or any(map(has_references, schema.values()))


def resolved(schema: Any, root: Any) -> Any:
    """The schema that a schema refers to, if it is only a reference to another one of `root`."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            break
        if "properties" in schema:
            break
        every = schema.get("allOf")
        if isinstance(schema.get("$ref"), str):
            schema = pointed(root, schema["$ref"])
        elif isinstance(every, list) and len(every) == 1:
            schema = every[0]
        else:
            break
    return schema


def held_parameters(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the arguments of a tool, as `held_schema` makes it; errors name the tool."""
    try:
        held = held_schema(schema)
        whole = resolved(held, held)
        if whole is not held and isinstance(whole, Mapping):
            parts = {key: held[key] for key in held if key in ("$defs", "definitions")}
            held = {**parts, **whole}
        return held
    except ContextError as error:
        raise ContextError(f"the parameters of the tool {name[:64]!r}: {error}") from None


class _Schema:
    """One schema with its references."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._units = 0
        self._places: dict[str, str] = {"": "#"}
        """The place of each schema with an address or an anchor."""
        self._bases: dict[str, str] = {}
        """The address that references at a place are relative to."""
        self._kept: set[str] = set()  # members of the root that only references name
        self._open: set[str] = set()
        joined: list[tuple[str, str]] = []
        every = list(self._all(root, "#", False))
        for place, one, _ in every:
            for name in ("$anchor", "$dynamicAnchor", "$id", "id"):
                anchor = one.get(name)
                if isinstance(anchor, str) and anchor.startswith("#") == name.endswith("id"):
                    _require_short(anchor)
                    self._places[f"{self._bases[place]}#{anchor.removeprefix('#')}"] = place
        for place, one, open_ in every:
            ref = one.get("$ref")
            if isinstance(ref, str):
                local = self._local(ref, place)
                self._kept.add(unquote(local[2:].split("/")[0]))
                if open_:
                    joined.append((ref, place))
        while joined:  # what a reference in a conjunction points to is a part of it
            place = self._local(*joined.pop())
            target = pointed(root, place)
            if place in self._open or not isinstance(target, Mapping):
                continue
            self._open.add(place)
            inner = self._all(target, place, True)
            joined += [
                (one["$ref"], at) for at, one, _ in inner if isinstance(one.get("$ref"), str)
            ]

    def _all(self, schema: Any, place: str, open_: bool) -> Iterator[tuple[str, Any, bool]]:
        """Every schema in a schema, with its place and whether it is a part of a conjunction."""
        if not isinstance(schema, Mapping):
            return
        self._visit(place)
        inside = open_ or _joins(schema)
        base = self._bases.get(place, "")
        own = schema.get("$id", schema.get("id") if place == "#" else None)
        if isinstance(own, str) and not own.startswith("#"):
            _require_short(own)
            base = _joined(base, own).rstrip("#")
            self._places.setdefault(base, place)
        self._bases[place] = base
        yield place, schema, inside
        parts: Iterable[tuple[str, Any]]
        for name, value in schema.items():
            if name in _MAPS and isinstance(value, Mapping):
                parts = [(pointer(name, key), one) for key, one in value.items()]
            elif name in (*_LISTS, "items") and isinstance(value, list):
                parts = [(pointer(name, str(i)), one) for i, one in enumerate(value)]
            elif name in _ONE:
                parts = [(pointer(name), value)]
            elif place == "#" and isinstance(value, Mapping) and name not in _VALUES:
                # OpenAPI has components/schemas
                deeper = (
                    (pointer(key, one), deep)
                    for key, inner in value.items() if isinstance(inner, Mapping)
                    for one, deep in inner.items()
                )  # fmt: skip
                start = pointer(name)
                parts = chain([(start, value)], ((start + at, deep) for at, deep in deeper))
            else:
                continue
            apart = name in ("$defs", "definitions")
            for where, one in parts:
                self._bases.setdefault(place + where, base)
                yield from self._all(one, place + where, inside and not apart)

    def _visit(self, place: str) -> None:
        self._units += 64 + len(place)
        if self._units > SCHEMA_UNITS:
            raise ContextError("it has too many parts with long names; make it smaller or plainer")

    def _local(self, ref: str, place: str) -> str:
        """A reference as a pointer; one to another document stays as it is."""
        address, _, part = _joined(self._bases.get(place, ""), ref).partition("#")
        start = self._places.get(address)
        if start is None:
            return ref
        if part and not part.startswith("/"):
            return self._places.get(f"{address}#{unquote(part)}", f"#{part}")
        names = [unquote(n).replace("~1", "/").replace("~0", "~") for n in part.split("/")[1:]]
        local = start + pointer(*names)
        found = start == "#" or pointed(self._root, local) is not None
        return local if found else "#" + pointer(*names)

    def held(self, schema: Any, place: str, words: str, open_: bool = False) -> Any:
        """A part of the schema at `place`, which `words` name in errors."""
        if not isinstance(schema, Mapping):
            return schema
        self._visit(place)
        open_ = open_ or place in self._open
        schema = _rewritten(schema, words)
        joins = _joins(schema)
        made: dict[str, Any] = {}

        def inner(one: Any, *names: str) -> Any:
            return self.held(
                one, place + pointer(*names), ".".join(filter(None, [words, *names])),
                (open_ or joins) and names[0] not in ("$defs", "definitions"),
            )  # fmt: skip

        for name, value in schema.items():
            if name in _MAPS and isinstance(value, Mapping):
                made[name] = {key: inner(one, name, key) for key, one in value.items()}
            elif name in (*_LISTS, "items") and isinstance(value, list):
                made[name] = [inner(one, name, str(i)) for i, one in enumerate(value)]
            elif name in _ONE:
                made[name] = inner(value, name)
            elif name == "$ref" and isinstance(value, str):
                made[name] = self._reference(value, place, words)
            elif name == "pattern" and isinstance(value, str):
                made[name] = _pattern(value, words)
            elif name == "format" and isinstance(value, str) and value in _FORMATS:
                made[name] = value
            elif name == "$schema" and isinstance(value, str) and _DRAFT.fullmatch(value):
                made[name] = value
            elif name == "required":
                made |= {name: value} if isinstance(value, list) else {}
            elif name in _VALUES:
                made[name] = value
            elif place == "#" and name in self._kept and name not in _IGNORED:
                made[name] = self._container(value, place + pointer(name), name)
        if "patternProperties" in made and isinstance(made["patternProperties"], dict):
            patterns = made["patternProperties"].items()
            made["patternProperties"] = {_pattern(key, words): one for key, one in patterns}
        return _counted(_closed(made, open_ or joins), words)

    def _container(self, value: Any, place: str, words: str) -> Any:
        """Whether a member of the root is not a keyword: references name the schemas in it."""
        if not isinstance(value, Mapping):
            return value
        self._visit(place)
        if any(name in value for name in (*_MAPS, *_LISTS, "type", "enum", "const", "$ref")):
            return self.held(value, place, words)
        return {
            key: self._container(one, place + pointer(key), f"{words}.{key}")
            for key, one in value.items()
        }

    def _reference(self, ref: str, place: str, words: str) -> str:
        local = self._local(ref, place)
        if not local.startswith("#"):
            raise _wrong(words, f"$ref to {ref[:60]!r}, another document; put it into $defs")
        if pointed(self._root, local) is None:
            raise _wrong(words, f"$ref to {ref[:60]!r}, which is not in the schema")
        return local


def _joined(base: str, ref: str) -> str:
    """The address that a reference means."""
    if ref.startswith("#"):
        return base + ref
    try:
        address = urljoin(base, ref)
    except ValueError:
        return ref
    _require_short(address.partition("#")[0])
    return address


def _require_short(address: str) -> None:
    if len(address) > SCHEMA_ADDRESS:
        raise ContextError(
            f"it has an address or anchor of {len(address)} characters ({address[:60]!r}); "
            f"{SCHEMA_ADDRESS} are allowed"
        )


_IGNORED = frozenset(("$schema", "$id", "id", "default", "examples", "title", "description"))


def _joins(schema: Mapping[str, Any]) -> bool:
    """True if an object is described in several places, all of which hold."""
    branches = [
        one for name in ("allOf", "anyOf", "oneOf")
        for one in _listed(schema.get(name))
        if isinstance(one, Mapping)
    ]  # fmt: skip
    some = [one for one in branches if {"properties", "additionalProperties", *_JOINS} & set(one)]
    here = "properties" in schema or "additionalProperties" in schema
    every = schema.get("allOf")
    if isinstance(every, list) and len(every) > 1 and some:
        return True
    n_joins = sum(name in schema for name in _JOINS)
    return bool(("$ref" in schema or some) and (here or n_joins > 1))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _rewritten(schema: Mapping[str, Any], words: str) -> dict[str, Any]:
    """A schema whose narrowing keywords are ones that can be held. Raises ContextError for one that
    cannot."""
    made = {k: v for k, v in schema.items() if v is not None or k == "const"}
    kinds = made.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for name in ("type", "enum", "anyOf", "oneOf"):
        if made.get(name) == []:
            raise _wrong(words, f"an empty {name}, which allows nothing")
    for kind in kinds:
        if kind not in _TYPES:
            raise _wrong(words, f"the type {str(kind)[:40]!r}; types are {', '.join(_TYPES)}")
    if not all(isinstance(name, str) for name in _listed(made.get("required"))):
        raise _wrong(words, "a list required of which not every value is a name")
    for name in _COUNTS:
        if isinstance(made.get(name), float) and made[name].is_integer():
            made[name] = int(made[name])
    largest = _LARGEST["integer" if "number" not in kinds and "integer" in kinds else "number"]
    for name, sign in (("minimum", -1), ("maximum", 1)):
        for bound in (name, f"exclusive{name.capitalize()}"):
            value = made.get(bound)
            if isinstance(value, int | float) and abs(value) > largest:
                if sign * value < 0:
                    raise _unheld(words, bound, f"of {value}")
                made[bound] = sign * largest
    for old, new in (("$dynamicRef", "$ref"), ("$recursiveRef", "$ref")):
        if isinstance(made.get(old), str):
            made.setdefault(new, made.pop(old))
    joins = any(name in made for name in _JOINS)
    for name, instead in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", "items"),
    ):
        rest = made.pop(name, True)
        if rest is not True and rest != {}:
            if joins:
                raise _unheld(words, name)
            made.setdefault(instead, rest)
    if made.get("uniqueItems") is True and made.get("maxItems", 2) not in (0, 1):
        raise _unheld(words, "uniqueItems")
    if "if" in made and ("then" in made or "else" in made):
        raise _unheld(words, "if")
    if "not" in made and made["not"] is not False:
        raise _unheld(words, "not")
    if "contains" in made and (made.get("minContains") != 0 or "maxContains" in made):
        raise _unheld(words, "contains")
    for name in ("dependentRequired", "dependentSchemas", "dependencies"):
        if made.get(name):
            raise _unheld(words, name)
    if "propertyNames" in made:
        made = _named(made, words)
    if made.get("nullable") is True:
        made = _nullable(made)
    return made


def _named(schema: dict[str, Any], words: str) -> dict[str, Any]:
    """A schema without `propertyNames`."""
    names = schema.pop("propertyNames")
    names = {} if names is True else names
    if not isinstance(names, Mapping):
        raise _unheld(words, "propertyNames")
    known = ("type", "enum", "const", "pattern", "title", "description", "$comment", "$schema")
    rest = schema.get("additionalProperties", True)
    listed = [names["const"]] if "const" in names else names.get("enum")
    narrows = "pattern" in names or listed is not None
    if set(names) - set(known) or (narrows and "patternProperties" in schema):
        raise _unheld(words, "propertyNames")
    if not narrows:
        return schema
    own = schema.get("properties", {})
    if listed is not None and isinstance(listed, list) and isinstance(own, Mapping):
        texts = [name for name in listed if isinstance(name, str)]
        schema["properties"] = {name: own.get(name, rest) for name in texts}
        return schema | {"additionalProperties": False}
    if own or not isinstance(names["pattern"], str):
        raise _unheld(words, "propertyNames")
    return schema | {"patternProperties": {names["pattern"]: rest}, "additionalProperties": False}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's way to allow null."""
    null = {"type": "null"}
    kind = schema.get("type")
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if "const" in schema:
        schema["enum"] = [schema.pop("const"), None]
    if kind:
        kinds = kind if isinstance(kind, list) else [kind]
        schema["type"] = [*(one for one in kinds if one != "null"), "null"]
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            schema[name] = [*schema[name], null]
    if "$ref" in schema or "allOf" in schema:
        apart = {k: v for k, v in schema.items() if k not in ("$ref", "allOf", "nullable")}
        inner = {k: schema[k] for k in ("$ref", "allOf") if k in schema}
        return {**apart, "anyOf": [inner, null]}
    return schema


def _closed(schema: dict[str, Any], open_: bool) -> dict[str, Any]:
    """An object that lists its properties has no others, unless it says so."""
    own = schema.get("properties")
    opened = "additionalProperties" in schema or "patternProperties" in schema
    if open_ or opened or not isinstance(own, dict):
        return schema
    if any(name not in own for name in schema.get("required") or ()):
        return schema
    return {**schema, "additionalProperties": False}


def _counted(schema: dict[str, Any], words: str) -> dict[str, Any]:
    """A schema without numbers of properties that hold anyway."""
    own, required = schema.get("properties"), schema.get("required") or []
    if not isinstance(own, dict) or not own:
        return schema
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if isinstance(least, int) and least <= len(required):
        del schema["minProperties"]
    if isinstance(most, int) and len(own) <= most and schema.get("additionalProperties") is False:
        del schema["maxProperties"]
    for name in ("minProperties", "maxProperties"):
        if name in schema and any(key not in required for key in own):
            raise _unheld(words, name, "beside properties that may be missing")
    return schema


def _pattern(pattern: str, words: str) -> str:
    """A pattern of ECMAScript as one of the grammar compiler: braces that count nothing, brackets
    in a class and escaped signs are letters there."""
    made: list[str] = []
    at, start = 0, -1  # where a class began
    while at < len(pattern):
        char = pattern[at]
        unheld = _UNHELD.match(pattern, at) if start < 0 else None
        if unheld is not None:
            raise _unheld(words, "pattern", f"with {unheld[0]}")
        count = None if start >= 0 else _COUNT.match(pattern, at)
        escape = _ESCAPE.match(pattern, at)
        if escape is not None:
            made.append(_escaped(escape[0], start >= 0))
            at = escape.end() - 1
        elif start >= 0:
            first = at - start == 1 or (at - start == 2 and pattern[start + 1] == "^")
            double = char in "&~-" and pattern[at : at + 2] == char * 2
            beside = char == "-" and bool(_CLASS.match(made[-1]) or _CLASS.match(pattern, at + 1))
            made.append(f"\\{char}" if char == "[" or ((double or beside) and not first) else char)
            start = -1 if char == "]" else start
        elif count is not None and made:
            made.append(count[0])
            at = count.end() - 1
        elif char in "{}":
            made.append(f"\\{char}")
        elif pattern.startswith("[^]", at) and pattern.find("]", at + 3) < 0:
            made.append(r"[\s\S]")
            at += 2
        else:
            start = at if char == "[" else -1
            made.append(char)
        at += 1
    return "".join(made)


def _escaped(text: str, inside: bool) -> str:
    """An escape of ECMAScript, in a class if `inside`, as one of the grammar compiler."""
    letter = text[1:2]
    if len(text) == 12 and letter == "u" and text[2] != "{":
        pair = bytes.fromhex(text[2:6] + text[8:12]).decode("utf-16-be", "replace")
        return f"\\u{{{ord(pair[0]):x}}}"
    if letter == "c" and len(text) == 3:
        return f"\\x{ord(text[2]) % 32:02x}"
    if letter == "0" or (inside and letter == "b"):
        return r"\x00" if letter == "0" else r"\x08"
    if letter == "Z":  # of Python
        return r"\z"
    return letter if letter and not letter.isalnum() and letter not in _META else text


def _unheld(words: str, keyword: str, more: str = "") -> ContextError:
    said = f"{keyword} {more}" if more else keyword
    return _wrong(
        words, f"{said}, which no answer can be held to; leave {keyword} out, and check it in "
        "your program"
    )  # fmt: skip


def _wrong(words: str, what: str) -> ContextError:
    return ContextError(f"{words[:200]} has {what}" if words else f"it has {what}")
