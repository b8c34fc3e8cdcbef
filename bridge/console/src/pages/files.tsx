import { useEffect, useState } from "preact/hooks";
import { number } from "../format";
import { useLoad } from "../load";
import { canCall, ifSupported, type Runtime, useChange } from "../manage";
import { Ask } from "../parts/ask";
import { Empty, Problem } from "../parts/notice";
import { Changed } from "../parts/runtime";

/** File in the editor: the text as it was read, and the text as edited. A new file has no text that was read. */
interface Opened {
  path: string;
  stored: string | undefined;
  text: string;
}

interface Properties {
  runtime: Runtime;
  id: string;
  /** Number of changes of the agent's settings: a runtime can keep instructions in a file. */
  version: number;
  changed: () => void;
}

/** Files in the workspace of an agent, with an editor. Nothing if the adapter lists none. */
export function Files({ runtime, id, version, changed }: Properties) {
  const files = useLoad(() => ifSupported(runtime.files(id)), [runtime, id, version]);
  const [opened, setOpened] = useState<Opened>();
  const [path, setPath] = useState("");
  const change = useChange(runtime);
  const isUnsaved = opened !== undefined && opened.text !== (opened.stored ?? "");
  useEffect(() => {
    if (!isUnsaved) setOpened(undefined);
  }, [version]);
  const canWrite = canCall(runtime, "writeFile");
  const open = (path: string) => change.run("file", () => runtime.file(id, path), (file) => {
    const text = file.content ?? "";
    setOpened({ path, stored: text, text });
    return `Opened ${path}.`;
  });
  const save = ({ path, text }: Opened) => change.run("writeFile", () => runtime.writeFile(id, path, text), () => {
    setOpened({ path, stored: text, text });
    files.reload();
    changed();
    return `Saved ${path}.`;
  });
  const remove = (path: string) => change.run("removeFile", () => runtime.removeFile(id, path), () => {
    if (opened?.path === path) setOpened(undefined);
    files.reload();
    changed();
    return `Removed ${path}.`;
  });
  if (files.data === null) return null;
  return (
    <section class="stack" aria-labelledby="files">
      <h2 id="files">Files</h2>
      <Problem error={files.error} />
      {files.data?.length === 0 && <Empty>The workspace has no files.</Empty>}
      <ol class="attempts" aria-label="Files">
        {files.data?.map((file) => (
          <li key={file.path}>
            <code class="id">{file.path}</code>
            <span class="dim number">{file.sizeBytes === undefined ? "" : `${number(file.sizeBytes)} bytes`}</span>
            <span class="actions">
              {canCall(runtime, "file") && <button type="button" class="small" aria-label={`Open ${file.path}`} disabled={change.busy || isUnsaved} onClick={() => open(file.path)}>Open</button>}
              {canCall(runtime, "removeFile") && (
                <Ask small label="Remove" name={`Remove ${file.path}`} title={`Remove ${file.path}?`} yes="Remove it" disabled={change.busy} act={() => remove(file.path)}>
                  The file is removed from the workspace of {id}.
                </Ask>
              )}
            </span>
          </li>
        ))}
      </ol>
      {canWrite && (
        <form class="filters" onSubmit={(event) => { event.preventDefault(); setOpened({ path, stored: undefined, text: "" }); setPath(""); }}>
          <label class="grow">New file <input value={path} onInput={(event) => setPath(event.currentTarget.value)} placeholder="path in the workspace" /></label>
          <button type="submit" disabled={!path || isUnsaved || files.data?.some((file) => file.path === path)}>Edit</button>
        </form>
      )}
      <Changed change={change} />
      {opened && (
        <>
          <label>
            Content of {opened.path}
            <textarea class="code" rows={14} value={opened.text} onInput={(event) => setOpened({ ...opened, text: event.currentTarget.value })} readOnly={!canWrite} spellcheck={false} />
          </label>
          <div class="actions">
            <button type="button" onClick={() => setOpened(undefined)}>{isUnsaved ? "Discard changes" : "Close"}</button>
            {canWrite && (
              <Ask label="Save" name={`Save ${opened.path}`} title={`Save ${opened.path}?`} yes="Save it" disabled={opened.text === opened.stored || change.busy} act={() => save(opened)}>
                The file is written to the workspace of {id}; runs that begin from now read it.
              </Ask>
            )}
          </div>
        </>
      )}
    </section>
  );
}
