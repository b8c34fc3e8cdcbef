"""Types in Python: `TypedDict`, so that an answer is the JSON that came, with its names and with members that are not
known yet."""

import json
import keyword
import re
import textwrap

from language import ALTERNATIVES, EVENTS, EXTENDED, FILES, HEAD, NAMES, VARIANTS, WIDTH, Language, camel


class Python(Language):
    null, unknown = "None", "Any"
    plain = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}

    def __init__(self, schemas):
        super().__init__(schemas)
        self.inner: list[str] = []
        self.done: set[str] = set()

    def literal(self, values):
        shown = [
            "None" if value is None else json.dumps(value).replace("true", "True").replace("false", "False")
            for value in values
        ]
        return f"Literal[{', '.join(shown)}]"

    def array(self, item):
        return f"list[{item}]"

    def map(self, value):
        return f"dict[str, {value}]"

    def either(self, types):
        types = list(dict.fromkeys(types))
        return "Any" if "Any" in types else " | ".join(types)

    def object(self, schema, name):
        if not schema["properties"]:
            return "dict[str, Any]"
        self.inner += self.record(name, schema)
        return name

    def docstring(self, schema, indent):
        text = schema.get("description", "").replace("\\", "\\\\").replace('"""', "'''")
        if not text:
            return []
        text = text + " " if text.endswith('"') else text
        if len(text) + len(indent) + 6 <= WIDTH:
            return [f'{indent}"""{text}"""']
        lines = textwrap.wrap(text, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
        return [f'{indent}"""{lines[0]}', *(f"{indent}{line}" for line in lines[1:]), f'{indent}"""']

    def record(self, name, schema, base="TypedDict"):
        required, members = schema.get("required", []), {}
        for key, value in schema["properties"].items():
            kind = self.type(value, f"{name}{camel(key)}")
            members[key] = kind if key in required else f"NotRequired[{kind}]"
        if any(keyword.iskeyword(key) for key in members):
            inside = ", ".join(f'"{key}": {kind}' for key, kind in members.items())
            return [f'{name} = TypedDict("{name}", {{{inside}}})', *self.docstring(schema, ""), ""]
        lines = [f"class {name}({base}):", *self.docstring(schema, "    ")]
        if len(lines) > 1:
            lines.append("")
        for key, kind in members.items():
            lines += [f"    {key}: {kind}", *self.docstring(schema["properties"][key], "    ")]
        return [*lines, ""]

    def alias(self, name, value, schema):
        line = f"{name}: TypeAlias = {value}"
        if len(line) > WIDTH:
            head, _, items = line.removesuffix("]").partition("[")
            line = "\n".join([f"{head}[", *(f"    {item}," for item in items.split(", ")), "]"])
        return [line, *self.docstring(schema, ""), ""]

    def declaration(self, source):
        schema, name = self.schemas[source], NAMES.get(source, source)
        if source in VARIANTS:
            base, parts = self.variants(source)
            lines = self.record(f"{name}Base", base)
            for variant, own, _ in parts:
                lines += self.record(variant, own, f"{name}Base")
            return lines + self.alias(name, f"Union[{', '.join(variant for variant, _, _ in parts)}]", schema)
        if source in EXTENDED:
            base, added = EXTENDED[source]
            lines = self.record(base, self.rest(schema, added))
            return lines + self.record(name, {**schema, **self.part(schema, added)}, base)
        if source in ALTERNATIVES:
            lines, each = self.record(f"{name}Base", self.rest(schema, ALTERNATIVES[source])), []
            for key in ALTERNATIVES[source]:
                each.append(f"{camel(key)}{name}")
                lines += self.record(each[-1], {**self.part(schema, [key]), "required": [key]}, f"{name}Base")
            return lines + self.alias(name, f"Union[{', '.join(each)}]", schema)
        if source == "ErrorDetails":
            return []
        if source in EVENTS:
            return self.events(source)
        if "properties" not in schema:
            return self.alias(name, self.type(schema, name), schema)
        return self.record(name, schema)

    def events(self, source):
        _, union, _ = EVENTS[source]
        prefix = "Run" if source == "ForgeEventData" else ""
        lines, names = self.record(f"{union}Base", self.envelope(source)), []
        for kind, data in self.schemas[source]["properties"].items():
            title = camel(kind)
            names.append(f"{title if title.startswith(prefix) else prefix + title}Event")
            described = {"description": data.get("description", "")}
            members = {"type": {"const": kind}, "data": {**data, "description": ""}}
            self.inner = []
            own = self.record(
                names[-1], {"properties": members, "required": ["type", "data"], **described}, f"{union}Base"
            )
            lines += self.inner + own
        self.inner = []
        # Without a last member for other types: type checkers narrow a union only if all of its types are literals.
        text = "Event. Comparing `type` selects the `data`; ignore types that are not named here."
        return lines + self.alias(union, f"Union[{', '.join(names)}]", {"description": text})

    def emit(self, file, source, into):
        """Appends a declaration after those of the same file that it refers to."""
        if source in self.done:
            return
        self.done.add(source)
        self.inner = []
        own = self.declaration(source)
        lines = self.inner + own
        sources = {NAMES.get(name, name): name for name in FILES[file]}
        for name in re.findall(r"\b[A-Z]\w+", "\n".join(line for line in lines if '"""' not in line)):
            if name in sources:
                self.emit(file, sources[name], into)
        into += lines

    def file(self, file):
        self.uses, lines = set(), []
        for name in FILES[file]:
            self.emit(file, name, lines)
        body = "\n".join(lines)
        head = [f'"""{HEAD}"""', "", "from __future__ import annotations", ""]
        for module, names in [
            ("typing", ["Any", "Literal", "Union"]),
            ("typing_extensions", ["NotRequired", "TypeAlias", "TypedDict"]),
        ]:
            used = [name for name in names if re.search(rf"\b{name}\b", body)]
            head += [f"from {module} import {', '.join(used)}", ""] if used else []
        local = [f"from .{place} import {names}" for place, names in self.imports(file)]
        declared = re.findall(r"^(?:class )?([A-Z]\w+)(?=\(| =|: TypeAlias)", body, re.MULTILINE)
        names = textwrap.wrap(", ".join(f'"{name}"' for name in declared), WIDTH - 4, break_on_hyphens=False)
        exported = ["__all__ = [", *(f"    {line}" for line in names), "]", ""]
        return "\n".join([*head, *local, *([""] if local else []), *exported, body])

    def index(self):
        return "\n".join([f'"""{HEAD}"""', "", *(f"from .{file} import *" for file in FILES), ""])
