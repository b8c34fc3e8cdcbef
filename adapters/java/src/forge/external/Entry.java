package forge.external;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Set;

/** Command or query of a service. Refuses at registration whatever a bridge would refuse in the manifest. */
record Entry(String kind, String name, ForgeHandler<?> handler, ObjectNode manifest) {
    private static final Set<String> TRANSACTIONS = Set.of("read-only", "external-managed", "forge-managed", "saga");
    private static final Set<String> RISKS = Set.of("read", "write", "destructive", "external");

    static Entry of(String kind, String name, ForgeHandler<?> handler, Forge.EntryOption... options) {
        String what = kind + " " + name(kind, name);
        boolean query = kind.equals("query");
        ObjectNode manifest = Json.object().put("name", name).put("kind", kind).put("path", route(kind, name));
        manifest.put("method", "POST");
        manifest.put("transaction", query ? "read-only" : "external-managed").put("risk", query ? "read" : "write");
        for (Forge.EntryOption option : options) option.apply(manifest);
        path(what, manifest.path("path").textValue());
        String transaction = manifest.path("transaction").textValue();
        String risk = manifest.path("risk").textValue();
        check(transaction != null && TRANSACTIONS.contains(transaction), what, "transaction: one of " + TRANSACTIONS);
        check(risk != null && RISKS.contains(risk), what, "risk: one of " + RISKS);
        check(!query || transaction.equals("read-only"), what, "transaction must be read-only");
        check(!query || risk.equals("read"), what, "risk must be read");
        check(!query || !manifest.path("needsApproval").asBoolean(), what, "needsApproval is for commands");
        var policy = manifest.path("policy");
        check(policy.isMissingNode() || Json.text(manifest, "policy") != null, what, "policy must not be blank");
        var schema = manifest.path("inputSchema");
        check(schema.isMissingNode() || schema.isObject() || schema.isBoolean(), what,
            "inputSchema must be an object or a boolean");
        return new Entry(kind, name, handler, manifest);
    }

    /** Path at which an entry is served besides its declared one. */
    static String route(String kind, String name) {
        String encoded = URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
        return (kind.equals("query") ? "/queries/" : "/commands/") + encoded;
    }

    static String name(String what, String name) {
        check(name != null && !name.isBlank() && name.length() <= 256, what, "name must have 1 to 256 characters");
        check(name.chars().noneMatch(Character::isISOControl), what, "name must not have control characters");
        check(!name.startsWith("."), what, "name must not begin with a dot");
        return name;
    }

    /** Refuses a path that leaves the service's origin, or that a client would rewrite. */
    static String path(String what, String path) {
        check(path != null && path.startsWith("/") && path.matches("(/(?!\\.)[\\w.~!$&'()*+,;=:@%-]+)*/?"), what,
            "path must be absolute, percent-encoded, without query, empty segments or segments that begin with a dot");
        return path;
    }

    static String baseUrl(String url) {
        URI uri = URI.create(url);
        check(uri.getRawAuthority() != null && !uri.getRawAuthority().contains("@")
            && String.valueOf(uri.getScheme()).matches("(?i)https?"),
            "service", "baseUrl must be an http or https URL without credentials");
        return url;
    }

    static void check(boolean holds, String what, String must) {
        if (!holds) throw new IllegalArgumentException(what + ": " + must);
    }
}
