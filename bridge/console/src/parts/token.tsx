import { useEffect, useRef } from "preact/hooks";
import { session } from "../session";

/** Dialog for the bearer token, which is kept until the tab is closed. */
export function TokenDialog({ wanted }: { wanted: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (wanted && !dialog.current?.open) dialog.current?.showModal();
    if (!wanted) dialog.current?.close();
  }, [wanted]);
  return (
    <dialog ref={dialog} aria-labelledby="token-title">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          session.token = input.current?.value.trim();
        }}
      >
        <h2 id="token-title">This bridge requires a token</h2>
        <p class="dim">One of <code>BRIDGE_TOKENS</code>, or of <code>[auth]</code> in its configuration. It is kept in this tab only.</p>
        <label>
          Bearer token
          <input ref={input} type="password" autocomplete="off" required />
        </label>
        {session.token && <p class="notice bad" role="alert">The last token was refused.</p>}
        <div class="actions"><button type="submit" class="primary">Continue</button></div>
      </form>
    </dialog>
  );
}
