import { useEffect, useState } from "preact/hooks";

/** Puts a text on the clipboard, where the browser lets pages do that. */
export function Copy({ text, name }: { text: string; name: string }) {
  const [said, setSaid] = useState("Copy");
  useEffect(() => setSaid("Copy"), [text]);
  // Absent on addresses other than this machine without TLS.
  const clipboard = navigator.clipboard as Clipboard | undefined;
  if (!clipboard) return null;
  const copy = () => clipboard.writeText(text).then(() => setSaid("Copied"), () => setSaid("Refused by the browser"));
  return <button type="button" class="small" onClick={copy} aria-label={`${said} ${name}`}>{said}</button>;
}

/** An id as a whole, to be taken along. */
export function Id({ value, name }: { value: string; name: string }) {
  return <span class="id"><code>{value}</code> <Copy text={value} name={name} /></span>;
}
