import { useEffect, useState } from "preact/hooks";

interface Properties {
  value: string;
  /** Called with the trimmed text when the input is complete. */
  commit: (text: string) => void;
  type?: "search" | "datetime-local";
  list?: string;
  placeholder?: string;
}

/** Filter field that keeps unfinished input while the list below is reloaded. */
export function Field({ value, commit, ...rest }: Properties) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return <input {...rest} value={text} onInput={(event) => setText(event.currentTarget.value)} onChange={(event) => commit(event.currentTarget.value.trim())} />;
}

interface Options {
  label: string;
  /** Label of the choice that filters nothing. */
  all: string;
  value: string | undefined;
  /** Values, each with its label. */
  options: [string, string][];
  commit: (value: string) => void;
}

/** Filter with a few values. */
export function Choice({ label, all, value, options, commit }: Options) {
  return (
    <label>
      {label}
      <select value={value ?? ""} onChange={(event) => commit(event.currentTarget.value)}>
        <option value="">{all}</option>
        {options.map(([value, label]) => <option key={value} value={value}>{label}</option>)}
      </select>
    </label>
  );
}
