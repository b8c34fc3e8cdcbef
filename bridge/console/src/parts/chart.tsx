import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "../format";
import "uplot/dist/uPlot.min.css";

export interface Series {
  label: string;
  /** A colour variable of the style sheet. */
  colour: string;
}

/** Lines over time. `data[0]` are seconds since 1970, then one array a series. */
export function Chart({ series, data, label }: { series: Series[]; data: uPlot.AlignedData; label: string }) {
  const holder = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  useEffect(() => {
    const element = holder.current;
    if (!element) return;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element, series), data, element);
    };
    draw();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    size.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      size.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [data]);
  return <div class="chart" ref={holder} role="img" aria-label={label} />;
}

const HEIGHT = 190;

function options(element: HTMLElement, series: Series[]): uPlot.Options {
  const style = getComputedStyle(element);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    cursor: { y: false, points: { size: 6 } },
    legend: { show: true, live: true },
    scales: { y: { range: (_, __, most) => [0, Math.max(5, most * 1.1)] } },
    axes: [{ ...axis, space: 90, values: (_, seconds) => seconds.map(clock) }, { ...axis, size: 44 }],
    series: [
      {},
      ...series.map(({ label, colour: name }) => ({ label, stroke: colour(name), width: 2, points: { show: false } })),
    ],
  };
}
