package forge.external;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonMappingException;
import com.fasterxml.jackson.databind.JsonMappingException.Reference;
import com.fasterxml.jackson.databind.JsonNode;
import java.util.stream.Collectors;

/** Handler of an entry, made by {@link Forge#handle}. Its result is written as JSON; {@code null} is one, too. */
public record ForgeHandler<I>(Class<I> input, InputAndContext<I> function) {
    /** Function of the arguments and the caller. */
    public interface InputAndContext<I> { Object apply(I input, ForgeContext context) throws Exception; }

    /** Function of the arguments alone. */
    public interface InputOnly<I> { Object apply(I input) throws Exception; }

    Object call(JsonNode args, ForgeContext context) throws Exception {
        return function.apply(read(args), context);
    }

    private I read(JsonNode args) {
        try {
            return Json.MAPPER.treeToValue(args, input);
        } catch (JsonProcessingException error) {
            if (error.getCause() instanceof ForgeException refusal) throw refusal;
            String at = error instanceof JsonMappingException mapping
                ? mapping.getPath().stream().map(ForgeHandler::segment).collect(Collectors.joining()) : "";
            throw new ForgeException("FORGE_JAVA_HANDLER_FAILED",
                "args" + at + " cannot be read as declared by " + input.getSimpleName(), 500);
        }
    }

    private static String segment(Reference place) {
        return place.getFieldName() == null ? "[" + place.getIndex() + "]" : "." + place.getFieldName();
    }
}
