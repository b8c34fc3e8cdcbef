package forge.external;

/** Arguments of an entry that takes none. */
public record EmptyInput() {}
