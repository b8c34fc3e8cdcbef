import { useEffect, useRef, useState } from "preact/hooks";
import { keys, PAGES } from "../keys";

const NAMES: Record<string, string> = { now: "Now", dispatches: "Dispatches", runs: "Runs", adapters: "Adapters", agents: "Agents", services: "Services", signals: "Signals", deliveries: "Deliveries", events: "Events", try: "Try it" };

/** Dialog with the shortcuts and the switch that turns them off. */
export function KeysDialog({ open, close }: { open: boolean; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [on, setOn] = useState(keys.on);
  useEffect(() => {
    if (open) dialog.current?.showModal();
  }, [open]);
  const turn = (wanted: boolean) => {
    keys.on = wanted;
    setOn(wanted);
  };
  return (
    <dialog ref={dialog} aria-labelledby="keys-title" onClose={close}>
      <form method="dialog">
        <h2 id="keys-title">Keyboard shortcuts</h2>
        <dl class="keys">
          {Object.entries(PAGES).map(([key, page]) => (
            <div key={key}><dt><kbd>g</kbd> <kbd>{key}</kbd></dt><dd>{NAMES[page]}</dd></div>
          ))}
          <div><dt><kbd>/</kbd></dt><dd>go to the search field</dd></div>
          <div><dt><kbd>p</kbd></dt><dd>pause or resume the events</dd></div>
          <div><dt><kbd>?</kbd></dt><dd>show this list</dd></div>
        </dl>
        <label class="check"><input type="checkbox" checked={on} onChange={(event) => turn(event.currentTarget.checked)} /> Enable shortcuts</label>
        <div class="actions"><button type="submit" class="primary">Close</button></div>
      </form>
    </dialog>
  );
}
