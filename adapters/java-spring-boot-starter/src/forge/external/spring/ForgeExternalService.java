package forge.external.spring;

import java.lang.annotation.*;

/**
 * Marks the class of a bean as the service of its context: its {@link ForgeCommand} and {@link ForgeQuery} methods are
 * the entries. Placeholders in texts, such as <code>${billing.url}</code>, are resolved.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.TYPE)
public @interface ForgeExternalService {
    String name();

    /** Address at which the bridge reaches the service; default: the one that asked for the manifest was sent to. */
    String baseUrl() default "";

    /** Framework shown in the manifest. */
    String framework() default "spring-boot";

    /** Path of the health check. */
    String health() default "/health";

    /** Maximum number of calls at once. Further ones are answered with 503. */
    int maxCalls() default 64;

    /** Sends the texts of unexpected exceptions to callers. They are logged in any case. */
    boolean exposeErrors() default false;
}
