import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Column: its name, and classes. The name of a column of buttons is hidden. */
type Head = string | [name: string, classes: string];

/** Table that scrolls by itself. On a narrow screen each row is a card, whose cells name their column. */
export function Table({ label, heads, children }: { label: string; heads: (Head | false | undefined)[]; children: ComponentChildren }) {
  const table = useRef<HTMLTableElement>(null);
  const columns = heads.flatMap((head): [string, string][] => (typeof head === "string" ? [[head, ""]] : head ? [head] : []));
  useLayoutEffect(() => {
    for (const row of table.current?.tBodies[0]?.rows ?? []) {
      [...row.cells].forEach((cell, index) => {
        const [name = "", classes = ""] = columns[index] ?? [];
        cell.dataset["label"] = classes === "hidden" ? "" : name;
      });
    }
  });
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`${label}, table`}>
      <table aria-label={label} ref={table}>
        <thead>
          <tr>
            {columns.map(([name, classes]) => <th key={name} scope="col" class={classes === "hidden" ? "" : classes}>{classes === "hidden" ? <span class="hidden">{name}</span> : name}</th>)}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
