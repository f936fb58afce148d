/* Helpers of all charts: elements, axes, marks, hover and export. Text enters as text, never as
   markup, and colours are classes or CSS variables, so that a theme needs no new drawing. */
import { nice, ticks } from 'd3-array';
import type { Rows, Shape, View } from './view';

type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;
type Child = Node | string | number | null | undefined | false | Child[];

/** HTML element; attributes that begin with `on` are listeners. */
export function html<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

/** SVG element; attributes that begin with `on` are listeners. */
export function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function fill<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name.slice(2), value as EventListener);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

function append(parent: Element, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) append(parent, child);
    else if (child instanceof Node) parent.append(child);
    else if (child !== null && child !== undefined && child !== false && child !== '') parent.append(String(child));
  }
}

/** Inner rectangle of a chart, in pixels. */
export interface Box { left: number; right: number; top: number; bottom: number }

/** Scale with its ticks and words. */
export interface Axis {
  at(value: number): number;
  invert(pixel: number): number;
  ticks: number[];
  low: number;
  high: number;
  log: boolean;
  /** Words of a tick. */
  text(value: number): string;
  /** Title with its unit. */
  title: string;
  /** `more`, `less` or '' by where better is. */
  better: '' | 'more' | 'less';
}

export interface AxisOptions {
  title: string;
  /** Unit of the values as in `PageQuantity.unit`; ms above 2 s are written in s. */
  unit?: string;
  log?: boolean;
  /** About how many ticks. */
  count?: number;
  /** Whether the axis begins at zero; by default where the least value is below 60% of the greatest. */
  zero?: boolean;
  /** Limits as they are, without room around (a zoom). */
  exact?: boolean;
  better?: '' | 'more' | 'less';
}

/** Axis over the values, from one pixel to another (`from` > `to` for a vertical one). */
export function axisOf(values: Iterable<number>, from: number, to: number, options: AxisOptions): Axis {
  let [low, high] = extent(values);
  const { count = 6, better = '' } = options;
  const log = Boolean(options.log) && high > 0;
  if (log && low <= 0) low = high / 1000;
  const unit = unitOf(options.unit ?? '', high);
  const title = options.title + (unit.text || log ? ` (${[unit.text, log ? 'log scale' : ''].filter(Boolean).join(', ')})` : '');
  const text = (value: number) => tickText(value / unit.per);
  if (log) {
    if (!options.exact) { low /= 1.15; high *= 1.15; }
    const span = Math.log(high / low) || 1;
    const at = (v: number) => from + (to - from) * (Math.log(Math.max(v, 1e-12) / low) / span);
    return { at, invert: (p) => low * Math.exp(((p - from) / (to - from)) * span), ticks: logTicks(low, high), low, high, log, text, title, better };
  }
  if (!options.exact) {
    if (options.zero || (options.zero !== false && low > 0 && low < high * 0.6)) low = Math.min(0, low);
    if (low === high) { high += Math.abs(high) * 0.1 || 1; low -= Math.abs(low) * 0.1; }
    high += (high - low) * 0.02;
  }
  const [a, b] = options.exact ? [low / unit.per, high / unit.per] : nice(low / unit.per, high / unit.per, count);
  const [first, last] = [a * unit.per, b * unit.per];
  return {
    at: (v) => from + (to - from) * ((v - first) / (last - first || 1)), invert: (p) => first + ((p - from) / (to - from)) * (last - first),
    ticks: ticks(a, b, count).map((t) => t * unit.per), low: first, high: last, log, text, title, better,
  };
}

function logTicks(low: number, high: number): number[] {
  const steps = high / low > 2000 ? [1] : high / low > 60 ? [1, 3] : high / low > 4 ? [1, 2, 5] : null;
  if (!steps) return ticks(low, high, 5);
  const made: number[] = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += 1) {
    for (const step of steps) { const tick = step * 10 ** e; if (tick >= low && tick <= high) made.push(tick); }
  }
  return made;
}

/** Least and greatest value; [0, 1] of none. */
export function extent(values: Iterable<number>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return low > high ? [0, 1] : [low, high];
}

/** Whether values span so much that an axis is read better in logarithms. */
export function spansDecades(values: Iterable<number>): boolean {
  const [low, high] = extent(values);
  return low > 0 && high / low > 40;
}

/** Words and size of the unit in which an axis is written. */
export function unitOf(unit: string, high: number): { text: string; per: number } {
  if (unit === 'ms') return high >= 2000 ? { text: 's', per: 1000 } : { text: 'ms', per: 1 };
  if (unit === 'fraction') return { text: '%', per: 0.01 };
  return { text: unit === 'USD' ? 'US$' : unit, per: 1 };
}

export const tickText = (value: number): string => (Math.abs(value) < 1e-12 ? '0'
  : value.toLocaleString('en-US', { maximumSignificantDigits: 4 }));

/** Empty picture of a host, as wide as the view. */
export function picture(host: HTMLElement, view: View, height: number, label: string): SVGSVGElement {
  const made = svg('svg', { width: view.width, height, viewBox: `0 0 ${view.width} ${height}`, role: 'img', 'aria-label': label });
  host.replaceChildren(made);
  return made;
}

/** Grid, ticks and titles around a box: the y title above, the x title below. */
export function frame(box: Box, x: Axis, y: Axis): SVGGElement {
  const g = svg('g', { class: 'frame', 'aria-hidden': 'true' });
  for (const tick of y.ticks) {
    g.append(svg('line', { class: 'grid', x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick) }),
      svg('text', { x: box.left - 8, y: y.at(tick) + 4, 'text-anchor': 'end' }, y.text(tick)));
  }
  let last = -Infinity;
  for (const tick of x.ticks) {
    g.append(svg('line', { class: 'base', x1: x.at(tick), x2: x.at(tick), y1: box.bottom, y2: box.bottom + 4 }));
    const half = x.text(tick).length * 3.4 + 5;
    if (x.at(tick) - half < last) continue;
    last = x.at(tick) + half;
    g.append(svg('text', { x: x.at(tick), y: box.bottom + 18, 'text-anchor': 'middle' }, x.text(tick)));
  }
  const narrow = box.right - box.left < 440;
  const words = (axis: Axis, more: string, less: string) => (axis.better && !narrow ? (axis.better === 'more' ? more : less) : '');
  g.append(svg('line', { class: 'base', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg('text', { class: 'title', x: 0, y: 12 }, y.title, svg('tspan', { class: 'better', dx: 8 }, words(y, '↑ better', '↓ better'))),
    svg('text', { class: 'title', x: box.right, y: box.bottom + 37, 'text-anchor': 'end' },
      svg('tspan', { class: 'better' }, words(x, 'better →  ', '← better  ')), x.title));
  return g;
}

/** Path through points. */
export const pathOf = (points: readonly (readonly [number, number])[]): string => points.map(([px, py], i) => `${i ? 'L' : 'M'}${+px.toFixed(2)} ${+py.toFixed(2)}`).join('');

/** Outline of a mark as path data, centred at a point. */
export function shapePath(shape: Shape, x: number, y: number, size: number): string {
  const r = size * 1.25;
  switch (shape) {
    case 'circle': return `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0Z`;
    case 'diamond': return `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`;
    case 'square': return `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}Z`;
    case 'triangle': return `M${x} ${y - r}L${x + r} ${y + size * 0.85}H${x - r}Z`;
    case 'plus': return `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`;
    case 'cross': return `M${x - size} ${y - size}l${2 * size} ${2 * size}M${x + size} ${y - size}l${-2 * size} ${2 * size}`;
  }
}

/** Mark of a trial: hollow says simulated, open shapes have no filling. */
export function mark(shape: Shape, x: number, y: number, size: number, colour: string, hollow: boolean, attributes: Attributes = {}): SVGPathElement {
  const open = shape === 'cross' || shape === 'plus';
  return svg('path', { class: 'mark', d: shapePath(shape, x, y, size), stroke: colour, fill: open ? 'none' : hollow ? 'var(--card)' : colour, ...attributes });
}

/** Vertical or horizontal whisker of an interval, clipped to the box; an unknown end reaches to its side. */
export function whisker(box: Box, axis: Axis, ends: readonly [number | null, number | null], across: number, vertical: boolean, colour: string): SVGPathElement {
  const [from, to] = vertical ? [box.bottom, box.top] : [box.left, box.right];
  const clip = (p: number) => Math.max(Math.min(from, to), Math.min(Math.max(from, to), p));
  const [a, b] = [ends[0] === null ? from : clip(axis.at(ends[0])), ends[1] === null ? to : clip(axis.at(ends[1]))];
  const cap = 3;
  const d = vertical ? `M${across} ${a}V${b}M${across - cap} ${a}h${2 * cap}M${across - cap} ${b}h${2 * cap}`
    : `M${a} ${across}H${b}M${a} ${across - cap}v${2 * cap}M${b} ${across - cap}v${2 * cap}`;
  return svg('path', { class: 'whisker', d, stroke: colour });
}

/** Listeners that show the hover box on pointing and on focus. */
export function withTip(view: View, title: string, rows: () => Rows): Attributes {
  const show = (event: Event) => view.tip.show(event.currentTarget as Element, title, rows());
  const hide = () => view.tip.hide();
  return { onpointerenter: show, onpointerleave: hide, onfocus: show, onblur: hide };
}

/** One tab stop for several elements: arrow keys walk, Enter or Space calls `choose`. */
export function walkable(parent: Element, items: readonly SVGElement[], choose: (index: number, add: boolean) => void): void {
  items.forEach((each, i) => each.setAttribute('tabindex', i ? '-1' : '0'));
  parent.addEventListener('keydown', (event) => {
    const { key, target, shiftKey } = event as KeyboardEvent;
    const at = items.indexOf(target as SVGElement);
    if (at < 0) return;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
    if (step) items[(at + step + items.length) % items.length]?.focus();
    else if (key === 'Enter' || key === ' ') choose(at, shiftKey);
    else return;
    event.preventDefault();
  });
}

/** Labels at least `gap` pixels apart, as near to where they belong as that allows. */
export function spread(wanted: readonly number[], gap: number, low: number, high: number): number[] {
  const order = wanted.map((at, i) => ({ at, i })).sort((a, b) => a.at - b.at);
  order.forEach((each, k) => { if (k) each.at = Math.max(each.at, order[k - 1]!.at + gap); });
  const last = order[order.length - 1];
  if (last && last.at > high) {
    last.at = high;
    for (let k = order.length - 2; k >= 0; k -= 1) order[k]!.at = Math.min(order[k]!.at, order[k + 1]!.at - gap);
  }
  const placed: number[] = [];
  order.forEach((each) => { placed[each.i] = Math.max(low, each.at); });
  return placed;
}

/** Legend entry: a small drawing and words. */
export function legendEntry(drawing: SVGElement, words: string): HTMLSpanElement {
  return html('span', {}, svg('svg', { viewBox: '0 0 18 16', width: 18, height: 16, 'aria-hidden': 'true' }, drawing), words);
}

/** Colour that a CSS colour such as `var(--c0)` has now, for a canvas. */
export function resolved(host: Element, colour: string): string {
  const name = /^var\((--[\w-]+)\)$/.exec(colour)?.[1];
  return name ? getComputedStyle(host).getPropertyValue(name).trim() : colour;
}

/** Canvas behind the picture of a host, sharp on dense screens; the picture's size in CSS pixels. */
export function canvasBehind(host: HTMLElement, width: number, height: number): CanvasRenderingContext2D | null {
  const dense = Math.min(3, window.devicePixelRatio || 1);
  const canvas = html('canvas', { width: Math.round(width * dense), height: Math.round(height * dense), 'aria-hidden': 'true' });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  host.prepend(canvas);
  const context = canvas.getContext('2d');
  context?.scale(dense, dense);
  return context;
}

const EXPORTED = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linejoin', 'stroke-linecap', 'stroke-opacity', 'opacity',
  'font-family', 'font-size', 'font-weight', 'text-anchor', 'paint-order', 'visibility'];

/** The picture of a host as a file of its own: styles written out, a canvas as an image. */
export function svgText(host: HTMLElement): string | null {
  const drawn = host.querySelector('svg');
  if (!drawn) return null;
  const copy = drawn.cloneNode(true) as SVGSVGElement;
  const [from, to] = [[...drawn.querySelectorAll('*')], [...copy.querySelectorAll('*')]];
  from.forEach((each, i) => {
    const look = getComputedStyle(each);
    const target = to[i]!;
    if (look.display === 'none') target.setAttribute('display', 'none');
    EXPORTED.forEach((name) => target.setAttribute(name, look.getPropertyValue(name)));
    for (const name of ['tabindex', 'class', 'role']) target.removeAttribute(name);
  });
  const size = drawn.getBoundingClientRect();
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.setAttribute('width', String(size.width));
  copy.setAttribute('height', String(size.height));
  const canvas = host.querySelector('canvas');
  if (canvas) copy.prepend(svg('image', { href: canvas.toDataURL(), x: 0, y: 0, width: size.width, height: size.height }));
  copy.prepend(svg('rect', { x: 0, y: 0, width: '100%', height: '100%', fill: resolved(host, 'var(--card)') }));
  return new XMLSerializer().serializeToString(copy);
}

/** The same as a bitmap with twice the pixels. */
export async function pngOf(host: HTMLElement): Promise<Blob | null> {
  const text = svgText(host);
  const drawn = host.querySelector('svg')?.getBoundingClientRect();
  if (!text || !drawn) return null;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = html('canvas', { width: Math.round(drawn.width * 2), height: Math.round(drawn.height * 2) });
  canvas.getContext('2d')?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
}
