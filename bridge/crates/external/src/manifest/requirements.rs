//! Requirement of each field of a manifest, for the diagnostics: the schema decides, these texts explain.

/// Requirement of a field.
pub(super) struct Requirement {
    /// Path without indices.
    pub(super) field: &'static str,
    pub(super) must: &'static str,
    pub(super) hint: &'static str,
}

const fn field(field: &'static str, must: &'static str, hint: &'static str) -> Requirement {
    Requirement { field, must, hint }
}

const NAME: &str =
    "be a text of 1 to 256 characters that is not blank and has no control characters";
const TEXT: &str = "be a text that is not blank";
const BOOLEAN: &str = "be true or false";

const REQUIREMENTS: [Requirement; 27] = [
    field(
        "",
        "be a JSON object",
        "Write an object with forgeProtocol, language, service and entries.",
    ),
    field(
        "$schema",
        "be a text",
        "Remove it, or give the URL of the schema.",
    ),
    field(
        "forgeProtocol",
        "be the text \"1.0\"",
        "Write \"forgeProtocol\": \"1.0\".",
    ),
    field(
        "language",
        TEXT,
        "Name the language of the service, such as \"java\".",
    ),
    field("framework", TEXT, "Name the framework, or remove the key."),
    field(
        "service",
        "be an object",
        "Write \"service\": {\"name\": …, \"transport\": …}.",
    ),
    field(
        "service.name",
        NAME,
        "Give the service a short name without dots.",
    ),
    field(
        "service.transport",
        "be one of http, grpc and stdio",
        "Set it to how the service is called.",
    ),
    field(
        "service.baseUrl",
        "be an http or https URL without credentials; a service with the transport http needs it",
        "Write the service's address, such as \"http://127.0.0.1:8080\".",
    ),
    field(
        "service.command",
        "be a command line with balanced quotes; a service with the transport stdio needs it, or commandArgs",
        "Write the command that starts the service, such as \"python3 billing.py\".",
    ),
    field(
        "service.commandArgs",
        "be an array of texts that begins with a program",
        "Write the program and its arguments, such as [\"python3\", \"billing.py\"].",
    ),
    field(
        "service.health",
        TEXT,
        "Write the path of a health check, such as \"/health\", or remove the key.",
    ),
    field(
        "entries",
        "be an array of at most 1000 entries",
        "Write \"entries\": [].",
    ),
    field(
        "entries[]",
        "be an object",
        "Write {\"name\": …, \"kind\": …}.",
    ),
    field("entries[].name", NAME, "Give the entry a name."),
    field(
        "entries[].kind",
        "be command or query",
        "Use query for what only reads.",
    ),
    field(
        "entries[].description",
        "be a text",
        "Write a text, or remove the key.",
    ),
    field(
        "entries[].path",
        "be a path below the origin of service.baseUrl",
        "Write a path, such as \"/invoices\"; another host needs a service of its own.",
    ),
    field(
        "entries[].method",
        "be GET or POST",
        "Remove the key for POST.",
    ),
    field(
        "entries[].inputSchema",
        "be a JSON Schema",
        "Correct the schema, or remove the key.",
    ),
    field(
        "entries[].policy",
        TEXT,
        "Write public, user, system, or the name of a policy of the bridge's settings.",
    ),
    field(
        "entries[].tenantScoped",
        BOOLEAN,
        "Write true or false without quotes.",
    ),
    field(
        "entries[].transaction",
        "be one of read-only, external-managed, forge-managed and saga",
        "Remove the key, or use one of these.",
    ),
    field(
        "entries[].needsApproval",
        BOOLEAN,
        "Write true or false without quotes.",
    ),
    field(
        "schemas",
        "be an object",
        "Write an object, or remove the key.",
    ),
    field(
        "entries[].risk",
        "be one of read, write, destructive and external",
        "Remove the key, or use one of these.",
    ),
    field(
        "entries[].effects",
        "be an array of texts",
        "Write an array, such as [\"invoice.created\"].",
    ),
];

/// Requirement of a field by its path without indices.
pub(super) fn of(path: &str) -> Option<&'static Requirement> {
    REQUIREMENTS
        .iter()
        .find(|requirement| requirement.field == path)
}
