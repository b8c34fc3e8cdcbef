import { useEffect, useState } from "preact/hooks";

/** Button that copies a text to the clipboard, if the browser allows it. */
export function Copy({ text, name }: { text: string; name: string }) {
  const [said, setSaid] = useState("Copy");
  useEffect(() => setSaid("Copy"), [text]);
  // Undefined without TLS, except on localhost.
  const clipboard = navigator.clipboard as Clipboard | undefined;
  if (!clipboard) return null;
  const copy = () => clipboard.writeText(text).then(() => setSaid("Copied"), () => setSaid("Refused by the browser"));
  return <button type="button" class="small" onClick={copy} aria-label={`${said} ${name}`}>{said}</button>;
}

/** Complete id with a button to copy it. */
export function Id({ value, name }: { value: string; name: string }) {
  return <span class="id"><code>{value}</code> <Copy text={value} name={name} /></span>;
}
