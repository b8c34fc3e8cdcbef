import { useEffect, useState } from "preact/hooks";

interface Properties {
  value: string;
  /** Called with what was typed, once it is complete. */
  commit: (text: string) => void;
  type?: "search";
  list?: string;
  placeholder?: string;
}

/** A filter that keeps what is being typed while the list beneath it is loaded again. */
export function Field({ value, commit, ...rest }: Properties) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return <input {...rest} value={text} onInput={(event) => setText(event.currentTarget.value)} onChange={(event) => commit(event.currentTarget.value.trim())} />;
}
