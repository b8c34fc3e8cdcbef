package forge.external.spring;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import forge.external.ForgeAnswer;
import forge.external.ForgeRegistry;
import forge.external.ForgeRequest;
import java.io.IOException;
import java.io.InputStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.springframework.http.HttpMethod;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.context.request.WebRequest;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.servlet.handler.SimpleUrlHandlerMapping;
import org.springframework.web.servlet.support.ServletUriComponentsBuilder;
import org.springframework.web.util.UriComponents;

/** Answers HTTP requests with a registry. Uses no servlet type, so that it runs on javax and jakarta servlets. */
final class ForgeController {
    private final ForgeRegistry registry;

    ForgeController(ForgeRegistry registry) { this.registry = registry; }

    /** Routes of the registry, behind the controllers of the application and before its static files. */
    SimpleUrlHandlerMapping routes() throws IOException, NoSuchMethodException {
        var handler = new HandlerMethod(this, "answer", HttpMethod.class, InputStream.class, WebRequest.class);
        Map<String, Object> routes = new HashMap<>();
        for (String path : List.of("/manifest", "/commands/**", "/queries/**")) routes.put(path, handler);
        var request = new ForgeRequest(
            "GET", "/manifest", "baseUrl=http://any", name -> null, InputStream.nullInputStream());
        JsonNode manifest = new ObjectMapper().readTree(registry.answer(request).body());
        routes.put(decoded(manifest.at("/service/health")), handler);
        manifest.path("entries").forEach(entry -> routes.put(decoded(entry.path("path")), handler));
        var mapping = new SimpleUrlHandlerMapping();
        mapping.setOrder(1);
        mapping.setUrlMap(routes);
        return mapping;
    }

    private static String decoded(JsonNode path) {
        return URLDecoder.decode(path.textValue().replace("+", "%2B"), StandardCharsets.UTF_8);
    }

    /** Answers with bytes: a text would be written in the charset of the server. */
    public ResponseEntity<byte[]> answer(HttpMethod method, InputStream body, WebRequest request) {
        UriComponents uri = ServletUriComponentsBuilder.fromCurrentRequest().build();
        UriComponents root = ServletUriComponentsBuilder.fromCurrentContextPath().build();
        String path = uri.getPath().substring(root.getPath() == null ? 0 : root.getPath().length());
        String query = path.equals("/manifest") ? withBaseUrl(uri.getQuery(), root.toUriString()) : uri.getQuery();
        ForgeAnswer answer = registry.answer(
            new ForgeRequest(String.valueOf(method), path, query, request::getHeader, body));
        var response = ResponseEntity.status(answer.status()).contentType(MediaType.APPLICATION_JSON);
        if (answer.allow() != null) response.header("Allow", answer.allow());
        return response.body(answer.body());
    }

    /** Adds the address of the request, which counts if neither the service nor the query has one. */
    private String withBaseUrl(String query, String address) {
        try {
            registry.manifest();
            return query;
        } catch (IllegalStateException noBaseUrl) {
            return (query == null ? "" : query + "&") + "baseUrl=" + URLEncoder.encode(address, StandardCharsets.UTF_8);
        }
    }
}
