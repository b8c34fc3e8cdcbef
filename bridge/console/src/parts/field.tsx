import { useEffect, useState } from "preact/hooks";

interface Properties {
  value: string;
  /** Called with the trimmed text when the input is complete. */
  commit: (text: string) => void;
  type?: "search";
  list?: string;
  placeholder?: string;
}

/** Filter field that keeps unfinished input while the list below is reloaded. */
export function Field({ value, commit, ...rest }: Properties) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return <input {...rest} value={text} onInput={(event) => setText(event.currentTarget.value)} onChange={(event) => commit(event.currentTarget.value.trim())} />;
}
