package forge.external;

import java.io.InputStream;
import java.util.function.UnaryOperator;

/**
 * HTTP request for {@link ForgeRegistry#answer}, from any server. Path and query (or null) are still percent-encoded;
 * {@code headers} gives the first value of a header, or null.
 */
public record ForgeRequest(
    String method, String path, String query, UnaryOperator<String> headers, InputStream body) {
    /** Value of a header; null if it is missing or blank. */
    String header(String name) {
        String value = headers.apply(name);
        return value == null || value.isBlank() ? null : value;
    }
}
