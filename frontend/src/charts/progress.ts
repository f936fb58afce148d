/* Progress of the run: best so far and regret after each trial, to tell whether more trials would pay. */
import type { PageTrial, Progress, ProgressStep } from '../data';
import { axisOf, frame, legendEntry, mark, pathOf, picture, shapePath, spansDecades, svg, walkable, withTip } from '../plot';
import type { Box } from '../plot';
import type { Rows, View } from '../view';
import { rangeText } from '../words';
import { changeWords, choice, empty, mayBePicked, measureTitle, measureWords, partsOf, quantityOf } from './parts';

interface Point extends ProgressStep { trial: PageTrial | undefined; counts: boolean; best: number | null; regret: number | null }

/** Steps under the limits that are on; those of the run where a trial is not on the page. */
function pointsOf(progress: Progress, maximize: boolean, view: View): Point[] {
  const trials = new Map(view.data.trials.map((trial) => [trial.key, trial]));
  const better = (a: number, b: number) => (maximize ? Math.max(a, b) : Math.min(a, b));
  let best: number | null = null;
  const points = progress.steps.map((step): Point => {
    const trial = trials.get(step.key);
    const counts = step.value !== null && (trial ? mayBePicked(view, trial) : step.counts);
    if (counts) best = best === null ? step.value : better(best, step.value!);
    return { ...step, trial, counts, best, regret: null };
  });
  const final = best as number | null;
  for (const point of points) {
    if (point.best === null || final === null) continue;
    const [over, under] = maximize ? [final, point.best] : [point.best, final];
    point.regret = under > 0 ? over / under - 1 : null;
  }
  return points;
}

export function draw(host: HTMLElement, input: readonly Progress[], view: View): void {
  const redraw = () => draw(host, input, view);
  const headings = new Map(view.data.objectives.map((each) => [each.name, each]));
  const name = choice(host, 'objective', 'Objective', input.map((each): [string, string] => {
    const objective = headings.get(each.objective);
    return [each.objective, objective ? measureWords(view, objective.metric, objective.statistic) : each.objective];
  }), input[0]?.objective ?? '', redraw);
  const found = input.find((each) => each.objective === name);
  const objective = headings.get(name);
  if (!found || !objective) { empty(host, 'Nothing to show: no trial has ended.'); return; }
  const points = pointsOf(found, objective.maximize, view);
  const timed = points.length > 1 && points.every((each) => each.started_s !== null);
  const over = choice(host, 'over', 'Over', timed ? [['number', 'trials'], ['time', 'time']] : [['number', 'trials']], 'number', redraw);
  const valued = points.filter((each) => each.value !== null);
  if (!valued.length) { empty(host, `Nothing to show: ${found.reason || 'no trial has a value'}.`); return; }

  const { figure, legend, note } = partsOf(host);
  const { unit } = quantityOf(view, objective.metric);
  const box: Box = { left: 62, right: view.width - 14, top: 28, bottom: 218 };
  const low: Box = { left: box.left, right: box.right, top: 28, bottom: 108 };
  const below = box.bottom + 48;
  const at = (each: ProgressStep): number => (over === 'time' ? each.started_s! : each.number);
  const xOptions = over === 'time' ? { title: 'Start of the trial since the first one (s)', zero: true } : { title: 'Trials, in the order of running', zero: false };
  const x = axisOf(points.map(at), box.left + 8, box.right - 8, { ...xOptions, count: view.width < 520 ? 4 : 8 });
  x.ticks = x.ticks.filter((tick) => over === 'time' || Number.isInteger(tick));
  const values = valued.map((each) => each.value!);
  const references = found.predicted === null || found.predicted === undefined ? [] : [found.predicted, found.predicted_low, found.predicted_high].filter((each): each is number => typeof each === 'number');
  const y = axisOf([...values, ...references], box.bottom, box.top, {
    title: measureTitle(view, objective.metric, objective.statistic), unit, log: spansDecades(values), better: objective.maximize ? 'more' : 'less' });
  const regrets = points.filter((each) => each.regret !== null);
  const z = axisOf([0, ...regrets.map((each) => each.regret!)], low.bottom, low.top, { title: 'Regret: best of all over best so far', unit: 'fraction', count: 3, zero: true });

  const made = picture(figure, view, below + low.bottom + 44, `Progress in ${measureWords(view, objective.metric, objective.statistic)}: best so far and regret so far`);
  made.setAttribute('role', 'group');
  const regretPart = svg('g', { transform: `translate(0 ${below})` }, frame(low, { ...x, title: '' }, z));
  made.append(frame(box, x, y), regretPart);
  if (references.length) {
    const [value, from, to] = [found.predicted!, found.predicted_low, found.predicted_high];
    if (typeof from === 'number' && typeof to === 'number') made.append(svg('rect', { class: 'band', x: box.left, width: box.right - box.left, y: y.at(to), height: Math.max(1, y.at(from) - y.at(to)) }));
    made.append(svg('line', { class: 'reference', x1: box.left, x2: box.right, y1: y.at(value), y2: y.at(value) }));
  }
  made.append(svg('path', { class: 'best-line', d: steps(points.filter((each) => each.best !== null).map((each) => [x.at(at(each)), y.at(each.best!)]), box.right) }));
  regretPart.append(svg('path', { class: 'best-line', d: steps(regrets.map((each) => [x.at(at(each)), z.at(each.regret!)]), low.right) }));
  const marks = valued.map((each) => {
    const look = each.counts ? 'circle' : 'cross';
    return mark(look, x.at(at(each)), y.at(each.value!), points.length > 150 ? 3 : 4.5, each.counts ? 'var(--accent)' : 'var(--misses)', Boolean(each.trial?.simulated), {
      role: 'img', 'aria-label': `Trial ${each.number}, ${each.label}: ${view.shown(each.value, unit)}`,
      class: view.selection.has(each.key) ? 'mark chosen' : 'mark',
      onclick: (event: MouseEvent) => view.select([each.key], event.shiftKey),
      ...withTip(view, `Trial ${each.number}: ${each.label}`, () => rows(each, found, view, unit)),
    });
  });
  made.append(...marks);
  walkable(made, marks, (index, add) => view.select([valued[index]!.key], add));

  legend.append(legendEntry(svg('path', { d: shapePath('circle', 9, 8, 4.5), fill: 'var(--accent)' }), 'holds every limit'));
  if (valued.some((each) => !each.counts)) legend.append(legendEntry(svg('path', { d: shapePath('cross', 9, 8, 4), stroke: 'var(--misses)', fill: 'none', 'stroke-width': 2 }), 'misses one'));
  legend.append(legendEntry(svg('path', { class: 'best-line', d: 'M0 12H8V4H18' }), 'best so far'));
  if (references.length) legend.append(legendEntry(svg('line', { class: 'reference', x1: 0, x2: 18, y1: 8, y2: 8 }), `best predicted${references.length > 1 ? ', with its interval' : ''}`));
  note.replaceChildren(summary(points, found, view, unit));
}

/** Horizontal steps through points, up to a last pixel. */
function steps(points: readonly (readonly [number, number])[], right: number): string {
  const corners: [number, number][] = [];
  points.forEach(([px, py], i) => { if (i) corners.push([px, corners[corners.length - 1]![1]]); corners.push([px, py]); });
  const last = corners[corners.length - 1];
  if (last) corners.push([right, last[1]]);
  return pathOf(corners);
}

function rows(each: Point, progress: Progress, view: View, unit: string): Rows {
  const found: Rows = [['Value', view.shown(each.value, unit)], ['Limits', each.counts ? 'holds every one' : 'may not be picked'],
    ['Best so far', view.shown(each.best, unit)], ['Regret so far', each.regret === null ? '–' : changeWords(each.regret)]];
  if (each.started_s !== null) found.push(['Started', `${view.shown(each.started_s * 1000, 'ms')} after the first`]);
  if (typeof progress.predicted === 'number') found.push(['Best predicted', view.shown(progress.predicted, unit)]);
  return found;
}

function summary(points: readonly Point[], progress: Progress, view: View, unit: string): string {
  const reached = points.find((each) => each.regret !== null && each.regret < 1e-9);
  const words = reached ? `The best of ${progress.trial_count} trials was number ${reached.number}; ${progress.trial_count - reached.number} came after it without a better one.`
    : 'No trial holds every limit, so there is no best so far.';
  const shownPoints = points.length < progress.trial_count ? ` ${points.length} of ${progress.trial_count} trials are drawn: all that improved, and an even sample.` : '';
  const predicted = typeof progress.predicted === 'number' ? ` The best that was predicted is ${view.shown(progress.predicted, unit)}${
    typeof progress.predicted_low === 'number' && typeof progress.predicted_high === 'number' ? ` (${rangeText([progress.predicted_low, progress.predicted_high], unit)})` : ''}.` : '';
  return words + predicted + shownPoints;
}
