/* Under load: one line for each server configuration, its points in the order of the load, and the
   knee of each line, beyond which load costs more latency than it brings throughput. */
import { tipRows } from './tradeoff';
import { axisOf, frame, html, legendEntry, pathOf, picture, spansDecades, spread, svg, walkable, withTip, type Box } from './plot';
import type { State } from './state';
import type { Trial, View } from './view';
import { DASH, known, plural, settingText } from './words';

export interface UnderLoad {
  state: Pick<State, 'load' | 'loadX'>;
  /** Keys that are always drawn where not all lines are: picks. */
  first: ReadonlySet<string>;
}

interface Point { t: Trial; x: number; y: number }
interface Series { label: string; lead: string; points: Point[] }

/** Most lines of the picture. */
const MOST_LINES = 40;

/** Trials by server configuration, and by what else of the load differs. */
function seriesOf(view: View, { load, loadX }: UnderLoad['state']): Series[] {
  const { data } = view;
  const others = data.settings.filter((s) => s.side === 'client' && s.name !== data.load && s.name !== 'num_prompts');
  const mixed = new Set(view.trials.map((t) => t.simulated)).size > 1;
  const lead = data.settings.find((s) => s.side === 'server');
  const groups = new Map<string, Series>();
  for (const t of view.trials) {
    if (t.status !== 'ok' || !known(t.load)) continue;
    const y = view.value(t, load.name, load.statistic);
    const x = loadX === 'load' ? t.load : view.value(t, 'output_throughput');
    if (x === null || y === null) continue;
    const words = [t.series, ...others.map((s) => `${s.short} ${settingText(t.client[s.name])}`), ...(mixed ? [t.simulated ? 'simulated' : 'measured'] : [])];
    const label = words.join(' · ');
    let group = groups.get(label);
    if (!group) { group = { label, lead: lead ? settingText(t.server[lead.name]) : label, points: [] }; groups.set(label, group); }
    group.points.push({ t, x, y });
  }
  for (const s of groups.values()) s.points.sort((a, b) => a.t.load! - b.t.load!);
  return [...groups.values()];
}

/** Index of the point that is farthest below the chord of a line's ends, each axis scaled to its range;
    -1 of fewer than three points, or of a line without a bend. */
export function kneeOf(points: readonly { x: number; y: number }[]): number {
  const [first, last] = [points[0], points[points.length - 1]];
  if (points.length < 3 || !first || !last || last.x === first.x || last.y === first.y) return -1;
  const gaps = points.map((p) => (p.x - first.x) / (last.x - first.x) - (p.y - first.y) / (last.y - first.y));
  const most = Math.max(...gaps);
  return most > 0.05 ? gaps.indexOf(most) : -1;
}

export function draw(host: HTMLElement, input: UnderLoad, view: View): void {
  const { name, statistic } = input.state.load;
  const q = view.data.quantities.find((each) => each.name === name)!;
  const every = seriesOf(view, input.state);
  if (!every.length) { host.replaceChildren(html('p', { class: 'note' }, 'No trial that is shown has these values.')); return; }
  const wanted = (s: Series) => s.points.some((p) => input.first.has(p.t.key) || view.selection.has(p.t.key));
  const peak = (s: Series) => Math.max(...s.points.map((p) => view.value(p.t, 'output_throughput') ?? 0));
  const series = every.length <= MOST_LINES ? every
    : every.map((s) => ({ s, by: [wanted(s) ? 0 : 1, -peak(s)] })).sort((a, b) => a.by[0]! - b.by[0]! || a.by[1]! - b.by[1]!).slice(0, MOST_LINES).map((each) => each.s);
  const { width } = view;
  const narrow = width < 520;
  const byLoad = input.state.loadX === 'load';
  const beside = Math.max(...series.map((s) => s.label.length)) * 6.5 + 30;
  const named = width >= 620 && series.length <= 16 && beside <= width * 0.4;
  const box: Box = { left: 52, right: width - (named ? beside : 16), top: 30, bottom: narrow ? 280 : 330 };
  const all = series.flatMap((s) => s.points);
  const loads = [...new Set(all.map((p) => p.x))].sort((a, b) => a - b);
  const x = byLoad ? axisOf(loads, box.left + 10, box.right - 8, { title: view.data.load === 'max_concurrency' ? 'Concurrent requests (max_concurrency)' : 'Request rate asked (requests/s)', log: loads.length > 1 && loads[loads.length - 1]! / loads[0]! >= 4 })
    : axisOf(all.map((p) => p.x), box.left, box.right, { title: 'Output throughput', unit: 'tokens/s', better: 'more', count: narrow ? 4 : 7 });
  if (byLoad && loads.length <= 14) x.ticks = loads;
  const y = axisOf(all.map((p) => p.y), box.bottom, box.top, { title: `${q.title}${q.has_statistics ? `, ${statistic}` : ''}`, unit: q.unit, log: spansDecades(all.map((p) => p.y)), better: q.maximize ? 'more' : 'less' });
  const chart = picture(host, view, box.bottom + 46, `${y.title} against ${byLoad ? 'load' : 'throughput'}, one line for each of ${plural(series.length, 'server configuration')}`);
  chart.setAttribute('role', 'group');
  chart.append(frame(box, x, y));
  for (const limit of view.limits.filter((c) => c.metric === name && (!q.has_statistics || c.statistic === statistic))) {
    if (limit.value > y.low && limit.value < y.high) chart.append(svg('line', { class: 'limit', x1: box.left, x2: box.right, y1: y.at(limit.value), y2: y.at(limit.value), 'aria-hidden': 'true' }));
  }
  const hues = new Map<string, number>();
  const within = new Map<string, number>();
  const looks = series.map((s) => {
    if (!hues.has(s.lead)) hues.set(s.lead, hues.size % 8);
    within.set(s.lead, (within.get(s.lead) ?? -1) + 1);
    return { hue: hues.get(s.lead)!, dash: within.get(s.lead)! % 4 };
  });
  const ends = spread(series.map((s) => y.at(s.points[s.points.length - 1]!.y)), 14, box.top, box.bottom + 6);
  const marks: SVGElement[] = [];
  const trials: Trial[] = [];
  series.forEach((s, i) => {
    const { hue, dash } = looks[i]!;
    const colour = `var(--c${hue})`;
    const places = s.points.map((p): [number, number] => [x.at(p.x), y.at(p.y)]);
    const g = svg('g', { class: `series dash${dash}` }, svg('path', { class: 'curve', d: pathOf(places), stroke: colour }), svg('path', { class: 'hit', d: pathOf(places) }));
    g.addEventListener('pointerenter', () => { g.classList.add('focus'); chart.classList.add('dim'); });
    g.addEventListener('pointerleave', () => { g.classList.remove('focus'); chart.classList.remove('dim'); });
    const knee = kneeOf(s.points);
    s.points.forEach((p, k) => {
      const [px, py] = places[k]!;
      if (k === knee) g.append(svg('circle', { class: 'knee', cx: px, cy: py, r: 8, stroke: colour }));
      if (view.selection.has(p.t.key)) g.append(svg('circle', { class: 'ring', cx: px, cy: py, r: 10 }));
      const rows = () => [...tipRows(p.t, [input.state.load, { name: 'output_throughput', statistic: 'mean' }], view), ...(k === knee ? [['Knee', 'more load costs more latency than it brings throughput'] as [string, string]] : [])];
      const each = svg('circle', { class: 'mark', cx: px, cy: py, r: 3.8, stroke: colour, fill: p.t.simulated ? 'var(--card)' : colour, role: 'button',
        'aria-label': `${p.t.label}${k === knee ? ', knee' : ''}`, 'data-trial': p.t.id, ...withTip(view, p.t.label, rows) });
      each.addEventListener('click', (e) => view.select([p.t.key], e.shiftKey));
      marks.push(each);
      trials.push(p.t);
      g.append(each);
    });
    if (named) {
      const [px, py] = places[places.length - 1]!;
      g.append(svg('path', { class: 'leader', d: `M${px + 6} ${py}L${box.right + 12} ${ends[i]}`, stroke: colour }), svg('text', { x: box.right + 16, y: ends[i]! + 4, fill: colour, class: 'label' }, s.label));
    }
    chart.append(g);
  });
  walkable(chart, marks, (at, add) => view.select([trials[at]!.key], add));
  host.append(legendOf(view, series, looks, every.length, named));
}

/** Lines by their look; where looks repeat, what the hues mean. */
function legendOf(view: View, series: readonly Series[], looks: readonly { hue: number; dash: number }[], total: number, named: boolean): HTMLElement {
  const entry = (hue: number, dash: number, words: string) => legendEntry(svg('g', { class: `series dash${dash}` }, svg('path', { class: 'curve', d: 'M0 8H18', stroke: `var(--c${hue})` })), words);
  const lead = view.data.settings.find((s) => s.side === 'server');
  const alike = new Set(looks.map((l) => `${l.hue} ${l.dash}`)).size < series.length;
  const leads = new Map<number, Set<string>>();
  series.forEach((s, i) => { const { hue } = looks[i]!; leads.set(hue, (leads.get(hue) ?? new Set()).add(s.lead)); });
  const keys = named ? [] : lead && alike ? [...leads].map(([hue, values]) => entry(hue, 0, `${lead.short} ${[...values].join(', ') || DASH}`)) : series.map((s, i) => entry(looks[i]!.hue, looks[i]!.dash, s.label));
  return html('div', { class: 'legend' }, keys,
    series.some((s) => kneeOf(s.points) >= 0) ? legendEntry(svg('circle', { class: 'knee', cx: 9, cy: 8, r: 6, stroke: 'var(--muted)' }), 'knee: beyond it, load costs more latency than it brings throughput') : null,
    !named && alike ? html('span', {}, `${plural(series.length, 'server configuration')}: point at a mark to name its own`) : null,
    total > series.length ? html('span', {}, `the ${series.length} best of ${total} server configurations; filter to see others`) : null);
}
