/* Parallel coordinates: which combinations of many settings lead to good values, one line a trial. */
import type { PageTrial } from '../data';
import { axisOf, picture, spansDecades, svg, walkable, withTip } from '../plot';
import type { Axis, Box } from '../plot';
import type { View } from '../view';
import { DASH, naturally, settingText } from '../words';
import { choice, cut, empty, measureOf, measureOptions, measureWords, partsOf, quantityOf, usualMeasure } from './parts';

const MOST = 2000;
const LEVELS = 12;

interface Column { name: string; at(trial: PageTrial, rank: number): number | null; ticks: [at: number, words: string][] }

export function draw(host: HTMLElement, trials: readonly PageTrial[], view: View): void {
  const usable = trials.filter((trial) => trial.status === 'ok');
  const options = measureOptions(view, usable);
  const value = choice(host, 'metric', 'Last axis', options, usualMeasure(view), () => draw(host, trials, view));
  const { name, statistic } = measureOf(value);
  const valued = usable.filter((trial) => view.value(trial, name, statistic) !== null);
  if (!valued.length) { empty(host, 'Nothing to show: no trial that passes the filters has a value.'); return; }
  const { figure, note } = partsOf(host);
  const quantity = quantityOf(view, name);
  const box: Box = { left: 34, right: view.width - 44, top: 62, bottom: 330 };
  const settings = view.data.settings;
  const values = valued.map((trial) => view.value(trial, name, statistic)!);
  const axis = axisOf(values, box.bottom, box.top, { title: '', unit: quantity.unit, log: spansDecades(values), count: 5 });
  const last: Column = { name: measureWords(view, name, statistic), at: (trial) => at(axis, view.value(trial, name, statistic)), ticks: axis.ticks.map((tick) => [axis.at(tick), axis.text(tick)]) };
  const columns: Column[] = settings.map((setting) => settingColumn(setting.short, (trial) => (setting.side === 'server' ? trial.server : trial.client)[setting.name], valued, box));
  columns.push(last);
  const step = (box.right - box.left) / Math.max(1, columns.length - 1);
  const made = picture(figure, view, box.bottom + 34, `Settings and ${measureWords(view, name, statistic)} of ${valued.length} trials, one line each`);
  made.setAttribute('role', 'group');

  const order = [...valued].sort((a, b) => view.value(a, name, statistic)! - view.value(b, name, statistic)!);
  // Lines of one value of a setting lie beside each other, in the order of the last axis.
  const ranks = new Map(order.map((trial, i) => [trial, order.length > 1 ? i / (order.length - 1) : 0.5]));
  if (!quantity.maximize) order.reverse();
  const drawn = order.slice(-MOST); // the best last, on top
  const best = new Set(drawn.slice(-Math.max(1, Math.ceil(drawn.length / 10))));
  const lines = drawn.map((trial) => {
    const points = columns.map((column, i): [number, number] | null => { const y = column.at(trial, ranks.get(trial)!); return y === null ? null : [box.left + step * i, y]; }).filter((each) => each !== null);
    const chosen = view.selection.has(trial.key);
    const look = ['strand', best.has(trial) ? 'strand-best' : '', chosen ? 'strand-chosen' : '', view.standing(trial) === 'misses' ? 'strand-misses' : ''].filter(Boolean).join(' ');
    return svg('path', {
      class: look, d: `M${points.map((each) => each.join(' ')).join('L')}`, role: 'img', 'aria-label': `${trial.label}: ${view.shown(view.value(trial, name, statistic), quantity.unit)}`,
      onclick: (event: MouseEvent) => view.select([trial.key], event.shiftKey),
      ...withTip(view, trial.label, () => [[measureWords(view, name, statistic), view.shown(view.value(trial, name, statistic), quantity.unit)], ['Limits', view.standing(trial) === 'meets' ? 'holds every one' : 'misses one']]),
    });
  });
  made.append(...lines);
  const most = Math.floor(step / 6.2);
  columns.forEach((column, i) => {
    const px = box.left + step * i;
    const anchor = i === 0 ? 'start' : i === columns.length - 1 ? 'end' : 'middle';
    const edge = i === 0 ? 0 : i === columns.length - 1 ? view.width : px;
    made.append(svg('line', { class: 'pole', x1: px, x2: px, y1: box.top - 24, y2: box.bottom + 24 }),
      svg('text', { class: 'title', x: edge, y: i % 2 && step < 110 ? 30 : 14, 'text-anchor': anchor }, cut(column.name, Math.max(8, step < 110 ? most * 2 : most))),
      ...column.ticks.map(([py, words]) => (i === columns.length - 1
        ? svg('text', { class: 'halo', x: px + 6, y: py + 4 }, words)
        : svg('text', { class: 'halo', x: px + 5, y: py - 4 }, cut(words, Math.max(4, most - 1))))));
  });
  walkable(made, lines, (index, add) => view.select([drawn[index]!.key], add));
  note.replaceChildren(`Strong lines are the best tenth in ${measureWords(view, name, statistic)}; dashed ones miss a limit.${order.length > MOST ? ` The best ${MOST.toLocaleString('en-US')} of ${order.length.toLocaleString('en-US')} trials are drawn.` : ''}`);
}

const at = (axis: Axis, value: number | null): number | null => (value === null ? null : axis.at(value));

/** Column of a setting: its values in order at equal distances, or a scale of many numbers. */
function settingColumn(name: string, of: (trial: PageTrial) => PageTrial['server'][string] | undefined, trials: readonly PageTrial[], box: Box): Column {
  const texts = [...new Set(trials.map((trial) => settingText(of(trial))))].sort(naturally);
  const numbers = trials.map((trial) => of(trial)).filter((each): each is number => typeof each === 'number');
  if (texts.length > LEVELS && numbers.length === trials.length) {
    const axis = axisOf(numbers, box.bottom, box.top, { title: '', log: spansDecades(numbers), count: 5, zero: false });
    return { name, at: (trial) => axis.at(of(trial) as number), ticks: axis.ticks.map((tick) => [axis.at(tick), axis.text(tick)]) };
  }
  const place = new Map(texts.map((text, i) => [text, texts.length === 1 ? (box.top + box.bottom) / 2 : box.bottom - (box.bottom - box.top) * (i / (texts.length - 1))]));
  const every = Math.ceil(texts.length / LEVELS);
  const band = Math.min(44, texts.length > 1 ? 0.6 * (box.bottom - box.top) / (texts.length - 1) : 44);
  return { name, at: (trial, rank) => { const y = place.get(settingText(of(trial))); return y === undefined ? null : y + (0.5 - rank) * band; }, ticks: texts.filter((_, i) => i % every === 0).map((text) => [place.get(text)!, text || DASH]) };
}
