import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

interface Properties {
  /** Text of the button. */
  label: string;
  /** Heading of the dialog: the action as a question. `children` explain it. */
  title: string;
  children: ComponentChildren;
  /** Text of the button that confirms. */
  yes: string;
  act: () => void;
  disabled?: boolean | undefined;
  /** Accessible name, if the label alone is ambiguous. */
  name?: string;
  small?: boolean;
}

/** Button for an action that cannot be undone: asks for confirmation first. */
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
