/* Timeline of one trial: how full the engine was, and what each request waited for. */
import type { Timeline } from './data';
import { axisOf, frame, html, legendEntry, pathOf, svg, spread, tickText, withTip, type Axis, type Box } from './plot';
import type { Rows, View } from './view';
import { DASH, count, digits, duration, known } from './words';

/** Requests of one stretch. */
export const ROWS = 150;
type Bar = Timeline['bars'][number];
/* A simulation knows when the engine took a request up; a client only when it sent it. */
const ENGINE = { queued: 'waits for the engine', prefill: 'prompt is computed', cut: 'cut off when the run was stopped', running: 'running', waiting: 'waiting', waited: 'Waited', note: 'A preempted request goes on counting as running.' };
const CLIENT = { queued: 'due, not sent yet', prefill: 'sent, no token yet', cut: 'failed, or cut off', running: 'in flight', waiting: 'not sent', waited: 'Sent after', note: 'Seen from the client: until its first token a request waits in the server’s queue or is computed.' };
const wordsOf = (timeline: Timeline) => (timeline.seen_by_client ? CLIENT : ENGINE);
const seconds = (s: number | null) => (known(s) ? duration(s * 1000) : DASH);

/** Stretches of requests to choose from: the first and last number of each, from 1. */
export function stretches({ bars }: Timeline): [number, number][] {
  return Array.from({ length: bars.length > ROWS ? Math.ceil(bars.length / ROWS) : 0 }, (_, i): [number, number] => {
    const part = bars.slice(i * ROWS, (i + 1) * ROWS);
    return [part[0]![0] + 1, part[part.length - 1]![0] + 1];
  });
}

/** Bars of a stretch; of the whole run (-1) all, evenly thinned. */
function barsOf({ bars }: Timeline, stretch: number): Bar[] {
  if (stretch >= 0) return bars.slice(stretch * ROWS, (stretch + 1) * ROWS);
  if (bars.length <= ROWS) return bars;
  return Array.from({ length: ROWS }, (_, i) => bars[Math.round((i * (bars.length - 1)) / (ROWS - 1))]!);
}

export function draw(host: HTMLElement, { timeline, requests }: { timeline: Timeline; requests: number }, view: View): void {
  const bars = barsOf(timeline, requests);
  const whole = requests < 0;
  const from = whole ? 0 : Math.min(...bars.map((b) => b[1]));
  const to = whole ? timeline.duration_s : Math.max(...bars.map((b) => b[4]));
  const words = wordsOf(timeline);
  const box: Box = { left: 52, right: view.width - (view.width < 520 ? 16 : 74), top: 30, bottom: 150 };
  const x = timeAxis(from, to, box);
  const row = Math.max(3, Math.min(16, 420 / bars.length));
  const curves = curvesOf(timeline, from, to, x, box);
  const top = timeline.kv.length > 1 ? 306 : 184;
  const below: Box = { left: box.left, right: box.right, top: 30, bottom: 34 + row * bars.length };
  const every = Math.ceil(bars.length / 10);
  const y: Axis = { at: (i) => below.top + 2 + row * (i + 0.5), invert: (p) => p, ticks: bars.map((_, i) => i).filter((i) => i % every === 0), low: 0, high: bars.length, log: false, text: (i) => count(bars[i]![0] + 1), title: 'Request', better: '' };
  const rows = svg('g', { class: 'bars', transform: `translate(0 ${top})` }, frame(below, { ...x, title: 'Seconds since the run began' }, y));
  bars.forEach((bar, i) => rows.append(barOf(bar, x, y.at(i) - row / 2, row, below, timeline, view)));
  const height = top + below.bottom + 46;
  host.replaceChildren(svg('svg', { width: view.width, height, viewBox: `0 0 ${view.width} ${height}`, role: 'group',
    'aria-label': `Requests ${words.running} and ${words.waiting}, the KV cache in use, and ${bars.length} requests, one bar each, over time` }, curves, rows));
  const phases: [string, string][] = [['queued', words.queued], ['prefill', words.prefill], ['decode', 'tokens come'], ['cut', words.cut]];
  host.append(html('div', { class: 'legend' }, phases.filter(([name]) => name !== 'cut' || bars.some((b) => !b[7]))
    .map(([name, text]) => legendEntry(svg('g', { class: 'bars' }, svg('rect', { class: name, x: 1, y: 4, width: 16, height: 8 })), text))));
  const { total } = timeline;
  const drawn = bars.length === total ? `All ${count(total)} requests are drawn.`
    : `${count(bars.length)} of ${count(total)} requests are drawn${whole ? ', evenly chosen' : ''}${timeline.bars.length < total ? `; of them this page holds ${count(timeline.bars.length)}, one in ${digits(total / timeline.bars.length)}, the file of requests all` : ''}. The curves are of all.`;
  host.append(html('p', { class: 'note', id: 'timeline-note' }, `${drawn} ${words.note}`));
  document.documentElement.dataset['bars'] = String(bars.length);
}

function timeAxis(from: number, to: number, box: Box): Axis {
  const axis = axisOf([from, to], box.left, box.right, { title: '', exact: true, count: box.right < 520 ? 4 : 8 });
  const at = (s: number) => box.left + (box.right - box.left) * ((s - from) / (to - from || 1));
  return { ...axis, at, ticks: axis.ticks.filter((t) => t >= from - 1e-9 && t <= to + 1e-9), text: tickText };
}

/* Two pictures over one time: requests running and waiting, and the share of the cache. */
function curvesOf({ curves, kv, ...rest }: Timeline, from: number, to: number, x: Axis, box: Box): SVGElement[] {
  const words = wordsOf({ curves, kv, ...rest });
  const within = (points: readonly (readonly [number, number])[]) => points.filter(([s], i) => (points[i + 1]?.[0] ?? s) >= from && s <= to);
  const middle = (values: readonly number[]) => within(values.map((v, i): [number, number] => [(i + 0.5) * curves.width_s, v]));
  const [running, waiting, share] = [middle(curves.running), middle(curves.waiting), within(kv)];
  const y = axisOf([0, ...running.map((p) => p[1]), ...waiting.map((p) => p[1])], box.bottom, box.top, { title: 'Requests at a time', count: 4 });
  const low: Box = { ...box, bottom: 90 };
  const z: Axis = { at: (v) => low.bottom - (low.bottom - low.top) * v, invert: (p) => p, ticks: [0, 0.5, 1], low: 0, high: 1, log: false, text: (v) => `${v * 100}%`, title: 'KV cache in use', better: '' };
  const clip = (s: number) => Math.max(box.left, Math.min(box.right, x.at(s)));
  const path = (points: readonly (readonly [number, number])[], scale: Axis) => pathOf(points.map(([s, v]) => [clip(s), scale.at(v)]));
  const narrow = box.right - box.left < 440;
  const curve = (points: readonly (readonly [number, number])[], scale: Axis, colour: string, label: string, at: number) => (points.length
    ? svg('g', { class: 'series' }, svg('path', { class: 'curve', d: path(points, scale), stroke: colour }),
      narrow ? svg('text', { class: 'label halo', x: box.right - 4, y: at - 6, 'text-anchor': 'end', fill: colour }, label) : svg('text', { class: 'label', x: box.right + 6, y: at, fill: colour }, label)) : null);
  const ends = spread([running, waiting].map((p) => (p.length ? y.at(p[p.length - 1]![1]) : box.bottom)), 14, box.top, box.bottom);
  const plain = { ...x, title: '' };
  const made = [svg('g', {}, frame(box, plain, y), curve(waiting, y, 'var(--c2)', words.waiting, ends[1]! + 4), curve(running, y, 'var(--c0)', words.running, ends[0]! + 4))];
  if (share.length > 1) {
    made.push(svg('g', { transform: `translate(0 ${box.bottom + 32})` }, frame(low, plain, z),
      svg('path', { class: 'area', d: `${path(share, z)}L${clip(share[share.length - 1]![0])} ${low.bottom}L${clip(share[0]![0])} ${low.bottom}Z`, fill: 'var(--c1)' }),
      curve(share, z, 'var(--c1)', 'KV', z.at(share[share.length - 1]![1]) + 4)));
  }
  return made;
}

function barOf([index, due, admitted, first, end, input, output, whole]: Bar, x: Axis, top: number, row: number, box: Box, timeline: Timeline, view: View): SVGElement {
  const queuedTo = admitted ?? end;
  const prefillTo = first ?? end;
  const parts: [string, number, number][] = [['queued', due, queuedTo], ['prefill', queuedTo, prefillTo], [whole ? 'decode' : 'cut', prefillTo, end]];
  const rows = (): Rows => [['Due', `at ${seconds(due)}`], [wordsOf(timeline).waited, seconds(queuedTo - due)],
    ['Prompt', admitted === null ? DASH : `${count(input ?? 0)} tokens, ${first === null ? 'not done' : seconds(first - admitted)}`],
    ['First token after', first === null ? DASH : seconds(first - due)], ['Answer', first === null ? DASH : `${count(output ?? 0)} tokens, ${seconds(end - first)}`], [whole ? 'Ended' : 'Cut off', `after ${seconds(end - due)}`]];
  return svg('g', withTip(view, `Request ${count(index + 1)}`, rows), svg('rect', { class: 'row', x: box.left, y: top, width: box.right - box.left, height: row }),
    parts.filter(([, a, b]) => b > a).map(([look, a, b]) => svg('rect', { class: look, x: x.at(a), y: top + row * 0.12, width: Math.max(0.6, x.at(b) - x.at(a)), height: row * 0.76 })));
}
