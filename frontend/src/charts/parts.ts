/* Parts that the charts of this folder share: controls that keep their focus through a redraw, the
   choice of a measure, empty states, marks of standings, and the better of two directions. */
import type { PageQuantity, PageTrial } from '../data';
import { html, svg } from '../plot';
import type { View } from '../view';
import { shown } from '../words';

/** Places of a chart inside its host; they stay the same elements through every redraw. */
export interface Parts {
  controls: HTMLElement;
  figure: HTMLElement;
  legend: HTMLElement;
  note: HTMLElement;
}

const made = new WeakMap<HTMLElement, Parts>();
const chosen = new WeakMap<HTMLElement, Record<string, string>>();

/** Controls, figure, legend and note of a host, made once. */
export function partsOf(host: HTMLElement): Parts {
  let parts = made.get(host);
  if (!parts || parts.figure.parentNode !== host) {
    parts = {
      controls: html('div', { class: 'chart-controls' }), figure: html('div', { class: 'chart-figure' }),
      legend: html('div', { class: 'legend' }), note: html('p', { class: 'note chart-note' }),
    };
    host.replaceChildren(parts.controls, parts.figure, parts.legend, parts.note);
    made.set(host, parts);
  }
  parts.legend.replaceChildren();
  parts.note.replaceChildren();
  return parts;
}

/** Words instead of a figure: why there is nothing, and what would help. */
export function empty(host: HTMLElement, why: string): void {
  const { figure } = partsOf(host);
  figure.replaceChildren(html('p', { class: 'note chart-empty' }, why));
}

export type Option = readonly [value: string, words: string];

/** Value of a choice of a chart, and its select; redrawing keeps both the value and the focus.

    A choice of a single option has no select. */
export function choice(host: HTMLElement, name: string, label: string, options: readonly Option[], usual: string, redraw: () => void): string {
  const values = chosen.get(host) ?? {};
  chosen.set(host, values);
  const { controls } = partsHere(host);
  const held = values[name];
  const value = held !== undefined && options.some(([each]) => each === held) ? held
    : options.some(([each]) => each === usual) ? usual : options[0]?.[0] ?? '';
  let select = controls.querySelector<HTMLSelectElement>(`select[data-choice="${name}"]`);
  if (!select) {
    select = html('select', { 'data-choice': name });
    controls.append(html('label', {}, `${label} `, select));
  }
  select.parentElement!.hidden = options.length < 2;
  const key = options.map((each) => each.join('\u0000')).join('\u0001');
  if (select.dataset['options'] !== key) {
    select.dataset['options'] = key;
    select.replaceChildren(...options.map(([each, words]) => html('option', { value: each }, words)));
  }
  select.value = value;
  select.onchange = () => { values[name] = select.value; redraw(); };
  return value;
}

const partsHere = (host: HTMLElement): Parts => made.get(host) ?? partsOf(host);

/** Quantity of the page by name. */
export function quantityOf(view: View, name: string): PageQuantity {
  return view.data.quantities.find((each) => each.name === name)
    ?? { name, title: name, short: name, unit: '', maximize: false, has_statistics: false };
}

/** Measure as text: `TTFT p99`, `Output`. */
export function measureWords(view: View, name: string, statistic: string): string {
  const quantity = quantityOf(view, name);
  return quantity.has_statistics ? `${quantity.short} ${statistic}` : quantity.title;
}

/** Title of an axis: `Time to first token, p99`. */
export function measureTitle(view: View, name: string, statistic: string): string {
  const quantity = quantityOf(view, name);
  return quantity.has_statistics ? `${quantity.title}, ${statistic}` : quantity.title;
}

/** Measures with a value in some trial, as options `name:statistic`. */
export function measureOptions(view: View, trials: readonly PageTrial[]): Option[] {
  return view.data.quantities.flatMap((quantity) => (quantity.has_statistics ? view.data.statistics : ['mean'])
    .filter((statistic) => trials.some((trial) => view.value(trial, quantity.name, statistic) !== null))
    .map((statistic): Option => [`${quantity.name}:${statistic}`, measureWords(view, quantity.name, statistic)]));
}

export function measureOf(value: string): { name: string; statistic: string } {
  const [name = '', statistic = 'mean'] = value.split(':');
  return { name, statistic };
}

/** Measure of the first objective, as an option. */
export function usualMeasure(view: View): string {
  const objective = view.data.objectives[0];
  return objective ? `${objective.metric}:${objective.statistic}` : 'output_throughput:mean';
}

/** Whether a trial may be picked under the limits that are on. */
export function mayBePicked(view: View, trial: PageTrial): boolean {
  return view.standing(trial) === 'meets' && !trial.miscounted && !trial.failed_requests?.mark;
}

/** Series look that does not rest on colour alone. */
export const DASHES = ['', '7 4', '2 3', '10 3 2 3', '5 2 1 2 1 2', '1 4'] as const;
export const seriesColour = (index: number): string => `var(--c${index % 6})`;
export const seriesDash = (index: number): string => DASHES[index % DASHES.length]!;

/** Legend entry of a line with its dashes. */
export function lineEntry(index: number, words: string): HTMLSpanElement {
  return html('span', {}, svg('svg', { viewBox: '0 0 26 12', width: 26, height: 12, 'aria-hidden': 'true' },
    svg('line', { x1: 1, x2: 25, y1: 6, y2: 6, stroke: seriesColour(index), 'stroke-width': 2.2, 'stroke-dasharray': seriesDash(index) || null })), words);
}

/** Text cut to so many characters, with an ellipsis. */
export const cut = (text: string, most: number): string => (text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`);

/** Number of characters of 12 px text that fit so many pixels. */
export const fitting = (pixels: number): number => Math.max(3, Math.floor(pixels / 6.6));

/** `×1.8` of a change, `0.2%` of a small one. */
export function changeWords(fraction: number): string {
  if (fraction >= 0.5) return `×${(1 + fraction).toPrecision(2)}`;
  const percents = fraction * 100;
  return percents < 0.005 ? '0%' : `${percents < 1 ? percents.toPrecision(1) : percents.toPrecision(2)}%`;
}

/** Share as text: `62%`, `0.4%`. */
export function shareWords(fraction: number): string {
  const percents = fraction * 100;
  if (percents < 0.05) return '0%';
  return `${percents < 1 ? percents.toFixed(1) : percents.toFixed(0)}%`;
}

/** Value with its interval: `912 tok/s (900 to 925 tok/s)`. */
export function withEnds(view: View, value: number | null, ends: readonly [number | null, number | null] | null, unit: string): string {
  if (!ends || (ends[0] === null && ends[1] === null)) return view.shown(value, unit);
  return `${view.shown(value, unit)} (${shown(ends[0], unit)} to ${shown(ends[1], unit)})`;
}
