import type { GraphNode } from "@forge-bridge/client";

/** Pixels: a node, the gap between two layers, the height of a row and of an edge that passes a layer. */
export const NODE = { width: 190, height: 46 };
const GAP = 56;
const ROW = NODE.height + 14;
const PASS = 16;

export interface Placed {
  node: GraphNode;
  x: number;
  y: number;
}

export interface Layout {
  nodes: Placed[];
  /** Paths of SVG, from a dependency to the node that waits for it. */
  edges: { from: string; to: string; path: string }[];
  width: number;
  height: number;
}

/** Place in a layer: a node, or a point that an edge passes. */
interface Slot {
  node: GraphNode | undefined;
  /** Slots of the layer before that lead here. */
  before: Slot[];
  y: number;
}

/**
 * Places nodes in columns by topological layers, dependencies first. Edges that follow from others are left out, and an
 * edge over several layers is given a place in each, so that it crosses no node.
 */
export function layout(nodes: GraphNode[]): Layout {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const depth = new Map<string, number>();
  const ancestors = new Map<string, Set<string>>();
  for (const node of sorted(nodes, byId)) {
    const known = node.dependencies.filter((id) => byId.has(id));
    depth.set(node.id, Math.max(-1, ...known.map((id) => depth.get(id) ?? 0)) + 1);
    ancestors.set(node.id, new Set(known.flatMap((id) => [id, ...(ancestors.get(id) ?? [])])));
  }
  const layers: Slot[][] = [];
  const put = (layer: number, slot: Slot): Slot => {
    (layers[layer] ??= []).push(slot);
    return slot;
  };
  const slots = new Map(nodes.map((node) => [node.id, put(depth.get(node.id) ?? 0, { node, before: [], y: 0 })]));
  const chains: { from: string; to: string; chain: Slot[] }[] = [];
  for (const { id, dependencies } of nodes) {
    const isImplied = (one: string) => dependencies.some((other) => other !== one && ancestors.get(other)?.has(one));
    for (const from of dependencies.filter((one) => byId.has(one) && !isImplied(one))) {
      const chain = [slots.get(from)!];
      for (let layer = depth.get(from)! + 1; layer < depth.get(id)!; layer += 1) chain.push(put(layer, { node: undefined, before: [chain.at(-1)!], y: 0 }));
      const target = slots.get(id)!;
      target.before.push(chain.at(-1)!);
      chains.push({ from, to: id, chain: [...chain, target] });
    }
  }
  const height = Math.max(0, ...layers.map(tall)) + 2;
  for (const layer of layers) {
    // By the mean of what leads there, which avoids most crossings.
    const mean = ({ before, y }: Slot) => (before.length ? before.reduce((sum, slot) => sum + slot.y, 0) / before.length : y);
    layer.sort((one, other) => mean(one) - mean(other));
    let top = (height - tall(layer)) / 2;
    for (const slot of layer) {
      const room = slot.node ? ROW : PASS;
      slot.y = top + room / 2;
      top += room;
    }
  }
  const left = (layer: number) => 1 + layer * (NODE.width + GAP);
  return {
    nodes: nodes.map((node) => ({ node, x: left(depth.get(node.id)!), y: slots.get(node.id)!.y - NODE.height / 2 })),
    edges: chains.map(({ from, to, chain }) => ({ from, to, path: path(chain, left, depth.get(from)!) })),
    width: Math.max(0, left(layers.length) - GAP) + 1,
    height,
  };
}

function tall(layer: Slot[]): number {
  return layer.reduce((sum, slot) => sum + (slot.node ? ROW : PASS), 0);
}

function path(chain: Slot[], left: (layer: number) => number, first: number): string {
  const steps = chain.slice(1).map((slot, index) => {
    const layer = first + index;
    const [x, to] = [left(layer) + NODE.width, left(layer + 1)];
    const before = chain[index]!.y;
    const through = slot.node ? "" : ` H ${to + NODE.width}`;
    return `C ${x + GAP / 2} ${before}, ${to - GAP / 2} ${slot.y}, ${to} ${slot.y}${through}`;
  });
  return `M ${left(first) + NODE.width} ${chain[0]!.y} ${steps.join(" ")}`;
}

/** Dependencies before what waits for them, else in the order of the plan. */
function sorted(nodes: GraphNode[], byId: Map<string, GraphNode>): GraphNode[] {
  const done = new Set<string>();
  const order: GraphNode[] = [];
  const visit = (node: GraphNode) => {
    if (done.has(node.id)) return;
    done.add(node.id);
    for (const id of node.dependencies) {
      const before = byId.get(id);
      if (before) visit(before);
    }
    order.push(node);
  };
  nodes.forEach(visit);
  return order;
}
