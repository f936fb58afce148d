/* Latency quantiles: of one trial its latencies, of several one latency overlaid. */
import { quantiles } from './choice';
import { axisOf, frame, html, legendEntry, pathOf, picture, spread, svg, tickText, type Axis, type Box } from './plot';
import type { Trial, View } from './view';
import { known } from './words';

export interface Distributions { trials: readonly Trial[]; metric: string }

const TICKS = [5, 25, 50, 75, 90, 99, 99.9];
const OWN: readonly [string, string, string][] = [['e2e_latency', 'E2E', 'var(--c0)'], ['ttft', 'TTFT', 'var(--c2)'], ['itl', 'ITL', 'var(--c1)']];

interface Curve { label: string; colour: string; points: [number, number][]; predicted: boolean }

function pointsOf(results: Trial['results'], name: string): [number, number][] {
  const grid = quantiles(results, name);
  const points = grid.length ? grid : ([['median', 50], ['p90', 90], ['p95', 95], ['p99', 99]] as const)
    .map(([statistic, percent]): [number, unknown] => [percent, results[`${statistic}_${name}_ms`]])
    .filter((pair): pair is [number, number] => known(pair[1]));
  return points.filter(([percent, value]) => percent > 0 && percent < 100 && value > 0);
}

export function draw(host: HTMLElement, { trials, metric }: Distributions, view: View): void {
  const curves: Curve[] = [];
  const [first] = trials;
  if (trials.length === 1 && first) {
    for (const [name, label, colour] of OWN) {
      curves.push({ label, colour, points: pointsOf(first.results, name), predicted: false });
      if (first.predicted) curves.push({ label: '', colour, points: pointsOf(first.predicted, name), predicted: true });
    }
  } else trials.forEach((t, i) => curves.push({ label: String.fromCharCode(65 + i), colour: `var(--c${i % 8})`, points: pointsOf(t.results, metric), predicted: false }));
  const drawn = curves.filter((c) => c.points.length > 1);
  if (!drawn.length) {
    host.replaceChildren(html('p', { class: 'note' }, trials.every((t) => t.status === 'ok') ? 'These records hold no latency distribution.' : 'A failed trial has no latencies.'));
    return;
  }
  const { width } = view;
  const box: Box = { left: 58, right: width - 44, top: 30, bottom: width > 700 ? 270 : 216 };
  const percents = drawn.flatMap((c) => c.points.map((p) => p[0]));
  const [from, to] = [Math.min(...percents), Math.max(...percents)].map((p) => probit(p / 100)) as [number, number];
  const at = (p: number) => box.left + 4 + (box.right - box.left - 8) * ((probit(p / 100) - from) / (to - from));
  const x: Axis = { at, invert: (p) => p, ticks: TICKS.filter((p) => at(p) >= box.left && at(p) <= box.right + 1), low: 0, high: 100, log: false, text: (p) => `${p}%`, title: 'Share that is no slower', better: '' };
  const y = axisOf(drawn.flatMap((c) => c.points.map((p) => p[1])), box.bottom, box.top, { title: 'Latency', log: true });
  y.text = (ms) => (ms >= 1000 ? `${tickText(ms / 1000)} s` : `${tickText(ms)} ms`);
  const chart = picture(host, view, box.bottom + 44, `Latency quantiles of ${trials.map((t) => t.label).join('; ')}`);
  chart.append(frame(box, x, y));
  const labels = spread(drawn.map((c) => y.at(c.points[c.points.length - 1]![1])), 13, box.top, box.bottom);
  drawn.forEach((c, i) => chart.append(svg('g', { class: `series${c.predicted ? ' predicted' : ''}` },
    svg('path', { class: 'curve', d: pathOf(c.points.map(([p, v]) => [at(p), y.at(v)])), stroke: c.colour }), svg('text', { class: 'label', x: box.right + 4, y: labels[i]! + 4, fill: c.colour }, c.label))));
  if (drawn.some((c) => c.predicted)) host.append(html('div', { class: 'legend' }, legendEntry(svg('g', { class: 'series predicted' }, svg('path', { class: 'curve', d: 'M0 8H18', stroke: 'var(--muted)' })), 'predicted for the same trial')));
}

/** Inverse of the normal distribution (Acklam's approximation, error below 1.2e-9): with it as an axis
    the tail of a latency is as readable as its middle. */
export function probit(p: number): number {
  const a = [-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239];
  const b = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572];
  const c = [-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783];
  const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416];
  const poly = (k: number[], z: number) => k.reduce((sum, each) => sum * z + each, 0);
  if (p < 0.02425) { const q = Math.sqrt(-2 * Math.log(p)); return poly(c, q) / poly([...d, 1], q); }
  if (p > 0.97575) return -probit(1 - p);
  const q = p - 0.5;
  return (poly(a, q * q) * q) / poly([...b, 1], q * q);
}
