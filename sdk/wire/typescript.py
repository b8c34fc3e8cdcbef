"""Types in TypeScript: interfaces, and unions whose members are told apart by a literal."""

import json
import textwrap

from language import ALTERNATIVES, EVENTS, EXTENDED, FILES, HEAD, MAPS, NAMES, VARIANTS, WIDTH, Language


class TypeScript(Language):
    null, unknown = "null", "unknown"
    plain = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}

    def literal(self, values):
        return self.either([json.dumps(value) for value in values])

    def array(self, item):
        return f"({item})[]" if " | " in item and not item.startswith("{") else f"{item}[]"

    def map(self, value):
        return f"Record<string, {value}>"

    def object(self, schema, name):
        if not schema["properties"]:
            return "Record<string, unknown>" if self.is_open(schema) else "Record<string, never>"
        body = self.members(schema, name)
        line = " ".join(one.strip() for one in body).removesuffix(";")
        is_short = len(line) < 100 and "/**" not in line
        return f"{{ {line} }}" if is_short else "{\n" + "\n".join(body) + "\n}"

    def members(self, schema, name):
        lines = []
        for key, value in schema["properties"].items():
            lines += self.comment(value)
            mark = "" if key in schema.get("required", []) else "?"
            shown = key if key.isidentifier() else json.dumps(key)
            text = f"{shown}{mark}: {self.type(value, name)};"
            lines += [f"  {line}" for line in text.split("\n")]
        if self.is_open(schema):
            lines.append("  [member: string]: unknown;")
        return lines

    def comment(self, schema, indent="  "):
        text = schema.get("description", "").replace("*/", "*\\/")
        if not text:
            return []
        if len(text) + len(indent) + 7 <= WIDTH:
            return [f"{indent}/** {text} */"]
        lines = textwrap.wrap(text, WIDTH - len(indent) - 3, break_long_words=False, break_on_hyphens=False)
        return [f"{indent}/**", *(f"{indent} * {line}" for line in lines), f"{indent} */"]

    def interface(self, name, schema, extends=""):
        body = "\n".join(self.members(schema, name))
        return [*self.comment(schema, ""), f"export interface {name}{extends} {{", body, "}", ""]

    def declaration(self, source):
        schema, name = self.schemas[source], NAMES.get(source, source)
        comment = self.comment(schema, "")
        if source in VARIANTS:
            base, parts = self.variants(source)
            lines = self.interface(f"{name}Base", base)
            for variant, own, others in parts:
                lines += [f"export interface {variant} extends {name}Base {{", *self.members(own, variant)]
                lines += [*(f"  {other}?: undefined;" for other in others), "}", ""]
            return [*lines, *comment, f"export type {name} = {' | '.join(variant for variant, _, _ in parts)};", ""]
        if source in EXTENDED:
            base, added = EXTENDED[source]
            lines = self.interface(base, self.rest(schema, added))
            return lines + self.interface(name, {**schema, **self.part(schema, added)}, f" extends {base}")
        if source in ALTERNATIVES:
            base = self.object({**self.rest(schema, ALTERNATIVES[source]), "description": ""}, name)
            lines = [*comment, f"export type {name} = {base} & ("]
            for key in ALTERNATIVES[source]:
                one = self.members({**self.part(schema, [key]), "required": [key]}, name)
                lines += ["  | {", *(f"    {line}" for line in one), "    }"]
            return [*lines, ");", ""]
        if "properties" not in schema:
            return [*comment, *self.alias(name, self.type(schema, name)), ""]
        if source in MAPS:
            schema = {**schema, "required": list(schema["properties"])}
        lines = self.interface(name, schema)
        return lines + self.events(source) if source in EVENTS else lines

    @staticmethod
    def alias(name, value):
        line = f"export type {name} = {value};"
        if len(line) <= WIDTH:
            return [line]
        return [
            f"export type {name} =",
            *(f"  | {one}" for one in value.split(" | ")[:-1]),
            f"  | {value.split(' | ')[-1]};",
        ]

    def events(self, source):
        _, union, other = EVENTS[source]
        kind = source.removesuffix("Data") + "Type"
        return [
            f"export type {kind} = keyof {source};",
            "",
            *self.interface(f"{union}Base", self.envelope(source)),
            "/**",
            ' * Type that this version does not name; compare `String(event.type)`. An enum, because `type === "…"` would also',
            " * select events whose type is `string`.",
            " */",
            f"declare enum {other}Type {{",
            '  Unnamed = "",',
            "}",
            "",
            "/** Event of a type that this version does not name. */",
            f"export interface {other} extends {union}Base {{",
            f"  type: {other}Type;",
            "  data: Record<string, unknown>;",
            "}",
            "",
            "/** Event. Comparing `type` selects the `data`; ignore types that you do not know. */",
            f"export type {union} =",
            f"  | {{ [Type in {kind}]: {union}Base & {{ type: Type; data: {source}[Type] }} }}[{kind}]",
            f"  | {other};",
            "",
        ]

    def file(self, file):
        self.uses = set()
        lines = [line for name in FILES[file] for line in self.declaration(name)]
        imports = [f'import type {{ {names} }} from "./{place}.js";' for place, names in self.imports(file)]
        return "\n".join([f"// {HEAD}", *imports, "", *lines])

    def index(self):
        return "\n".join([f"// {HEAD}", *(f'export * from "./{file}.js";' for file in FILES), ""])
