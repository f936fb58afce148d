/* Heat map over two settings: where in the space the good values lie, and where nothing was tried. */
import type { PageSetting, PageTrial } from '../data';
import { html, picture, svg, walkable, withTip } from '../plot';
import type { View } from '../view';
import { naturally, plural, settingText } from '../words';
import { choice, cut, empty, fitting, measureOf, measureOptions, measureWords, partsOf, quantityOf, usualMeasure } from './parts';

const MOST = 24;

interface Cell { column: string; row: string; trials: PageTrial[]; value: number; best: PageTrial; holding: number }

export function draw(host: HTMLElement, trials: readonly PageTrial[], view: View): void {
  const redraw = () => draw(host, trials, view);
  const settings = view.data.settings;
  if (settings.length < 2) { empty(host, 'Nothing to show: fewer than two settings differ between trials.'); return; }
  const names = settings.map((each): [string, string] => [`${each.side}.${each.name}`, each.short]);
  const across = choice(host, 'across', 'Across', names, names[names.length - 1]![0], redraw);
  const down = choice(host, 'down', 'Down', names.filter(([each]) => each !== across), names[0]![0], redraw);
  const usable = trials.filter((trial) => trial.status === 'ok');
  const { name, statistic } = measureOf(choice(host, 'metric', 'Metric', measureOptions(view, usable), usualMeasure(view), redraw));
  const kind = choice(host, 'kind', 'Cell', [['best', 'best of its trials'], ['mean', 'mean of its trials']], 'best', redraw);
  const quantity = quantityOf(view, name);
  const [column, row] = [across, down].map((each) => settings.find((s) => `${s.side}.${s.name}` === each)!) as [PageSetting, PageSetting];
  const cells = cellsOf(usable, column, row, kind, quantity.maximize, name, statistic, view);
  const [columns, rows] = [keysOf(trials, column), keysOf(trials, row)];
  if (!cells.length) { empty(host, 'Nothing to show: no trial that passes the filters has a value.'); return; }

  const { figure, legend, note } = partsOf(host);
  const label = Math.min(view.width * 0.3, 16 + 6.8 * Math.max(row.short.length, ...rows.map((each) => each.length)));
  const width = Math.min(150, (view.width - label - 8) / columns.length);
  const height = Math.max(24, Math.min(44, width * 0.6));
  const top = 44;
  const made = picture(figure, view, top + height * rows.length + 12, `${measureWords(view, name, statistic)} over ${column.short} and ${row.short}`);
  made.setAttribute('role', 'group');
  const values = cells.map((each) => each.value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const log = low > 0 && high / low > 20;
  const part = (value: number): number => (high === low ? 1 : log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const good = (value: number): number => (quantity.maximize ? part(value) : 1 - part(value));
  const possible = cells.filter((each) => each.holding);
  const winner = (possible.length ? possible : cells).reduce((a, b) => (good(b.value) > good(a.value) ? b : a));
  made.append(svg('text', { class: 'title', x: label + 4, y: 14 }, `${cut(column.short, fitting(view.width - label))} →`),
    svg('text', { class: 'title', x: 0, y: 34 }, `${cut(row.short, fitting(label) - 2)} ↓`),
    ...columns.map((each, i) => svg('text', { x: label + width * (i + 0.5), y: 34, 'text-anchor': 'middle' }, cut(each, fitting(width)))),
    ...rows.map((each, i) => svg('text', { x: label - 6, y: top + height * (i + 0.5) + 4, 'text-anchor': 'end' }, cut(each, fitting(label)))));
  const byPlace = new Map(cells.map((each) => [`${each.column}\u0000${each.row}`, each]));
  const marks: SVGElement[] = [];
  const chosen: Cell[] = [];
  rows.forEach((down_, j) => columns.forEach((across_, i) => {
    const cell = byPlace.get(`${across_}\u0000${down_}`);
    const [px, py] = [label + width * i, top + height * j];
    if (!cell) {
      made.append(svg('rect', { class: 'cell-none', x: px + 1, y: py + 1, width: width - 2, height: height - 2, rx: 3 }), svg('text', { class: 'muted-text', x: px + width / 2, y: py + height / 2 + 4, 'text-anchor': 'middle' }, '–'));
      return;
    }
    const share = good(cell.value);
    const words = view.shown(cell.value, quantity.unit);
    const text = words.length <= fitting(width) ? words : words.split(' ')[0]!;
    const g = svg('g', {
      class: cell === winner ? 'cell cell-best' : 'cell', role: 'img', 'aria-label': `${column.short} ${across_}, ${row.short} ${down_}: ${words}, ${plural(cell.trials.length, 'trial')}`,
      onclick: (event: MouseEvent) => view.select([cell.best.key], event.shiftKey),
      ...withTip(view, `${column.short} ${across_}, ${row.short} ${down_}`, () => [[measureWords(view, name, statistic), words], ['Best trial', cell.best.label],
        ['Trials', String(cell.trials.length)], ['Hold every limit', String(cell.holding)]]),
    },
    svg('rect', { class: 'cell-fill', x: px + 1, y: py + 1, width: width - 2, height: height - 2, rx: 3, 'fill-opacity': (0.06 + 0.84 * share).toFixed(3) }),
    cell.holding ? null : svg('path', { class: share > 0.6 ? 'cell-hatch cell-hatch-light' : 'cell-hatch', d: hatch(px + 1, py + 1, width - 2, height - 2) }),
    text.length <= fitting(width) ? svg('text', { class: share > (view.dark ? 0.6 : 0.84) ? 'on-accent' : 'on-cell', x: px + width / 2, y: py + height / 2 + 4, 'text-anchor': 'middle' }, text) : null);
    marks.push(g);
    chosen.push(cell);
  }));
  made.append(...marks);
  walkable(made, marks, (index, add) => view.select([chosen[index]!.best.key], add));
  legend.append(html('span', {}, `Stronger is better: ${view.shown(quantity.maximize ? low : high, quantity.unit)} to ${view.shown(quantity.maximize ? high : low, quantity.unit)}`), html('span', {}, possible.length ? 'outlined: the best within the limits' : 'outlined: the best'));
  if (cells.some((each) => !each.holding)) legend.append(html('span', {}, 'hatched: no trial of the cell holds every limit'));
  if (cells.length < columns.length * rows.length) legend.append(html('span', {}, '–: no successful trial'));
  note.replaceChildren(keysOf(trials, column, Infinity).length > MOST || keysOf(trials, row, Infinity).length > MOST ? `The first ${MOST} values of a setting are drawn; a filter shows others.` : '');
}

const textOf = (trial: PageTrial, setting: PageSetting): string => settingText((setting.side === 'server' ? trial.server : trial.client)[setting.name]);

function keysOf(trials: readonly PageTrial[], setting: PageSetting, most = MOST): string[] {
  return [...new Set(trials.map((trial) => textOf(trial, setting)))].sort(naturally).slice(0, most);
}

/** Cells with a trial; the best of one is the best of those that hold every limit, where any does. */
function cellsOf(trials: readonly PageTrial[], column: PageSetting, row: PageSetting, kind: string, maximize: boolean, name: string, statistic: string, view: View): Cell[] {
  const found = new Map<string, { trial: PageTrial; value: number }[]>();
  for (const trial of trials) {
    const value = view.value(trial, name, statistic);
    if (value === null) continue;
    const key = `${textOf(trial, column)}\u0000${textOf(trial, row)}`;
    const each = found.get(key);
    if (each) each.push({ trial, value }); else found.set(key, [{ trial, value }]);
  }
  return [...found].map(([key, each]) => {
    const holding = each.filter((one) => view.standing(one.trial) === 'meets');
    const best = (holding.length ? holding : each).reduce((a, b) => ((maximize ? b.value > a.value : b.value < a.value) ? b : a));
    const [at = '', below = ''] = key.split('\u0000');
    return {
      column: at, row: below, trials: each.map((one) => one.trial), best: best.trial, holding: holding.length,
      value: kind === 'mean' ? each.reduce((sum, one) => sum + one.value, 0) / each.length : best.value,
    };
  });
}

/** Diagonal lines across a rectangle. */
function hatch(x: number, y: number, width: number, height: number): string {
  const parts: string[] = [];
  for (let d = 8; d < width + height; d += 9) {
    const [x1, y1] = d < height ? [x, y + d] : [x + d - height, y + height];
    const [x2, y2] = d < width ? [x + d, y] : [x + width, y + d - width];
    parts.push(`M${x1.toFixed(1)} ${y1.toFixed(1)}L${x2.toFixed(1)} ${y2.toFixed(1)}`);
  }
  return parts.join('');
}
