package forge.external.spring;

import java.lang.annotation.*;

/** Marks a method of a {@link ForgeExternalService} as a query, which changes nothing. As {@link ForgeCommand}. */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.METHOD, ElementType.ANNOTATION_TYPE})
public @interface ForgeQuery {
    /** Default: name of the method. */
    String name() default "";

    String description() default "";

    /** Default: {@code /queries/NAME}, which is served in any case. */
    String path() default "";

    /** {@code public}, {@code user}, {@code system}, or a policy of the bridge. Without one the query is public. */
    String policy() default "";

    boolean tenantScoped() default false;

    /** JSON Schema of the arguments. The bridge checks arguments against it and gives it to models. */
    String inputSchema() default "";
}
