/* Distributions: cumulative curves of one trial's latencies, or of one latency of several trials, to
   see what a mean hides and which percentile breaks a limit. */
import type { Json, PageTrial } from '../data';
import { quantiles } from '../choice';
import { axisOf, extent, frame, pathOf, picture, shapePath, spansDecades, svg, walkable, withTip, type Axis, type Box } from '../plot';
import type { Rows, Shape, View } from '../view';
import { known } from '../words';
import { cut, empty, fitting, lineEntry, partsOf, quantityOf, seriesColour, seriesDash } from './parts';

export interface Distributions { trials: readonly PageTrial[]; metric: string }

const SHAPES: readonly Shape[] = ['circle', 'diamond', 'square', 'triangle', 'plus', 'cross'];
const OWN = ['e2e_latency', 'ttft', 'tpot', 'itl'] as const;
/** Percents whose marks are large. */
const NAMED = [50, 90, 99];

interface Series { label: string; key: string; points: [percent: number, ms: number][]; predicted: [percent: number, ms: number][] }

/** Quantiles of a record; of other tools' records their few percentiles. */
function pointsOf(results: Record<string, Json>, name: string): [number, number][] {
  const grid = quantiles(results, name);
  const points = grid.length ? grid : ([['median', 50], ['p90', 90], ['p95', 95], ['p99', 99]] as const)
    .map(([statistic, percent]): [number, unknown] => [percent, results[`${statistic}_${name}_ms`]])
    .filter((pair): pair is [number, number] => known(pair[1]));
  return points.filter(([percent, ms]) => percent > 0 && percent < 100 && ms > 0);
}

export function draw(host: HTMLElement, { trials, metric }: Distributions, view: View): void {
  const [first] = trials;
  const single = trials.length === 1 && first;
  const all = single
    ? OWN.map((name): Series => ({ label: quantityOf(view, name).short, key: first.key, points: pointsOf(first.results, name), predicted: first.predicted ? pointsOf(first.predicted, name) : [] }))
    : trials.map((trial, i): Series => ({ label: `${String.fromCharCode(65 + i)}  ${trial.label}`, key: trial.key, points: pointsOf(trial.results, metric), predicted: [] }));
  const drawn = all.filter((each) => each.points.length > 1);
  if (!drawn.length) {
    empty(host, trials.every((trial) => trial.status === 'ok') ? 'Nothing to show: these records hold no latency distribution.' : 'Nothing to show: a failed trial has no latencies.');
    return;
  }
  const { figure, legend } = partsOf(host);
  const box: Box = { left: 52, right: view.width - 14, top: 28, bottom: view.width > 700 ? 320 : 260 };
  const values = drawn.flatMap((each) => [...each.points, ...each.predicted].map(([, ms]) => ms));
  const limits = single ? [] : view.limits.filter((limit) => limit.metric === metric && limit.statistic.startsWith('p'));
  const x = axisOf([...values, ...limits.map((limit) => limit.value)], box.left, box.right, {
    title: single ? 'Latency' : quantityOf(view, metric).title, unit: 'ms', log: spansDecades(values), better: 'less', count: view.width < 520 ? 4 : 7 });
  const y = shareAxis(drawn.flatMap((each) => each.points.map(([percent]) => percent)), box);
  const made = picture(figure, view, box.bottom + 44, `Latency quantiles of ${trials.map((trial) => trial.label).join('; ')}`);
  made.setAttribute('role', 'group');
  made.append(frame(box, x, y));
  for (const limit of limits) {
    const percent = +limit.statistic.slice(1);
    made.append(svg('path', { class: 'limit-corner', d: `M${x.at(limit.value)} ${box.bottom}V${y.at(percent)}H${box.left}` }),
      svg('text', { class: 'halo', x: Math.min(x.at(limit.value) + 6, box.right - 60), y: box.bottom - 8 }, `limit ${limit.statistic}`));
  }
  const marks: SVGElement[] = [];
  drawn.forEach(({ label, points, predicted }, i) => {
    const colour = seriesColour(i);
    const path = (each: readonly [number, number][]) => pathOf(each.map(([percent, ms]) => [x.at(ms), y.at(percent)]));
    if (predicted.length > 1) made.append(svg('path', { class: 'curve curve-predicted', d: path(predicted), stroke: colour }));
    made.append(svg('path', { class: 'curve', d: path(points), stroke: colour, 'stroke-dasharray': seriesDash(i) || null }));
    for (const [percent, ms] of points) {
      const named = NAMED.includes(percent);
      marks.push(svg('path', {
        class: named ? 'mark' : 'mark faint-mark', d: shapePath(SHAPES[i % SHAPES.length]!, x.at(ms), y.at(percent), named ? 4 : 2.6), stroke: colour, fill: colour,
        role: 'img', 'aria-label': `${label}: ${percent}% within ${view.shown(ms, 'ms')}`,
        ...withTip(view, label, () => rows(percent, drawn, view)),
      }));
    }
  });
  made.append(...marks);
  walkable(made, marks, () => undefined);
  legend.append(...drawn.map((each, i) => lineEntry(i, cut(each.label, fitting(view.width - 40)))));
  if (drawn.some((each) => each.predicted.length > 1)) {
    const line = lineEntry(0, 'thin: predicted for the same trial');
    line.querySelector('line')!.setAttribute('class', 'curve-predicted');
    legend.append(line);
  }
}

/** What all series have at one percent. */
function rows(percent: number, drawn: readonly Series[], view: View): Rows {
  return [['Share of requests', `${percent}%`], ...drawn.flatMap((each): Rows => {
    const at = (points: Series['points']) => points.find((point) => point[0] === percent)?.[1];
    const [own, predicted] = [at(each.points), at(each.predicted)];
    if (own === undefined) return [];
    return [[cut(each.label, 34), `${view.shown(own, 'ms')}${predicted === undefined ? '' : `, predicted ${view.shown(predicted, 'ms')}`}`]];
  })];
}

/** Axis of percents that stretches both tails, so that 99% and 99.9% are apart. */
function shareAxis(percents: readonly number[], box: Box): Axis {
  const [low, high] = extent(percents);
  const [from, to] = [probit(low / 100), probit(high / 100)];
  const at = (percent: number) => box.bottom - 6 + (box.top + 12 - box.bottom) * ((probit(percent / 100) - from) / (to - from || 1));
  return { at, invert: () => NaN, ticks: [5, 25, 50, 75, 90, 95, 99, 99.9].filter((tick) => tick >= low && tick <= high), low, high, log: false, text: (p) => `${p}%`, title: 'Share of requests that take no longer', better: '' };
}

/** Inverse of the normal distribution (Acklam's approximation, error below 1.2e-9). */
function probit(p: number): number {
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
