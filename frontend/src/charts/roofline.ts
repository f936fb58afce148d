/* Estimate of one plan: operations under the device's roof, where a step's time goes, and the steady
   state over the number of users: which resource binds, and how many users pay. */
import type { Curve, Dot, RooflineFigure, StepBar } from '../data';
import { axisOf, frame, html, legendEntry, pathOf, picture, shapePath, svg, walkable, withTip } from '../plot';
import type { Axis, Box } from '../plot';
import type { Shape, View } from '../view';
import { rangeText } from '../words';
import { cut, fitting, partsOf } from './parts';

const KINDS = ['matrices', 'experts', 'agreement', 'attention', 'small kernels', 'engine'];
const colourOf = (kind: string): string => `var(--c${Math.max(0, KINDS.indexOf(kind))})`;
const SHAPES: Record<Dot['phase'], Shape> = { prefill: 'circle', decode: 'diamond' };

/** Number with an SI prefix, to be followed by a unit: `989 T`. */
function si(value: number): string {
  for (const [prefix, size] of [['P', 1e15], ['T', 1e12], ['G', 1e9], ['M', 1e6]] as const) {
    if (value >= size) return `${+(value / size).toPrecision(3)} ${prefix}`;
  }
  return `${+value.toPrecision(3)} `;
}

export function drawRoof(host: HTMLElement, input: RooflineFigure, view: View): void {
  const { figure, legend, note } = partsOf(host);
  const rate = input.memory_bytes_per_s;
  const peak = Math.max(...input.roofs.map((roof) => roof.flops_per_s));
  const box: Box = { left: 62, right: view.width - 14, top: 28, bottom: view.width < 520 ? 330 : 430 };
  const intensities = [...input.dots.map((dot) => dot.flops_per_byte), peak / rate];
  const rates = [...input.dots.map((dot) => dot.flops_per_s), peak];
  const x = axisOf([Math.min(...intensities) / 2, Math.max(...intensities) * 3], box.left, box.right, { title: 'FLOP per byte of memory traffic', log: true, exact: true });
  const y = axisOf([Math.min(...rates) / 2.5, peak * 2], box.bottom, box.top, { title: 'FLOP/s', log: true, exact: true });
  x.title = 'FLOP per byte of memory traffic (log scale)';
  y.text = (value) => si(value).trim();
  const made = picture(figure, view, box.bottom + 44, `Roofline of one ${input.device}`);
  made.setAttribute('role', 'group');
  made.append(frame(box, x, y));
  const taken: Frame[] = [];
  const lowest = Math.max(x.low, y.low / rate);
  for (const roof of input.roofs) {
    const ridge = roof.flops_per_s / rate;
    made.append(svg('path', { class: 'roof', d: pathOf([[x.at(lowest), y.at(lowest * rate)], [x.at(ridge), y.at(roof.flops_per_s)], [box.right, y.at(roof.flops_per_s)]]) }));
    const words = `${roof.dtype} ${si(roof.flops_per_s)}FLOP/s`;
    taken.push({ left: box.right - 6.6 * words.length, right: box.right, top: y.at(roof.flops_per_s) - 19, bottom: y.at(roof.flops_per_s) });
    made.append(svg('text', { class: 'halo strong', x: box.right - 4, y: y.at(roof.flops_per_s) - 7, 'text-anchor': 'end' }, words));
  }
  const half = Math.sqrt(lowest * Math.min(...input.roofs.map((roof) => roof.flops_per_s)) / rate);
  const slope = Math.atan2(y.at(half * 2 * rate) - y.at(half * rate), x.at(half * 2) - x.at(half)) * 180 / Math.PI;
  made.append(svg('text', { class: 'halo strong', 'text-anchor': 'middle', transform: `translate(${x.at(half)} ${y.at(half * rate) - 9}) rotate(${slope.toFixed(1)})` }, `memory ${si(rate)}B/s`));
  const reach = Math.abs(x.at(half * 2) - x.at(half)) + 40;
  taken.push({ left: x.at(half) - reach, right: x.at(half) + reach / 2, top: y.at(half * rate) - 26, bottom: y.at(half * rate) });

  const dots = [...input.dots].sort((a, b) => b.share_fraction - a.share_fraction);
  const places = dots.map((dot) => ({ px: x.at(dot.flops_per_byte), py: y.at(dot.flops_per_s), r: Math.max(4, (view.width < 520 ? 20 : 28) * Math.sqrt(dot.share_fraction)) }));
  const marks = dots.map((dot, i) => {
    const { px, py, r } = places[i]!;
    const words = `${dot.phase}, ${dot.name}`;
    return svg('path', {
      class: 'roof-dot', d: shapePath(SHAPES[dot.phase], px, py, r), fill: colourOf(dot.kind), role: 'img',
      'aria-label': `${words}: ${share(dot.share_fraction)} of the step`,
      ...withTip(view, words, () => [['Share of the step', share(dot.share_fraction)], ['Intensity', `${+dot.flops_per_byte.toPrecision(3)} FLOP/byte`],
        ['Predicted rate', `${si(dot.flops_per_s)}FLOP/s`], ['Roof above it', roofWords(dot, input)]]),
    });
  });
  made.append(...marks);
  const solid = places.map(({ px, py, r }): Frame => ({ left: px - r, right: px + r, top: py - r, bottom: py + r }));
  dots.forEach((dot, i) => {
    if (dot.share_fraction < 0.04) return;
    const words = `${dot.name} ${share(dot.share_fraction)}`;
    const { px, py, r } = places[i]!;
    const found = freePlace(px, py, r + 4, 6.4 * words.length, [...taken, ...solid.filter((_, k) => k !== i)], box);
    if (!found) return;
    taken.push(found);
    made.append(svg('text', { class: 'halo', x: found.left, y: found.bottom - 4, 'aria-hidden': 'true' }, words));
  });
  walkable(made, marks, () => undefined);
  for (const bar of input.bars) legend.append(legendEntry(svg('path', { d: shapePath(SHAPES[bar.phase], 9, 8, 5), fill: 'var(--muted)' }), bar.label));
  legend.append(...kindsOf(input.bars).filter((kind) => input.dots.some((dot) => dot.kind === kind)).map(kindEntry));
  note.replaceChildren(input.dots_note);
}

interface Frame { left: number; right: number; top: number; bottom: number }

/** Place for a label beside a dot that covers nothing; null where there is none. */
function freePlace(px: number, py: number, reach: number, width: number, taken: readonly Frame[], box: Box): Frame | null {
  for (const far of [reach, reach + 14, reach + 28]) {
    const candidates: Frame[] = [
      { left: px + far, right: px + far + width, top: py - 8, bottom: py + 8 }, { left: px - far - width, right: px - far, top: py - 8, bottom: py + 8 },
      { left: px - width / 2, right: px + width / 2, top: py + far, bottom: py + far + 16 }, { left: px - width / 2, right: px + width / 2, top: py - far - 16, bottom: py - far },
    ];
    for (const each of candidates) {
      const inside = each.left >= box.left && each.right <= box.right && each.top >= box.top && each.bottom <= box.bottom;
      if (inside && !taken.some((other) => each.left < other.right && other.left < each.right && each.top < other.bottom && other.top < each.bottom)) return each;
    }
  }
  return null;
}

const share = (fraction: number): string => `${(fraction * 100).toPrecision(fraction < 0.1 ? 2 : 3).replace(/\.0+$/, '')}%`;

function roofWords(dot: Dot, input: RooflineFigure): string {
  const memory = dot.flops_per_byte * input.memory_bytes_per_s;
  const peak = Math.max(...input.roofs.map((roof) => roof.flops_per_s));
  return memory < peak ? `memory, ${si(memory)}FLOP/s` : `compute, ${si(peak)}FLOP/s`;
}

const kindsOf = (bars: readonly StepBar[]): string[] => KINDS.filter((kind) => bars.some((bar) => bar.slices.some((slice) => slice.kind === kind)));
const kindEntry = (kind: string): HTMLSpanElement => legendEntry(svg('rect', { x: 2, y: 3, width: 12, height: 10, rx: 2.5, fill: colourOf(kind) }), kind);

export function drawSteps(host: HTMLElement, input: RooflineFigure, view: View): void {
  const { figure, legend } = partsOf(host);
  const height = 84;
  const made = picture(figure, view, height * input.bars.length, "Where a step's time goes, all layers together");
  made.setAttribute('role', 'group');
  const marks: SVGElement[] = [];
  input.bars.forEach((bar, i) => {
    const top = height * i;
    made.append(svg('text', { x: 0, y: top + 16 }, svg('tspan', { class: 'strong' }, bar.label), cut(`: ${view.shown(bar.time_ms, 'ms')}, bound by ${bar.bound}`, fitting(view.width) - bar.label.length)));
    let at = 0;
    for (const slice of bar.slices) {
      const width = view.width * slice.share_fraction;
      const mark = svg('g', {
        class: 'slice', role: 'img', 'aria-label': `${bar.label}, ${slice.name}: ${view.shown(slice.time_ms, 'ms')}, ${share(slice.share_fraction)}`,
        ...withTip(view, slice.name, () => [['Time', view.shown(slice.time_ms, 'ms')], ['Share of the step', share(slice.share_fraction)], ['Kind', slice.kind], ['Step', `${bar.label}, ${view.shown(bar.time_ms, 'ms')}`]]),
      }, svg('rect', { x: at, y: top + 24, width: Math.max(0.6, width - 1.5), height: 30, rx: 3, fill: colourOf(slice.kind) }),
      slice.name.length < fitting(width - 8) ? svg('text', { class: 'on-colour', x: at + 6, y: top + 43 }, slice.name) : null,
      width > 34 ? svg('text', { class: 'muted-text', x: at + 2, y: top + 68 }, `${(slice.share_fraction * 100).toFixed(0)}%`) : null);
      marks.push(mark);
      made.append(mark);
      at += width;
    }
  });
  walkable(made, marks, () => undefined);
  legend.append(...kindsOf(input.bars).map(kindEntry));
}

export function drawCurves(host: HTMLElement, input: RooflineFigure, view: View): void {
  const { figure, legend, note } = partsOf(host);
  const columns = view.width > 820 ? input.curves.length : 1;
  const gap = 30;
  const width = (view.width - gap * (columns - 1)) / columns;
  const height = 236;
  const made = picture(figure, view, height * Math.ceil(input.curves.length / columns), 'Steady state over the number of users, with its interval');
  made.setAttribute('role', 'group');
  const marks: SVGElement[] = [];
  input.curves.forEach((curve, i) => {
    const [left, top] = [(i % columns) * (width + gap), Math.floor(i / columns) * height];
    const g = svg('g', { transform: `translate(${left} ${top})` });
    made.append(g);
    marks.push(...drawCurve(g, curve, input, { left: 56, right: width - 12, top: 28, bottom: height - 58 }, view));
  });
  walkable(made, marks, () => undefined);
  legend.append(html('span', {}, svg('svg', { viewBox: '0 0 26 12', width: 26, height: 12, 'aria-hidden': 'true' }, svg('rect', { class: 'band', x: 0, y: 0, width: 26, height: 12 }), svg('line', { x1: 0, x2: 26, y1: 6, y2: 6, stroke: 'var(--accent)', 'stroke-width': 2.2 })), 'predicted, with its interval'),
    legendEntry(svg('line', { class: 'reference', x1: 9, x2: 9, y1: 0, y2: 16 }), `best throughput, ${input.chosen_concurrency.toLocaleString('en-US')} users`));
  if (input.knee_concurrency !== null && input.knee_concurrency !== input.chosen_concurrency) legend.append(legendEntry(svg('line', { class: 'knee', x1: 9, x2: 9, y1: 0, y2: 16 }), `knee, ${input.knee_concurrency.toLocaleString('en-US')} users: beyond it latency grows faster than throughput`));
  note.replaceChildren(input.curves_note);
}

function drawCurve(g: SVGGElement, curve: Curve, input: RooflineFigure, box: Box, view: View): SVGElement[] {
  const { points, unit } = curve;
  const x = axisOf(points.map((each) => each.concurrency), box.left + 6, box.right - 6, { title: 'Users, each with one request in flight', log: true, exact: true });
  const powers = points.map((each) => each.concurrency).filter((users) => Number.isInteger(Math.log2(users)));
  x.ticks = powers.filter((_, i) => i % Math.ceil(powers.length / 8) === 0);
  x.title = 'Users, each with one request in flight';
  const y: Axis = axisOf(points.flatMap((each) => [each.low, each.high]), box.bottom, box.top, { title: curve.title, unit, log: true, better: unit === 'ms' ? 'less' : 'more' });
  g.append(frame(box, x, y));
  const upper = points.map((each): [number, number] => [x.at(each.concurrency), y.at(each.high)]);
  const lower = points.map((each): [number, number] => [x.at(each.concurrency), y.at(each.low)]).reverse();
  const line = (users: number | null, look: string) => (users !== null && users >= x.low && users <= x.high ? svg('line', { class: look, x1: x.at(users), x2: x.at(users), y1: box.top, y2: box.bottom }) : '');
  g.append(svg('path', { class: 'band', d: `${pathOf([...upper, ...lower])}Z` }), line(input.chosen_concurrency, 'reference'),
    line(input.knee_concurrency !== input.chosen_concurrency ? input.knee_concurrency : null, 'knee'),
    svg('path', { class: 'curve', d: pathOf(points.map((each) => [x.at(each.concurrency), y.at(each.value)])), stroke: 'var(--accent)' }));
  const marks = points.map((each) => svg('path', {
    class: 'mark', d: shapePath('circle', x.at(each.concurrency), y.at(each.value), 3.6), stroke: 'var(--accent)', fill: 'var(--accent)', role: 'img',
    'aria-label': `${curve.title} with ${each.concurrency} users: ${view.shown(each.value, unit)}, ${rangeText([each.low, each.high], unit)}`,
    ...withTip(view, `${each.concurrency.toLocaleString('en-US')} users`, () => [[curve.title, view.shown(each.value, unit)], ['Interval', rangeText([each.low, each.high], unit)]]),
  }));
  g.append(...marks);
  return marks;
}
