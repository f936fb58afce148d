/* The trade-off: every trial by two quantities, with limits that can be moved, zoom, the Pareto front
   and the picks named. Above MANY marks they are drawn on a canvas; hover and keys are the same. */
import { front } from './choice';
import type { PageReference } from './data';
import {
  axisOf, canvasBehind, frame, html, legendEntry, mark, pathOf, picture, resolved, shapePath, spansDecades, svg, whisker,
  type Axis, type Box,
} from './plot';
import type { State } from './state';
import type { Limit, Measure, Rows, Trial, View } from './view';
import { DASH, count, limitText, plural, rangeText, statisticOf } from './words';

/** Most marks that are elements of their own. */
export const MANY = 2000;
/** Most trials whose intervals are all drawn; of more, those of the picks and the selection. */
const MOST_INTERVALS = 120;

export interface Tradeoff {
  state: Pick<State, 'x' | 'y' | 'xLog' | 'yLog' | 'zoom' | 'colour' | 'shape'>;
  /** Names of picks, by the key of their trial. */
  picks: ReadonlyMap<string, string[]>;
  /** All limits of the page; `view.limits` are those that are on. */
  allLimits: readonly Limit[];
  setZoom(zoom: State['zoom']): void;
  /** Moves the limit at a place in `allLimits`. */
  setLimit(index: number, value: number): void;
}

interface Point { t: Trial; x: number; y: number; px: number; py: number }

const quantity = (view: View, measure: Measure) => view.data.quantities.find((q) => q.name === measure.name)!;

export function draw(host: HTMLElement, input: Tradeoff, view: View): void {
  const { x: mx, y: my, zoom } = input.state;
  const [qx, qy] = [quantity(view, mx), quantity(view, my)];
  const place = <T extends Trial | PageReference>(t: T) => ({ t, x: view.value(t, mx.name, mx.statistic), y: view.value(t, my.name, my.statistic) });
  const whole = <T>(p: { t: T; x: number | null; y: number | null }): p is { t: T; x: number; y: number } => p.x !== null && p.y !== null;
  const points = view.trials.filter((t) => t.status === 'ok').map(place).filter(whole);
  const references = view.data.references.map(place).filter(whole);
  const failed = view.trials.filter((t) => t.status !== 'ok');
  document.documentElement.dataset['points'] = String(points.length);
  if (!points.length && !references.length) { host.replaceChildren(html('p', { class: 'note' }, 'No trial that is shown has values for these axes.')); return; }

  const { width } = view;
  const narrow = width < 520;
  const rail = failed.length ? 34 : 0;
  const box: Box = { left: 52, right: width - 14, top: 30, bottom: narrow ? 300 : 400 };
  const axis = (values: number[], q: typeof qx, m: Measure, choice: string, window: [number, number] | null, from: number, to: number) => axisOf(window ?? values, from, to, {
    title: `${q.title}${q.has_statistics ? `, ${m.statistic}` : ''}`, unit: q.unit, exact: window !== null, count: narrow ? 4 : 7,
    log: choice === 'on' ? values.every((v) => v > 0) : choice === 'auto' && spansDecades(values), better: q.maximize ? 'more' : 'less',
  });
  const all = [...points, ...references];
  const x = axis(all.map((p) => p.x), qx, mx, input.state.xLog, zoom && [zoom[0], zoom[1]], box.left, box.right);
  const y = axis(all.map((p) => p.y), qy, my, input.state.yLog, zoom && [zoom[2], zoom[3]], box.bottom, box.top);
  const inside = (p: { x: number; y: number }) => p.x >= x.low && p.x <= x.high && p.y >= y.low && p.y <= y.high;
  const placed: Point[] = points.filter(inside).map((p) => ({ ...p, px: x.at(p.x), py: y.at(p.y) }));

  const chart = picture(host, view, box.bottom + 46 + rail, `${y.title} against ${x.title}, ${plural(points.length, 'trial')}`);
  chart.setAttribute('role', 'group');
  const ground = svg('rect', { class: 'ground', x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top });
  const drawn: [number, number, number][] = placed.map((p) => [p.px, p.py, 7]);
  chart.append(frame(box, x, y), ground);
  const limitLayer = limitLines(box, x, y, input, view, drawn);
  chart.append(limitLayer.shades);

  const best = front(points, qx.maximize, qy.maximize);
  const line = best.filter((p) => inside(p)).map((p): [number, number] => [x.at(p.x), y.at(p.y)]);
  if (line.length > 1) chart.append(svg('path', { class: 'front', d: pathOf(line), 'aria-hidden': 'true' }));

  const named = (p: Point) => input.picks.has(p.t.key) || view.selection.has(p.t.key);
  const whiskers = placed.length <= MOST_INTERVALS ? placed : placed.filter(named);
  for (const p of whiskers) {
    for (const [m, a, across, vertical] of [[my, y, p.px, true], [mx, x, p.py, false]] as const) {
      const ends = view.interval(p.t, m.name, m.statistic);
      if (ends && (ends[0] !== null || ends[1] !== null)) chart.append(whisker(box, a, ends, across, vertical, view.colour(p.t)));
    }
  }
  const groups = placed.length > MANY ? [] : together(placed);
  // Names before marks, so that a mark is never covered; marks that meet the limits on top.
  callouts(chart, box, placed, input.picks, drawn);
  const order = [...placed].sort((a, b) => Number(view.standing(a.t) === 'meets') - Number(view.standing(b.t) === 'meets'));
  if (placed.length > MANY) onCanvas(host, box, width, box.bottom + 46 + rail, order, view);
  else {
    for (const group of groups) if (group.length > 1) chart.append(ringOf(group));
    for (const p of order) if (!folded(groups, p)) chart.append(mark(view.shape(p.t), p.px, p.py, 5, view.colour(p.t), p.t.simulated, { 'data-trial': p.t.id, 'data-standing': view.standing(p.t) }));
    for (const group of groups) if (group.length > FAN) chart.append(badge(group, view));
  }
  for (const p of placed) if (view.selection.has(p.t.key)) chart.append(svg('circle', { class: 'ring', cx: p.px, cy: p.py, r: 10 }));
  for (const r of references.filter(inside)) {
    chart.append(svg('path', { class: 'reference', d: shapePath('square', x.at(r.x), y.at(r.y), 4), fill: r.t.simulated ? 'var(--card)' : 'var(--text)' }));
  }
  if (failed.length) drawRail(chart, failed, box.bottom + 60, width, view);
  chart.append(limitLayer.handles);
  wire(chart, ground, box, x, y, placed, references.filter(inside).map((r) => ({ ...r, px: x.at(r.x), py: y.at(r.y) })), input, view);
  host.append(legend(view, input, points.length, failed.length, references.length, view.trials.length - failed.length - points.length, groups));
}

/* Points that coincide on the screen. */
const FAN = 7;
const NEAR = 5;
function together(points: readonly Point[]): Point[][] {
  const cells = new Map<string, Point[][]>();
  const groups: Point[][] = [];
  for (const p of points) {
    const [cx, cy] = [Math.floor(p.px / NEAR), Math.floor(p.py / NEAR)];
    let home: Point[] | undefined;
    for (let i = -1; i <= 1 && !home; i += 1) {
      for (let j = -1; j <= 1 && !home; j += 1) {
        home = cells.get(`${cx + i} ${cy + j}`)?.find((g) => Math.hypot(g[0]!.px - p.px, g[0]!.py - p.py) < NEAR);
      }
    }
    if (home) { home.push(p); continue; }
    const made = [p];
    groups.push(made);
    cells.set(`${cx} ${cy}`, [...(cells.get(`${cx} ${cy}`) ?? []), made]);
  }
  for (const group of groups) if (group.length > 1 && group.length <= FAN) fan(group);
  return groups;
}

/** Moves the points of a group onto a small ring around their place. */
function fan(group: Point[]): void {
  const cx = group.reduce((sum, p) => sum + p.px, 0) / group.length;
  const cy = group.reduce((sum, p) => sum + p.py, 0) / group.length;
  const radius = group.length === 2 ? 6 : 5 + group.length * 0.9;
  group.forEach((p, i) => {
    const angle = (i / group.length) * 2 * Math.PI - Math.PI / 2 + (group.length === 2 ? Math.PI / 2 : 0);
    p.px = cx + radius * Math.cos(angle);
    p.py = cy + radius * Math.sin(angle);
  });
}

const folded = (groups: readonly Point[][], p: Point): boolean => groups.some((g) => g.length > FAN && g[0] !== p && g.includes(p));

function ringOf(group: readonly Point[]): SVGElement {
  const cx = group.reduce((sum, p) => sum + p.px, 0) / group.length;
  const cy = group.reduce((sum, p) => sum + p.py, 0) / group.length;
  return svg('circle', { class: 'bundle', cx, cy, r: Math.hypot(group[0]!.px - cx, group[0]!.py - cy) || 1 });
}

function badge(group: readonly Point[], view: View): SVGElement {
  const { px, py, t } = group[0]!;
  return svg('g', { class: 'badge' }, svg('circle', { cx: px, cy: py, r: 9, stroke: view.colour(t) }), svg('text', { x: px, y: py + 4, 'text-anchor': 'middle' }, group.length));
}

function onCanvas(host: HTMLElement, box: Box, width: number, height: number, points: readonly Point[], view: View): void {
  const context = canvasBehind(host, width, height);
  if (!context) return;
  const card = resolved(host, 'var(--card)');
  const looks = new Map<string, { path: Path2D; colour: string; hollow: boolean }>();
  for (const p of points) {
    const [shape, colour, hollow] = [view.shape(p.t), view.colour(p.t), p.t.simulated];
    const key = `${shape}|${colour}|${hollow}`;
    let look = looks.get(key);
    if (!look) { look = { path: new Path2D(), colour: resolved(host, colour), hollow }; looks.set(key, look); }
    if (shape === 'circle') { look.path.moveTo(p.px + 3, p.py); look.path.arc(p.px, p.py, 3, 0, 2 * Math.PI); } else look.path.addPath(new Path2D(shapePath(shape, p.px, p.py, 3)));
  }
  context.beginPath();
  context.rect(box.left, box.top - 6, box.right - box.left + 6, box.bottom - box.top + 12);
  context.clip();
  context.globalAlpha = 0.7;
  context.lineWidth = 1.3;
  for (const { path, colour, hollow } of looks.values()) {
    context.fillStyle = hollow ? card : colour;
    context.strokeStyle = colour;
    if (!hollow) context.fill(path);
    context.stroke(path);
  }
}

function drawRail(chart: SVGElement, failed: readonly Trial[], at: number, width: number, view: View): void {
  const room = Math.floor((width - 120) / 16);
  chart.append(svg('text', { x: 0, y: at + 4 }, 'failed'));
  failed.slice(0, room).forEach((t, i) => {
    const rows: Rows = [['Failed', t.failure?.kind ?? DASH], ['Why', t.failure?.reason ?? DASH]];
    const each = mark('cross', 58 + i * 16, at, 4, 'var(--failed)', false, { 'data-trial': t.id, class: 'mark failed' });
    each.addEventListener('pointerenter', () => view.tip.show(each, t.label, rows));
    each.addEventListener('pointerleave', () => view.tip.hide());
    each.addEventListener('click', (e) => view.select([t.key], (e as MouseEvent).shiftKey));
    chart.append(each);
  });
  if (failed.length > room) chart.append(svg('text', { x: 58 + room * 16, y: at + 4 }, `+ ${count(failed.length - room)}`));
}

/* Limits of the two axes: the excluded side shaded, and a line that can be dragged or moved by keys. */
function limitLines(box: Box, x: Axis, y: Axis, input: Tradeoff, view: View, drawn: readonly [number, number, number][]): { shades: SVGElement; handles: SVGElement } {
  const [shades, handles] = [svg('g', { 'aria-hidden': 'true' }), svg('g', {})];
  const quantities = new Map(view.data.quantities.map((q) => [q.name, q]));
  for (const [axis, measure, vertical] of [[x, input.state.x, true], [y, input.state.y, false]] as const) {
    const [start, end] = vertical ? [box.left, box.right] : [box.bottom, box.top];
    const speaking = view.limits.filter((c) => c.metric === measure.name && (statisticOf(measure.name, 'x') === '' || c.statistic === measure.statistic));
    speaking.forEach((limit, i) => {
      if (axis.log && limit.value <= 0) return;
      const raw = axis.at(limit.value);
      const at = Math.max(Math.min(start, end), Math.min(Math.max(start, end), raw));
      const bad = limit.op.startsWith('<') ? [at, end] : limit.op.startsWith('>') ? [start, at] : null;
      if (bad && Math.abs(bad[0]! - bad[1]!) > 0.5) {
        const [a, b] = [Math.min(...bad), Math.max(...bad)];
        shades.append(svg('rect', vertical ? { class: 'excluded', x: a, y: box.top, width: b - a, height: box.bottom - box.top }
          : { class: 'excluded', x: box.left, y: a, width: box.right - box.left, height: b - a }));
      }
      const words = limitText(limit, quantities);
      const beyond = Math.abs(raw - at) > 0.5;
      const index = input.allLimits.indexOf(limit);
      const handle = svg('g', { class: `limit-handle ${vertical ? 'vertical' : 'horizontal'}${beyond ? ' beyond' : ''}`, tabindex: 0, role: 'slider', 'data-limit': index,
        'aria-label': `Limit ${words}; arrow keys move it`, 'aria-valuenow': limit.value, 'aria-valuetext': words, 'aria-orientation': vertical ? 'horizontal' : 'vertical' },
      svg('line', vertical ? { class: 'limit', x1: at, x2: at, y1: box.top, y2: box.bottom } : { class: 'limit', x1: box.left, x2: box.right, y1: at, y2: at }),
      svg('rect', vertical ? { class: 'grip', x: at - 7, y: box.top, width: 14, height: box.bottom - box.top } : { class: 'grip', x: box.left, y: at - 7, width: box.right - box.left, height: 14 }),
      svg('rect', vertical ? { class: 'knob', x: at - 3.5, y: box.top - 5, width: 7, height: 14, rx: 3 } : { class: 'knob', x: box.right - 9, y: at - 3.5, width: 14, height: 7, rx: 3 }));
      if (vertical) {
        const late = at > box.left + (box.right - box.left) * 0.6;
        handle.append(svg('text', { class: 'limit-label halo', x: at + (late ? -7 : 7), y: box.bottom - 8 - 15 * i, 'text-anchor': late ? 'end' : 'start' }, words));
      } else handle.append(levelWords(box, at, words, drawn));
      wireLimit(handle, axis, vertical, limit, index, input, [start, end]);
      handles.append(handle);
    });
  }
  return { shades, handles };
}

/** The words of a level line, where they cover the fewest of the drawn points. */
function levelWords(box: Box, at: number, text: string, drawn: readonly [number, number, number][]): SVGElement {
  const wide = text.length * 6.6;
  const places = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [-6, 15].map((dy) => ({ x: box.left + 4 + share * (box.right - box.left - 24 - wide), y: at + dy })))
    .filter((p) => p.y > box.top + 8 && p.y < box.bottom - 2);
  const covers = (p: { x: number; y: number }) => drawn.filter(([px, py]) => px > p.x - 6 && px < p.x + wide + 6 && py > p.y - 15 && py < p.y + 6).length;
  const best = places.map((p) => ({ ...p, n: covers(p) })).sort((a, b) => a.n - b.n)[0] ?? { x: box.left + 6, y: at - 6 };
  return svg('text', { class: 'limit-label halo', x: best.x, y: best.y }, text);
}

function wireLimit(handle: SVGElement, axis: Axis, vertical: boolean, limit: Limit, index: number, input: Tradeoff, [start, end]: readonly [number, number]): void {
  const rounded = (value: number) => +value.toPrecision(3);
  handle.addEventListener('pointerdown', (event) => {
    event.preventDefault();
    event.stopPropagation();
    const chart = handle.ownerSVGElement!.getBoundingClientRect();
    const move = (e: PointerEvent) => {
      const at = vertical ? e.clientX - chart.left : e.clientY - chart.top;
      const value = axis.invert(Math.max(Math.min(start, end), Math.min(Math.max(start, end), at)));
      input.setLimit(index, rounded(value));
    };
    const up = () => { window.removeEventListener('pointermove', move); window.removeEventListener('pointerup', up); window.removeEventListener('pointercancel', up); };
    window.addEventListener('pointermove', move);
    window.addEventListener('pointerup', up);
    window.addEventListener('pointercancel', up);
  });
  handle.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const [from, to] = [Math.min(axis.low, limit.value), Math.max(axis.high, limit.value)];
    const at = axis.at(limit.value) + ((end - start) / 100) * step;
    input.setLimit(index, rounded(axis.log ? axis.invert(at) : limit.value + ((to - from) / 100) * step));
    requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector<SVGElement>(`#tradeoff [data-limit="${index}"]`)?.focus()));
  });
}

/** The picks, named where they stand; a name takes the first place beside its point that covers no mark. */
function callouts(chart: SVGElement, box: Box, points: readonly Point[], picks: ReadonlyMap<string, string[]>, taken: [number, number, number][]): void {
  for (const [key, names] of picks) {
    const p = points.find((each) => each.t.key === key);
    if (!p) continue;
    const text = names.join(' · ');
    const [wide, cx, cy] = [text.length * 6.9, p.px, p.py];
    const places = [15, 26, 38, 52].flatMap((d) => [[cx - d, cy - d * 0.55, 'end'], [cx + d, cy + d * 0.55 + 4, 'start'], [cx - d, cy + d * 0.55 + 4, 'end'], [cx + d, cy - d * 0.55, 'start']] as [number, number, string][])
      .map(([tx, ty, anchor]) => ({ tx, ty, anchor, a: anchor === 'end' ? tx - wide : tx, b: anchor === 'end' ? tx : tx + wide }));
    const fitting = places.filter((s) => s.a > box.left && s.b < box.right + 8 && s.ty > box.top && s.ty < box.bottom - 4);
    const crowd = (s: (typeof places)[number]) => taken.filter(([tx, ty, half]) => tx + half > s.a && tx - half < s.b && ty > s.ty - 17 && ty < s.ty + 7).length;
    const best = fitting.map((s) => ({ ...s, n: crowd(s) })).sort((a, b) => a.n - b.n)[0];
    if (!best) continue;
    taken.push([(best.a + best.b) / 2, best.ty - 4, wide / 2]);
    if (Math.hypot(best.tx - cx, best.ty - cy) > 20) chart.append(svg('path', { class: 'callout-line', d: `M${cx} ${cy}L${best.tx} ${best.ty - 4}` }));
    chart.append(svg('text', { class: 'callout halo', x: best.tx, y: best.ty, 'text-anchor': best.anchor }, text));
  }
}

/** Rows of the hover box of one trial: the two axes with their intervals, standing, origin. */
export function tipRows(trial: Trial | PageReference, measures: readonly Measure[], view: View): Rows {
  const rows: Rows = measures.map((m) => {
    const q = quantity(view, m);
    const value = view.shown(view.value(trial, m.name, m.statistic), q.unit);
    const ends = view.interval(trial, m.name, m.statistic);
    return [`${q.short}${q.has_statistics ? ` ${m.statistic}` : ''}`, ends ? `${value} (${rangeText(ends, q.unit)})` : value];
  });
  if ('key' in trial) {
    const standing = view.standing(trial);
    if (view.limits.length || standing === 'failed') rows.push(['Standing', { meets: 'meets every limit', misses: 'misses a limit', failed: 'failed' }[standing]]);
  }
  if (trial.failed_requests) rows.push(['Failed requests', `${trial.failed_requests.fraction}${trial.failed_requests.mark ? `, ${trial.failed_requests.mark}` : ''}`]);
  rows.push(['How', trial.simulated ? 'simulated, no model ran' : 'measured']);
  return rows;
}

/* Hover by nearest point, selection by click, zoom by dragging, and one tab stop that walks the points. */
function wire(chart: SVGSVGElement, ground: SVGElement, box: Box, x: Axis, y: Axis, points: readonly Point[],
  references: readonly { t: PageReference; px: number; py: number }[], input: Tradeoff, view: View): void {
  const measures = [input.state.y, input.state.x];
  const ring = svg('circle', { class: 'hover-ring', r: 8, visibility: 'hidden' });
  const cursor = svg('circle', { class: 'cursor', r: 10, tabindex: points.length ? 0 : null, role: 'button', cx: box.left, cy: box.bottom, 'aria-label': 'Trials: arrow keys move between them, Enter selects one' });
  chart.append(ring, cursor);
  const local = (e: MouseEvent): [number, number] => { const r = chart.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  const near = (at: readonly [number, number]): Point[] => {
    let best: Point | null = null;
    let least = 14;
    for (const p of points) { const d = Math.hypot(p.px - at[0], p.py - at[1]); if (d < least) { least = d; best = p; } }
    if (!best) return [];
    const first = best;
    return [first, ...points.filter((p) => p !== first && Math.hypot(p.px - first.px, p.py - first.py) < (points.length > MANY ? 4 : 15) && sameplace(p, first))];
  };
  const sameplace = (p: Point, q: Point) => Math.hypot(x.at(p.x) - x.at(q.x), y.at(p.y) - y.at(q.y)) < NEAR;
  const show = (found: readonly Point[]) => {
    const [first] = found;
    if (!first) return;
    ring.setAttribute('cx', String(first.px));
    ring.setAttribute('cy', String(first.py));
    ring.setAttribute('visibility', 'visible');
    const rows = tipRows(first.t, measures, view);
    const others = found.slice(1);
    if (others.length) {
      rows.push([`At the same place`, plural(others.length, 'further trial')]);
      others.slice(0, 7).forEach((p) => rows.push(['', p.t.label]));
      if (others.length > 7) rows.push(['', `and ${others.length - 7} more`]);
    }
    view.tip.show(ring, first.t.label, rows);
  };
  const hide = () => { ring.setAttribute('visibility', 'hidden'); view.tip.hide(); };
  let dragged = false;
  chart.addEventListener('pointermove', (e) => {
    if (dragged || e.buttons) return;
    const at = local(e);
    const reference = references.find((r) => Math.hypot(r.px - at[0], r.py - at[1]) < 7);
    const found = near(at);
    if (reference && !found.length) view.tip.show(e, `${reference.t.label} (for comparison)`, tipRows(reference.t, measures, view));
    else if (found.length) show(found);
    else if (!(e.target as Element).closest('.failed')) hide();
  });
  chart.addEventListener('pointerleave', hide);
  chart.addEventListener('click', (e) => {
    if (dragged) { dragged = false; return; }
    const [first] = near(local(e));
    if (first) view.select([first.t.key], e.shiftKey);
  });
  let walking = -1;
  const walk = (to: number) => {
    walking = (to + points.length) % points.length;
    const p = points[walking]!;
    cursor.setAttribute('cx', String(p.px));
    cursor.setAttribute('cy', String(p.py));
    cursor.setAttribute('aria-label', [p.t.label, ...tipRows(p.t, measures, view).map(([n, v]) => `${n} ${v}`)].join(', '));
    show([p, ...points.filter((q) => q !== p && sameplace(p, q))]);
  };
  cursor.addEventListener('focus', () => { if (walking < 0) walk(Math.max(0, points.findIndex((p) => view.selection.has(p.t.key)))); });
  cursor.addEventListener('blur', hide);
  cursor.addEventListener('keydown', (e) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (step) walk(walking + step);
    else if ((e.key === 'Enter' || e.key === ' ') && points[walking]) view.select([points[walking]!.t.key], e.shiftKey);
    else if (e.key === '0' || e.key === 'Escape') input.setZoom(null);
    else if (e.key === '+' || e.key === '=') scaled(0.5, cursorPlace());
    else if (e.key === '-') scaled(2, cursorPlace());
    else return;
    e.preventDefault();
  });
  const cursorPlace = (): [number, number] => [Number(cursor.getAttribute('cx')), Number(cursor.getAttribute('cy'))];
  const window4 = (l: number, r: number, b: number, t: number): State['zoom'] => [x.invert(l), x.invert(r), y.invert(b), y.invert(t)];
  const scaled = (factor: number, [px, py]: readonly [number, number]) => input.setZoom(window4(
    px - (px - box.left) * factor, px + (box.right - px) * factor, py + (box.bottom - py) * factor, py - (py - box.top) * factor));
  chart.addEventListener('wheel', (e) => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    scaled(e.deltaY < 0 ? 0.8 : 1.25, local(e));
  }, { passive: false });
  chart.addEventListener('dblclick', () => input.setZoom(null));
  chart.addEventListener('pointerdown', (down) => {
    if (down.pointerType === 'touch' || down.button !== 0) return;
    const from = local(down);
    if (from[0] < box.left || from[0] > box.right || from[1] < box.top || from[1] > box.bottom) return;
    const pan = down.shiftKey && input.state.zoom !== null;
    const area = svg('rect', { class: 'zoom-area' });
    const clamp = ([px, py]: readonly [number, number]): [number, number] => [Math.max(box.left, Math.min(box.right, px)), Math.max(box.top, Math.min(box.bottom, py))];
    const corners = (e: PointerEvent): [number, number, number, number] => { const to = clamp(local(e)); return [Math.min(from[0], to[0]), Math.max(from[0], to[0]), Math.min(from[1], to[1]), Math.max(from[1], to[1])]; };
    const move = (e: PointerEvent) => {
      const at = local(e);
      if (Math.hypot(at[0] - from[0], at[1] - from[1]) < 6) return;
      dragged = true;
      hide();
      if (pan) return;
      const [l, r, t, b] = corners(e);
      for (const [name, value] of Object.entries({ x: l, y: t, width: r - l, height: b - t })) area.setAttribute(name, String(value));
      if (!area.isConnected) chart.append(area);
    };
    const up = (e: PointerEvent) => {
      window.removeEventListener('pointermove', move);
      window.removeEventListener('pointerup', up);
      area.remove();
      if (!dragged) return;
      setTimeout(() => { dragged = false; }, 0);
      if (pan) {
        const to = local(e);
        const [dx, dy] = [from[0] - to[0], from[1] - to[1]];
        input.setZoom(window4(box.left + dx, box.right + dx, box.bottom + dy, box.top + dy));
        return;
      }
      const [l, r, t, b] = corners(e);
      if (r - l > 8 && b - t > 8) input.setZoom(window4(l, r, b, t));
    };
    window.addEventListener('pointermove', move);
    window.addEventListener('pointerup', up);
  });
  ground.addEventListener('dragstart', (e) => e.preventDefault());
}

function legend(view: View, input: Tradeoff, points: number, failed: number, references: number, unplaced: number, groups: readonly Point[][]): HTMLElement {
  const ok = view.trials.filter((t) => t.status === 'ok');
  const hollow = ok.length > 0 && ok.every((t) => t.simulated);
  const entry = (shape: Parameters<typeof mark>[0], colour: string, words: string, open = hollow) => legendEntry(mark(shape, 9, 8, 4.4, colour, open), words);
  const { colour, shape } = input.state;
  const keys: HTMLElement[] = [];
  const values = (name: string) => {
    const setting = view.data.settings.find((s) => s.name === name)!;
    const firsts = new Map<string, Trial>();
    for (const t of ok) { const v = JSON.stringify((setting.side === 'server' ? t.server : t.client)[name] ?? null); if (!firsts.has(v)) firsts.set(v, t); }
    return [...firsts].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true })).slice(0, 9)
      .map(([v, t]) => ({ words: `${setting.short} ${v === 'null' ? DASH : v.replace(/^"|"$/g, '')}`, t }));
  };
  const standings: [Parameters<typeof mark>[0], string, string][] = view.limits.length
    ? [['circle', 'var(--meets)', 'meets every limit'], ['diamond', 'var(--misses)', 'misses a limit']] : [['circle', 'var(--meets)', 'trial']];
  if (!colour && !shape) standings.forEach(([s, c, w]) => keys.push(entry(s, c, w)));
  else {
    if (colour) values(colour).forEach(({ words, t }) => keys.push(entry(shape === colour ? view.shape(t) : 'circle', view.colour(t), words)));
    else standings.forEach(([, c, w]) => keys.push(entry('circle', c, w)));
    if (shape && shape !== colour) values(shape).forEach(({ words, t }) => keys.push(entry(view.shape(t), 'var(--muted)', words)));
    else if (!shape && view.limits.length) standings.forEach(([s, , w]) => keys.push(entry(s, 'var(--muted)', w)));
  }
  const several = groups.filter((g) => g.length > 1).length;
  return html('div', { class: 'legend' }, keys,
    failed ? entry('cross', 'var(--failed)', 'failed', false) : null,
    references ? legendEntry(svg('path', { class: 'reference', d: shapePath('square', 9, 8, 4), fill: 'var(--text)' }), 'for comparison, measured') : null,
    points > 1 ? legendEntry(svg('path', { class: 'front', d: 'M1 12L8 5L17 4' }), 'Pareto front') : null,
    several ? legendEntry(svg('circle', { class: 'bundle', cx: 9, cy: 8, r: 6 }), 'several trials at one place') : null,
    html('span', {}, hollow ? 'hollow: simulated' : ok.some((t) => t.simulated) ? 'hollow: simulated, filled: measured' : 'filled: measured'),
    unplaced > 0 ? html('span', {}, `${plural(unplaced, 'trial')} without a value for these axes`) : null);
}
