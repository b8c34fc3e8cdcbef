import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

interface Properties {
  /** What the button says. */
  label: string;
  /** What it does, as a question and in a sentence. */
  title: string;
  children: ComponentChildren;
  /** What the button of the answer says. */
  yes: string;
  act: () => void;
  disabled?: boolean | undefined;
  /** The accessible name, where the label alone is not enough. */
  name?: string;
  small?: boolean;
}

/** A button for what cannot be taken back: it asks first. */
export function Ask({ label, title, children, yes, act, disabled, name, small }: Properties) {
  const dialog = useRef<HTMLDialogElement>(null);
  return (
    <>
      <button type="button" class={small ? "small" : ""} disabled={disabled} aria-label={name} onClick={() => dialog.current?.showModal()}>{label}</button>
      <dialog ref={dialog} aria-label={title}>
        <form method="dialog" onSubmit={() => act()}>
          <h2>{title}</h2>
          <p>{children}</p>
          <div class="actions">
            <button type="button" onClick={() => dialog.current?.close()}>Not now</button>
            <button type="submit" class="primary">{yes}</button>
          </div>
        </form>
      </dialog>
    </>
  );
}
