/** Parts of OpenAPI that the bridge's document uses. */

export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  format?: string;
  enum?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
  maxLength?: number;
  default?: unknown;
}

export interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema: Schema;
}

interface Answer {
  $ref?: string;
  description?: string;
  content?: Record<string, { schema?: Schema }>;
}

interface Described {
  operationId: string;
  tags?: string[];
  summary: string;
  description?: string;
  parameters?: Parameter[];
  requestBody?: { content: Record<string, { schema: Schema }> };
  responses: Record<string, Answer>;
}

export type Operation = Described & { method: string; path: string };

export interface Reference {
  info: { description: string; version: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Described>>;
  webhooks: Record<string, { post?: Described }>;
  components: Record<string, Record<string, unknown>>;
}

export function operations(reference: Reference): Operation[] {
  return Object.entries(reference.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, described]) => ({ ...described, method, path })),
  );
}

/** Resolves a `$ref`; returns other values unchanged. */
export function shape<T extends { $ref?: string }>(reference: Reference, value: T): T {
  if (!value.$ref) return value;
  const [, , group = "", name = ""] = value.$ref.split("/");
  return (reference.components[group]?.[name] ?? {}) as T;
}
