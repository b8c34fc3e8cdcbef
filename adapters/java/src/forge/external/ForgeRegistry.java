package forge.external;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Semaphore;

/** A service: its commands and queries, its manifest, and the answers to requests. Safe for use by several threads. */
public final class ForgeRegistry {
    /** Maximum size of a request's body. */
    public static final int MAX_BODY_BYTES = 10 * 1024 * 1024;

    private static final System.Logger LOG = System.getLogger(ForgeRegistry.class.getName());

    private final String name;
    private final Forge.Settings settings;
    private final Semaphore calls;
    /** In the order of registration, by declared path and by the default one. */
    private final Map<String, Entry> entries = Collections.synchronizedMap(new LinkedHashMap<>());
    private volatile String servedAt;

    ForgeRegistry(String name, Forge.Settings settings) {
        this.name = Entry.name("service", name);
        this.settings = settings;
        Entry.check(!name.contains("."), "service", "name must not have a dot: it is called as service.entry");
        Entry.check(!settings.framework.isBlank(), "service", "framework must not be blank");
        Entry.check(settings.maxCalls > 0, "service", "maxCalls must be positive");
        Entry.path("service: health", settings.health);
        if (settings.baseUrl != null) Entry.baseUrl(settings.baseUrl);
        calls = new Semaphore(settings.maxCalls);
    }

    /** Adds a command. */
    public ForgeRegistry command(String name, ForgeHandler<?> handler, Forge.EntryOption... options) {
        return add(Entry.of("command", name, handler, options));
    }

    /** Adds a query, which changes nothing. */
    public ForgeRegistry query(String name, ForgeHandler<?> handler, Forge.EntryOption... options) {
        return add(Entry.of("query", name, handler, options));
    }

    private synchronized ForgeRegistry add(Entry entry) {
        Set<String> paths = Set.copyOf(List.of(
            Entry.route(entry.kind(), entry.name()), entry.manifest().get("path").textValue()));
        for (String path : paths) {
            boolean taken = entries.containsKey(path) || path.equals(settings.health) || path.equals("/manifest");
            Entry.check(!taken, entry.kind() + " " + entry.name(), path + " is served already");
        }
        paths.forEach(path -> entries.put(path, entry));
        return this;
    }

    /** The manifest, as {@code GET /manifest} shows it. */
    public ObjectNode manifest() {
        String baseUrl = settings.baseUrl == null ? servedAt : settings.baseUrl;
        if (baseUrl == null) throw new IllegalStateException("no Forge.baseUrl and no running server");
        return manifest(baseUrl);
    }

    private synchronized ObjectNode manifest(String baseUrl) {
        ObjectNode manifest = Json.object();
        manifest.put("forgeProtocol", "1.0").put("language", "java").put("framework", settings.framework);
        manifest.putObject("service").put("name", name).put("transport", "http").put("baseUrl", baseUrl)
            .put("health", settings.health);
        var list = manifest.putArray("entries");
        entries.values().stream().distinct().forEach(entry -> list.add(entry.manifest().deepCopy()));
        return manifest;
    }

    /** Serves at {@code 127.0.0.1}; port 0 takes a free one. */
    public ForgeServer serve(int port) throws IOException {
        return serve("127.0.0.1", port);
    }

    /** Serves at an address. Whoever reaches it can claim to be any caller, so let only the bridge reach it. */
    public ForgeServer serve(String host, int port) throws IOException {
        ForgeServer server = new ForgeServer(this, settings.maxCalls, host, port);
        servedAt = server.url();
        return server;
    }

    /** Answers a request. Never throws; what handlers throw is logged. */
    public ForgeAnswer answer(ForgeRequest request) {
        String path = request.path();
        if (path.equals(settings.health)) return write(200, Json.object().put("ok", true).put("service", name));
        if (path.equals("/manifest")) {
            return request.method().matches("GET|HEAD") ? manifest(request) : notAllowed("GET, HEAD");
        }
        String traceId = traceId(null, request);
        Entry entry = entries.get(path);
        String[] segments = path.split("/", -1);
        boolean route = segments.length == 3 && segments[1].matches("commands|queries") && !segments[2].isEmpty();
        if (entry == null && !route) {
            return failure(404, "FORGE_JAVA_ROUTE_NOT_FOUND", "no such route; see /manifest", traceId);
        }
        if (!request.method().matches("GET|POST")) return notAllowed("GET, POST");
        try {
            // The name can be escaped otherwise than by this class.
            String kind = segments[1].equals("queries") ? "query" : "command";
            if (entry == null) entry = entries.get(Entry.route(kind, decode(segments[2].replace("+", "%2B"))));
            if (entry == null) {
                return failure(404, "FORGE_JAVA_ENTRY_NOT_FOUND", "no " + kind + " at " + path, traceId);
            }
        } catch (IllegalArgumentException error) {
            return failure(400, "FORGE_JAVA_BAD_REQUEST", error.getMessage(), traceId);
        }
        if (!calls.tryAcquire()) return failure(503, "FORGE_JAVA_BUSY", "too many calls at once", traceId);
        try {
            return call(entry, request, traceId);
        } finally {
            calls.release();
        }
    }

    private ForgeAnswer manifest(ForgeRequest request) {
        try {
            String baseUrl = parameter(request.query(), "baseUrl");
            return write(200, baseUrl == null ? manifest() : manifest(Entry.baseUrl(baseUrl)));
        } catch (IllegalArgumentException | IllegalStateException error) {
            return failure(400, "FORGE_JAVA_BAD_REQUEST", error.getMessage(), null);
        }
    }

    private ForgeAnswer call(Entry entry, ForgeRequest request, String traceId) {
        JsonNode args;
        ForgeContext context;
        try {
            JsonNode envelope = request.method().equals("GET") ? Json.object() : body(request);
            traceId = traceId(Json.text(Json.member(envelope, "forge"), "traceId"), request);
            String parameter = request.method().equals("GET") ? parameter(request.query(), "args") : null;
            args = parameter == null ? envelope.path("args") : Json.parse(parameter);
            if (args.isMissingNode() || args.isNull()) args = Json.object();
            context = ForgeContext.of(envelope, traceId, name, entry, request);
        } catch (ForgeException error) {
            return failure(error.status(), error.code(), error.getMessage(), traceId);
        } catch (IOException | IllegalArgumentException error) {
            return failure(400, "FORGE_JAVA_BAD_REQUEST", "bad request: " + error.getMessage(), traceId);
        }
        try {
            ObjectNode answer = Json.object().put("ok", true);
            Object result = entry.handler().call(args, context);
            answer.putPOJO("result", result);
            if (traceId != null) answer.put("traceId", traceId);
            return write(200, answer);
        } catch (ForgeException error) {
            return failure(error.status(), error.code(), error.getMessage(), traceId);
        } catch (Throwable error) {
            LOG.log(System.Logger.Level.ERROR, entry.kind() + " " + entry.name() + " failed, trace " + traceId, error);
            String message = settings.exposeErrors ? error.toString() : "the handler failed";
            return failure(500, "FORGE_JAVA_HANDLER_FAILED", message, traceId);
        }
    }

    private static JsonNode body(ForgeRequest request) throws IOException {
        byte[] bytes = request.body().readNBytes(MAX_BODY_BYTES + 1);
        if (bytes.length > MAX_BODY_BYTES) {
            String message = "a body has at most " + MAX_BODY_BYTES + " bytes";
            throw new ForgeException("FORGE_JAVA_PAYLOAD_TOO_LARGE", message, 413);
        }
        JsonNode envelope = Json.parse(bytes);
        if (envelope.isMissingNode()) return Json.object();
        if (!envelope.isObject()) throw new IOException("the body must be a JSON object");
        return envelope;
    }

    /** The trace id of the envelope, else of the headers; null if neither has a usable one. */
    private static String traceId(String given, ForgeRequest request) {
        for (String id : new String[] {given, request.header("x-forge-trace-id")}) {
            if (id != null && id.matches("[!-~]{1,64}")) return id;
        }
        return null;
    }

    private static String parameter(String query, String name) {
        for (String pair : query == null ? new String[0] : query.split("&")) {
            if (pair.startsWith(name + "=")) return decode(pair.substring(name.length() + 1));
        }
        return null;
    }

    /** @throws IllegalArgumentException at a bad percent escape */
    private static String decode(String text) { return URLDecoder.decode(text, StandardCharsets.UTF_8); }

    private static ForgeAnswer notAllowed(String allow) {
        byte[] body = failure(405, "FORGE_JAVA_METHOD_NOT_ALLOWED", "use " + allow, null).body();
        return new ForgeAnswer(405, allow, body);
    }

    static ForgeAnswer failure(int status, String code, String message, String traceId) {
        ObjectNode answer = Json.object().put("ok", false);
        ObjectNode diagnostic = answer.putArray("diagnostics").addObject();
        diagnostic.put("severity", "error").put("code", code).put("message", message);
        diagnostic.putArray("docs").add("docs/forge-protocol.md");
        answer.putObject("error").put("code", code).put("message", message);
        if (traceId != null) answer.put("traceId", traceId);
        return write(status, answer);
    }

    private static ForgeAnswer write(int status, ObjectNode tree) {
        return new ForgeAnswer(status, null, Json.write(tree));
    }
}
