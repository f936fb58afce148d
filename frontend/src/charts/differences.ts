/* Differences: the same configuration in two runs, with the doubt about each difference. */
import type { RunDifference } from '../data';
import { axisOf, frame, legendEntry, mark, picture, shapePath, svg, walkable, whisker, withTip } from '../plot';
import type { Box } from '../plot';
import type { Rows, Shape, View } from '../view';
import { percent } from '../words';
import { choice, cut, empty, fitting, measureOf, measureWords, partsOf, quantityOf, withEnds } from './parts';

const MOST = 40;

/** One row: a difference with its interval, as a share of the reference's value. */
interface Row { label: string; key: string; change: number; low: number | null; high: number | null; apart: boolean | null; better: boolean | null; tip: Rows }

const LOOKS: Record<'better' | 'worse' | 'same' | 'unknown', { shape: Shape; colour: string; words: string }> = {
  better: { shape: 'triangle', colour: 'var(--meets)', words: 'better' },
  worse: { shape: 'diamond', colour: 'var(--misses)', words: 'worse' },
  same: { shape: 'circle', colour: 'var(--failed)', words: 'within the sampling intervals (95%)' },
  unknown: { shape: 'plus', colour: 'var(--muted)', words: 'no interval of both: not known' },
};
const lookOf = (row: Row) => LOOKS[row.apart === null ? 'unknown' : !row.apart ? 'same' : row.better ? 'better' : 'worse'];

/** Differences to the run that is shown for comparison. */
export function draw(host: HTMLElement, input: readonly RunDifference[], view: View): void {
  const keys = new Set(view.trials.map((trial) => trial.key));
  const shownHere = input.filter((each) => keys.has(each.key));
  if (!shownHere.length) { empty(host, 'Nothing to show: no configuration that is in both runs passes the filters.'); return; }
  const measures = [...new Set(shownHere.map((each) => `${each.quantity}:${each.statistic}`))];
  const options = measures.map((value): [string, string] => { const { name, statistic } = measureOf(value); return [value, measureWords(view, name, statistic)]; });
  const value = choice(host, 'metric', 'Metric', options, measures[0]!, () => draw(host, input, view));
  const { name, statistic } = measureOf(value);
  const quantity = quantityOf(view, name);
  const rows = shownHere.filter((each) => each.quantity === name && each.statistic === statistic).map((each): Row => ({
    label: each.label, key: each.key, change: each.change_fraction, low: each.change_low, high: each.change_high, apart: each.told_apart,
    better: (each.change_fraction > 0) === quantity.maximize,
    tip: [['This run', withEnds(view, each.here, each.here_ends, quantity.unit)], ['Other run', withEnds(view, each.there, each.there_ends, quantity.unit)],
      ['Difference', endsWords(each.change_fraction, each.change_low, each.change_high)]],
  }));
  forest(host, rows, view, `${measureWords(view, name, statistic)}: this run over the other`);
}

const endsWords = (change: number, low: number | null, high: number | null): string => percent(change)
  + (low === null && high === null ? '' : ` (${percent(low)} to ${percent(high)})`);

function forest(host: HTMLElement, all: readonly Row[], view: View, title: string): void {
  const rows = all.slice(0, MOST);
  if (!rows.length) { empty(host, 'Nothing to show: no metric has a value in both.'); return; }
  const { figure, legend, note } = partsOf(host);
  const wanted = 30 + 6.6 * Math.max(...rows.map((row) => row.label.length));
  const narrow = view.width < 520 || wanted > view.width * 0.45;
  const each = narrow ? 38 : 26;
  const labels = narrow ? 0 : wanted;
  const box: Box = { left: labels + (narrow ? 20 : 6), right: view.width - 76, top: 28, bottom: 28 + each * rows.length + 6 };
  const ends = rows.flatMap((row) => [row.change, ...[row.low, row.high].filter((end): end is number => end !== null)]);
  const x = axisOf([...ends, 0, 0.02, -0.02], box.left, box.right, { title: 'Relative difference', unit: 'fraction', zero: false, count: view.width < 520 ? 4 : 7 });
  const y = { ...x, ticks: [], title: cut(title, fitting(view.width)), better: '' as const };
  const made = picture(figure, view, box.bottom + 44, title);
  made.setAttribute('role', 'group');
  made.append(frame(box, x, y), svg('line', { class: 'reference', x1: x.at(0), x2: x.at(0), y1: box.top - 4, y2: box.bottom }));
  const marks = rows.map((row, i) => {
    const middle = box.top + each * i + (narrow ? 28 : each / 2);
    const look = lookOf(row);
    return svg('g', {
      class: 'bar-row', role: 'img', 'aria-label': `${row.label}: ${endsWords(row.change, row.low, row.high)}, ${look.words}`,
      onclick: (event: MouseEvent) => view.select([row.key], event.shiftKey), ...withTip(view, row.label, () => [...row.tip, ['Verdict', look.words]]),
    },
    svg('rect', { class: 'hit', x: 0, y: box.top + each * i, width: view.width, height: each }),
    narrow ? svg('text', { class: 'halo', x: 0, y: middle - 12 }, cut(row.label, fitting(view.width))) : svg('text', { x: labels - 4, y: middle + 4, 'text-anchor': 'end' }, cut(row.label, fitting(labels))),
    row.low !== null || row.high !== null ? whisker(box, x, [row.low, row.high], middle, false, look.colour) : null,
    mark(look.shape, x.at(row.change), middle, 4.5, look.colour, false),
    svg('text', { x: view.width - 70, y: middle + 4 }, percent(row.change)));
  });
  made.append(...marks);
  walkable(made, marks, (index, add) => view.select([rows[index]!.key], add));
  for (const look of new Set(rows.map(lookOf))) {
    legend.append(legendEntry(svg('path', { d: shapePath(look.shape, 9, 8, 4.5), fill: look.shape === 'plus' ? 'none' : look.colour, stroke: look.colour, 'stroke-width': 1.6 }), look.words));
  }
  note.replaceChildren(all.length > rows.length ? `The first ${rows.length} of ${all.length} are drawn; a filter shows others.` : '');
}
