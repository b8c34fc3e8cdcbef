package forge.external;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParseException;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.StreamReadFeature;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.MissingNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Strict JSON: one value, each key once, no lost digits. Jackson bounds depth and digits of a number to 1,000. */
final class Json {
    static final JsonMapper MAPPER = JsonMapper
        .builder(JsonFactory.builder().enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION).build())
        .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS, DeserializationFeature.FAIL_ON_NULL_FOR_PRIMITIVES)
        .disable(DeserializationFeature.ACCEPT_FLOAT_AS_INT)
        .disable(SerializationFeature.FAIL_ON_EMPTY_BEANS)
        .nodeFactory(JsonNodeFactory.withExactBigDecimals(true))
        .build();

    private Json() {}
    static ObjectNode object() { return MAPPER.createObjectNode(); }

    /** Parses UTF-8; the missing node if there is nothing but white space. */
    static JsonNode parse(byte[] bytes) throws IOException {
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            throw new IOException("it is not UTF-8");
        }
        return text.isBlank() ? MissingNode.getInstance() : parse(text);
    }

    static JsonNode parse(String text) throws IOException {
        try (JsonParser parser = MAPPER.createParser(text)) {
            JsonNode tree = MAPPER.readTree(parser);
            if (tree == null) throw new IOException("it is empty");
            if (parser.nextToken() != null) throw new IOException("something follows the JSON");
            return tree;
        } catch (JsonParseException error) {
            // The parser's message can repeat the input.
            String reason = error.getOriginalMessage().startsWith("Duplicate field") ? "a key twice" : "no JSON";
            throw new IOException(reason + " at character " + error.getLocation().getCharOffset());
        } catch (JsonProcessingException error) {
            throw new IOException(error.getOriginalMessage());
        }
    }

    /** Writes UTF-8. A surrogate without its other half, which no UTF-8 can hold, becomes U+FFFD. */
    static byte[] write(JsonNode tree) {
        try {
            ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().onMalformedInput(CodingErrorAction.REPLACE)
                .replaceWith("\uFFFD".getBytes(StandardCharsets.UTF_8))
                .encode(CharBuffer.wrap(MAPPER.writeValueAsString(tree)));
            return Arrays.copyOf(bytes.array(), bytes.limit());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Object at a key; an empty one if there is none. */
    static JsonNode member(JsonNode object, String key) throws IOException {
        JsonNode value = object.path(key);
        if (value.isMissingNode() || value.isNull()) return object();
        if (!value.isObject()) throw new IOException(key + " must be an object");
        return value;
    }

    /** Text at a key; null if it is missing, blank or no text. */
    static String text(JsonNode object, String key) {
        String value = object.path(key).textValue();
        return value == null || value.isBlank() ? null : value;
    }
}
