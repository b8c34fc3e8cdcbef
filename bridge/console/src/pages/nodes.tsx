import type { Node, NodeAdapter } from "@forge-bridge/client";
import { number } from "../format";
import { useLoad } from "../load";
import { Badge } from "../parts/badge";
import { Empty, Problem, Skeleton } from "../parts/notice";
import { Table } from "../parts/table";
import { Time } from "../parts/time";
import { bridge } from "../session";

/** Bridges that share the store: their leases, what they run, and what they took over. */
export function Nodes() {
  const page = useLoad(() => bridge.nodes(), [], 2000, "nodes");
  const nodes = page.data?.nodes;
  return (
    <>
      <h1>Nodes</h1>
      <Problem error={page.error} />
      {!nodes && !page.error && <Skeleton lines={4} />}
      {nodes && <NodeTable nodes={nodes} own={page.data?.node} />}
      {nodes?.length === 1 && !nodes[0]?.leaseUntil && (
        <Empty>The store is a file, which one bridge uses. Bridges that share a PostgreSQL database are listed here.</Empty>
      )}
    </>
  );
}

function NodeTable({ nodes, own }: { nodes: Node[]; own: string | undefined }) {
  return (
    <Table label="Nodes" heads={["Node", "State", "Adapters", ["Running", "right"], ["Took over", "right"], "Lease until", "Version"]}>
      {nodes.map((node) => (
        <tr key={node.id}>
          <td class="name" title={node.id}>{node.name || node.id}<div class="dim small">{node.address || node.id}</div></td>
          <td>{node.live ? <Badge state="healthy" label={node.id === own ? "this one" : "live"} /> : <Badge state="offline" label="gone" />}</td>
          <td class="free">{node.adapters.map((adapter) => <Line key={adapter.provider} adapter={adapter} live={node.live} />)}</td>
          <td class="number right">{node.live ? number(node.running) : ""}</td>
          <td class="number right">{number(node.takenOver)} {node.lastTakeOverAt && <div class="dim small">last <Time at={node.lastTakeOverAt} /></div>}</td>
          <td>{node.leaseUntil ? <Time at={node.leaseUntil} /> : "never ends"}<div class="dim small number">epoch {node.epoch}</div></td>
          <td>{node.version}</td>
        </tr>
      ))}
    </Table>
  );
}

function Line({ adapter, live }: { adapter: NodeAdapter; live: boolean }) {
  const { provider, status, running, maxConcurrent, paused } = adapter;
  // What a lost bridge ran was taken over.
  if (!live) return <div class="dim">{provider}</div>;
  return (
    <div>
      {provider} <span class="dim number">{number(running)} of {number(maxConcurrent)}</span>{" "}
      {status !== "healthy" && <Badge state={status} />} {paused && <Badge state="paused" />}
    </div>
  );
}
