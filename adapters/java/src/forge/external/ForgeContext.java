package forge.external;

import static java.util.Objects.requireNonNullElse;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/**
 * Caller and call of a handler, as the bridge states them.
 *
 * @param authKind {@code user}, {@code system} or {@code anonymous}
 * @param auth all that the envelope says of the caller
 * @param traceId 1 to 64 visible ASCII characters, or null
 * @param service as in the envelope, else of the registry; {@code entry} and {@code kind} likewise of the route
 */
public record ForgeContext(
    String authKind, String userId, String tenantId, String role, List<String> roles, List<String> permissions,
    JsonNode auth, String traceId, String service, String entry, String kind, ForgeRequest request) {

    /** First value of a header of the request, or null. */
    public String header(String name) { return request.header(name); }

    /** The caller is that of the envelope, or of the headers if the envelope names none. */
    static ForgeContext of(JsonNode envelope, String traceId, String service, Entry entry, ForgeRequest request)
        throws IOException {
        JsonNode auth = Json.member(envelope, "auth");
        if (Json.text(auth, "kind") == null) auth = fromHeaders(request);
        String kind = Json.text(auth, "kind");
        if (!Set.of("user", "system", "anonymous").contains(kind)) {
            throw new IOException("auth.kind must be user, system or anonymous");
        }
        JsonNode forge = Json.member(envelope, "forge");
        return new ForgeContext(kind, Json.text(auth, "userId"), Json.text(auth, "tenantId"), Json.text(auth, "role"),
            texts(auth.get("roles")), texts(auth.get("permissions")), auth, traceId,
            requireNonNullElse(Json.text(forge, "service"), service),
            requireNonNullElse(Json.text(forge, "entry"), entry.name()),
            requireNonNullElse(Json.text(forge, "kind"), entry.kind()), request);
    }

    private static ObjectNode fromHeaders(ForgeRequest request) throws IOException {
        ObjectNode auth = Json.object();
        auth.put("kind", requireNonNullElse(request.header("x-forge-auth-kind"), "anonymous"));
        auth.put("userId", request.header("x-forge-user-id"));
        auth.put("tenantId", request.header("x-forge-tenant-id"));
        auth.put("role", request.header("x-forge-role"));
        for (String name : List.of("roles", "permissions")) {
            String value = request.header("x-forge-" + name);
            if (value == null) continue;
            if (!(Json.parse(value) instanceof ArrayNode list)) {
                throw new IOException("x-forge-" + name + " must be a JSON array");
            }
            auth.set(name, list);
        }
        return auth;
    }

    private static List<String> texts(JsonNode list) {
        List<String> texts = new ArrayList<>();
        if (list != null) list.forEach(item -> texts.add(item.asText()));
        return List.copyOf(texts);
    }
}
