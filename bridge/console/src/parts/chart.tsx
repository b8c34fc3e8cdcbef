import { useEffect, useRef } from "preact/hooks";
import type uPlot from "uplot";
import { clock, number } from "../format";
import { leisure } from "../leisure";
import "uplot/dist/uPlot.min.css";

export interface Series {
  label: string;
  /** Colour variable of the style sheet. */
  colour: string;
  /** Dash pattern, which distinguishes lines without colour. */
  dash?: number[];
}

/**
 * Lines over time, with their newest values below. `data[0]` are seconds since 1970, then one array per series. Drawn
 * once `begin` is true: starting the chart costs as much as the rest of the page.
 */
export function Chart({ begin: isDue, series, data, label }: { begin: boolean; series: Series[]; data: uPlot.AlignedData; label: string }) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const element = holder.current;
    if (!element || !isDue) return;
    let draw = () => {};
    let wanted = true;
    const begin = async () => {
      await leisure();
      const { default: Plot } = await import("uplot");
      if (!wanted) return;
      draw = () => {
        plot.current?.destroy();
        plot.current = new Plot(options(element, series), latest.current, element);
      };
      draw();
    };
    void begin();
    const again = () => draw();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    size.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", again);
    return () => {
      wanted = false;
      size.disconnect();
      scheme.removeEventListener("change", again);
      plot.current?.destroy();
    };
  }, [isDue]);
  useEffect(() => plot.current?.setData(data), [data]);
  return (
    <>
      <div class="chart" ref={holder} role="img" aria-label={label} />
      <ul class="legend">
        {series.map((one, index) => {
          const values = Array.from(data[index + 1] ?? []);
          const most = Math.max(0, ...values.map((value) => value ?? 0));
          return (
            <li key={one.label}>
              <i class={one.dash ? "dashed" : ""} style={{ color: `var(${one.colour})` }} aria-hidden="true" /> {one.label}{" "}
              <b class="number">{values.at(-1) == null ? "…" : number(values.at(-1))}</b> <span class="dim number">max {number(most)}</span>
            </li>
          );
        })}
      </ul>
    </>
  );
}

const HEIGHT = 170;

function options(element: HTMLElement, series: Series[]): uPlot.Options {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const whole = (values: number[]) => values.map((value) => (Number.isInteger(value) ? number(value) : ""));
  return {
    width: element.clientWidth,
    height: HEIGHT,
    cursor: { show: false },
    legend: { show: false },
    // Room on the right for half of the last time label.
    padding: [8, 30, 0, 0],
    scales: { y: { range: (_, __, most) => [0, Math.max(5, most * 1.1)] } },
    axes: [{ ...axis, space: 90, size: 28, values: (_, seconds) => seconds.map(clock) }, { ...axis, size: 48, values: (_, values) => whole(values) }],
    series: [
      {},
      ...series.map(({ label, colour: name, dash }) => ({
        label,
        stroke: colour(name),
        width: 1.75,
        points: { show: false },
        ...(dash && { dash }),
      })),
    ],
  };
}
