package forge.external;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.node.ObjectNode;

/** Entry point: creates a service, and the options of services and entries. */
public final class Forge {
    private Forge() {}

    /** Option of a service. */
    public interface ServiceOption { void apply(Settings settings); }
    /** Option of an entry: a member of its object in the manifest. */
    public interface EntryOption { void apply(ObjectNode entry); }

    /** Settings of a service, changed by its options. */
    public static final class Settings {
        String framework = "java/jdk-http";
        String baseUrl;
        String health = "/health";
        int maxCalls = 64;
        boolean exposeErrors;

        private Settings() {}
    }

    /**
     * Creates a service without entries.
     *
     * @throws IllegalArgumentException if the name or an option would make a manifest that a bridge refuses
     */
    public static ForgeRegistry service(String name, ServiceOption... options) {
        Settings settings = new Settings();
        for (ServiceOption option : options) option.apply(settings);
        return new ForgeRegistry(name, settings);
    }

    /** Framework shown in the manifest; default {@code java/jdk-http}. */
    public static ServiceOption framework(String framework) { return settings -> settings.framework = framework; }

    /** Address at which the bridge reaches the service; default: that of the running server. */
    public static ServiceOption baseUrl(String baseUrl) { return settings -> settings.baseUrl = baseUrl; }

    /** Path of the health check; default {@code /health}. */
    public static ServiceOption health(String path) { return settings -> settings.health = path; }

    /** Maximum number of calls at once, default 64. Further ones are answered with 503. */
    public static ServiceOption maxCalls(int count) { return settings -> settings.maxCalls = count; }

    /** Sends the texts of unexpected exceptions to callers. They are logged in any case. */
    public static ServiceOption exposeErrors() { return settings -> settings.exposeErrors = true; }

    /** Handler of an entry whose arguments become an instance of {@code input}. */
    public static <I> ForgeHandler<I> handle(Class<I> input, ForgeHandler.InputAndContext<I> function) {
        return new ForgeHandler<>(input, function);
    }

    /** Handler that does not need the caller. */
    public static <I> ForgeHandler<I> handle(Class<I> input, ForgeHandler.InputOnly<I> function) {
        return new ForgeHandler<>(input, (value, context) -> function.apply(value));
    }

    /** {@code public}, {@code user}, {@code system}, or a policy of the bridge. Without one the entry is public. */
    public static EntryOption policy(String policy) { return entry -> entry.put("policy", policy); }

    public static EntryOption tenantScoped(boolean scoped) { return entry -> entry.put("tenantScoped", scoped); }

    public static EntryOption needsApproval(boolean needed) { return entry -> entry.put("needsApproval", needed); }

    /** The entry changes nothing: {@code transaction} is read-only, {@code risk} is read. Default of queries. */
    public static EntryOption readOnly() { return entry -> entry.put("transaction", "read-only").put("risk", "read"); }

    public static EntryOption description(String description) { return entry -> entry.put("description", description); }

    /** Path of the entry; default {@code /commands/NAME} or {@code /queries/NAME}, which is served in any case. */
    public static EntryOption path(String path) { return entry -> entry.put("path", path); }

    /** {@code read-only}, {@code external-managed}, {@code forge-managed} or {@code saga}. */
    public static EntryOption transaction(String transaction) { return entry -> entry.put("transaction", transaction); }

    /** {@code read}, {@code write}, {@code destructive} or {@code external}. */
    public static EntryOption risk(String risk) { return entry -> entry.put("risk", risk); }

    /** Names of the events that the entry causes. */
    public static EntryOption effects(String... effects) {
        return entry -> entry.set("effects", Json.MAPPER.valueToTree(effects));
    }

    /** JSON Schema of the arguments, as text. The bridge checks arguments against it and gives it to models. */
    public static EntryOption inputSchema(String schema) {
        return entry -> {
            try {
                entry.set("inputSchema", Json.MAPPER.readTree(schema));
            } catch (JsonProcessingException error) {
                throw new IllegalArgumentException("inputSchema must be JSON: " + error.getOriginalMessage());
            }
        };
    }
}
