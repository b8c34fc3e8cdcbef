package forge.external;

/** Answer to a {@link ForgeRequest}: JSON in UTF-8. {@code allow} is the header {@code Allow}, or null. */
public record ForgeAnswer(int status, String allow, byte[] body) {}
