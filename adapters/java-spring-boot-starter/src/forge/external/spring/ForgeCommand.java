package forge.external.spring;

import java.lang.annotation.*;

/**
 * Marks a method of a {@link ForgeExternalService} as a command. Its parameters are the input, a class that Jackson
 * reads, and the {@link forge.external.ForgeContext}; both are optional. What is left empty is not in the manifest.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.METHOD, ElementType.ANNOTATION_TYPE})
public @interface ForgeCommand {
    /** Default: name of the method. */
    String name() default "";

    String description() default "";

    /** Default: {@code /commands/NAME}, which is served in any case. */
    String path() default "";

    /** {@code public}, {@code user}, {@code system}, or a policy of the bridge. Without one the command is public. */
    String policy() default "";

    boolean tenantScoped() default false;

    boolean needsApproval() default false;

    /** {@code read-only}, {@code external-managed}, {@code forge-managed} or {@code saga}. */
    String transaction() default "external-managed";

    /** {@code read}, {@code write}, {@code destructive} or {@code external}. */
    String risk() default "write";

    /** Names of the events that the command causes. */
    String[] effects() default {};

    /** JSON Schema of the arguments. The bridge checks arguments against it and gives it to models. */
    String inputSchema() default "";
}
