/* Predicted against measured: how far the predictions of this run can be trusted. */
import type { PagePair, QuantityError } from '../data';
import { axisOf, extent, frame, legendEntry, mark, picture, shapePath, spansDecades, svg, walkable, whisker, withTip } from '../plot';
import type { Box } from '../plot';
import type { Rows, Shape, View } from '../view';
import { percent } from '../words';
import { choice, empty, measureOf, measureTitle, measureWords, partsOf, quantityOf, withEnds } from './parts';

interface Point { pair: PagePair; error: QuantityError; predicted: number; measured: number }

const LOOKS: Record<'in' | 'out' | 'none', { shape: Shape; colour: string; words: string }> = {
  in: { shape: 'circle', colour: 'var(--meets)', words: 'measured inside the interval' },
  out: { shape: 'diamond', colour: 'var(--misses)', words: 'measured outside' },
  none: { shape: 'square', colour: 'var(--failed)', words: 'no interval' },
};
const lookOf = (error: QuantityError) => LOOKS[error.inside === true ? 'in' : error.inside === false ? 'out' : 'none'];

export function draw(host: HTMLElement, pairs: readonly PagePair[], view: View): void {
  const measures = new Map<string, number>();
  for (const pair of pairs) {
    for (const gap of pair.gaps) if (both(gap)) measures.set(`${gap.quantity}:${gap.statistic}`, (measures.get(`${gap.quantity}:${gap.statistic}`) ?? 0) + 1);
  }
  if (!measures.size) { empty(host, 'Nothing to show: no trial was both predicted and measured. A measured run keeps its predictions; `report --compare` adds another run.'); return; }
  const options = [...measures.keys()].map((value): [string, string] => { const { name, statistic } = measureOf(value); return [value, measureWords(view, name, statistic)]; });
  const { name, statistic } = measureOf(choice(host, 'metric', 'Metric', options, options[0]![0], () => draw(host, pairs, view)));
  const points = pairs.flatMap((pair): Point[] => pair.gaps.filter((gap) => gap.quantity === name && gap.statistic === statistic && both(gap))
    .map((error) => ({ pair, error, predicted: error.predicted!, measured: error.measured! })));

  const { figure, legend, note } = partsOf(host);
  const { unit } = quantityOf(view, name);
  const size = Math.min(view.width, 620);
  const box: Box = { left: 62, right: size - 24, top: 28, bottom: Math.min(420, size - 30) };
  const all = points.flatMap((each) => [each.predicted, each.measured, ...[each.error.low, each.error.high].filter((end): end is number => typeof end === 'number')]);
  const log = spansDecades(all) || (extent(all)[0] > 0 && extent(all)[1] / extent(all)[0] > 8);
  const x = axisOf(all, box.left, box.right, { title: `Predicted ${measureTitle(view, name, statistic)}`, unit, log, count: 5 });
  const y = axisOf(all, box.bottom, box.top, { title: 'Measured', unit, log, count: 5 });
  const made = picture(figure, view, box.bottom + 44, `Predicted and measured ${measureWords(view, name, statistic)}`);
  made.setAttribute('role', 'group');
  const [from, to] = [Math.max(x.low, y.low), Math.min(x.high, y.high)];
  made.append(frame(box, x, y), svg('line', { class: 'diagonal', x1: x.at(from), y1: y.at(from), x2: x.at(to), y2: y.at(to) }),
    svg('text', { class: 'halo muted-text', x: x.at(to) - 6, y: y.at(to) + 16, 'text-anchor': 'end' }, 'as predicted'));
  const trials = new Map(view.data.trials.map((trial) => [trial.key, trial]));
  const marks = points.map((each) => {
    const look = lookOf(each.error);
    const [px, py] = [x.at(each.predicted), y.at(each.measured)];
    const ends: [number | null, number | null] = [each.error.low ?? null, each.error.high ?? null];
    if (ends[0] !== null || ends[1] !== null) made.append(whisker(box, x, ends, py, false, look.colour));
    const trial = trials.get(each.pair.key);
    const sampled = each.pair.own && trial ? view.interval(trial, name, statistic) : null;
    if (sampled) made.append(whisker(box, y, sampled, px, true, look.colour));
    return mark(look.shape, px, py, 4.5, look.colour, false, {
      role: 'img', 'aria-label': `${each.pair.label}: predicted ${view.shown(each.predicted, unit)}, measured ${view.shown(each.measured, unit)}, ${look.words}`,
      onclick: (event: MouseEvent) => view.select([each.pair.key], event.shiftKey),
      ...withTip(view, each.pair.label, (): Rows => [
        ['Predicted', withEnds(view, each.predicted, ends, unit)], ['Measured', withEnds(view, each.measured, sampled, unit)],
        ['Predicted is off by', percent(each.error.error_fraction)], ['Interval', look.words]]),
    });
  });
  made.append(...marks);
  walkable(made, marks, (index, add) => view.select([points[index]!.pair.key], add));
  const used = new Set(points.map((each) => lookOf(each.error)));
  for (const look of used) legend.append(legendEntry(svg('path', { d: shapePath(look.shape, 9, 8, 4.5), fill: look.colour }), look.words));
  const judged = points.filter((each) => each.error.inside === true || each.error.inside === false);
  const errors = points.map((each) => Math.abs(each.error.error_fraction ?? 0)).sort((a, b) => a - b);
  const middle = errors.length % 2 ? errors[(errors.length - 1) / 2]! : (errors[errors.length / 2 - 1]! + errors[errors.length / 2]!) / 2;
  note.replaceChildren(`${judged.length ? `${judged.filter((each) => each.error.inside).length} of ${judged.length} measured values are inside the interval of their prediction. ` : ''}`
    + `Median error ${(middle * 100).toPrecision(2)}%.`);
}

const both = (gap: QuantityError): boolean => gap.predicted !== null && gap.measured !== null;
