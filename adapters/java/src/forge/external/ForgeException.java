package forge.external;

/** Failure whose code and message reach the caller, unlike those of other exceptions. */
public final class ForgeException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final String code;
    private final int status;

    /** A refusal, answered with HTTP 422. */
    public ForgeException(String code, String message) {
        this(code, message, 422);
    }

    /** @param status HTTP status, 400 to 599; a bridge can try a call again after 429, 502, 503 and 504 */
    public ForgeException(String code, String message, int status) {
        super(message);
        if (status < 400 || status > 599) throw new IllegalArgumentException("status must be 400 to 599");
        this.code = code;
        this.status = status;
    }

    public String code() { return code; }

    public int status() { return status; }
}
