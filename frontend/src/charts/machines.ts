/* Cost per machine: where a million output tokens are cheapest within the limits. */
import type { MachineCost } from '../data';
import { axisOf, frame, legendEntry, picture, svg, walkable, whisker, withTip } from '../plot';
import type { Box } from '../plot';
import type { Rows, View } from '../view';
import { cut, empty, fitting, partsOf, withEnds } from './parts';

const ROW = 46;
const MOST = 24;

export function draw(host: HTMLElement, input: readonly MachineCost[], view: View): void {
  const priced = input.filter((each) => each.cost !== null).slice(0, MOST);
  if (!priced.length) {
    const why = input.find((each) => each.missed)?.missed;
    empty(host, why ? `No machine can serve it: ${why}.` : 'Nothing to show: no trial has a price. Give one with --price-per-hour or --instance.');
    return;
  }
  const { figure, legend, note } = partsOf(host);
  const box: Box = { left: 0, right: view.width - 14, top: 26, bottom: 26 + ROW * priced.length };
  const highs = priced.flatMap((each) => [each.cost!, ...(typeof each.high === 'number' ? [Math.min(each.high, each.cost! * 3)] : [])]);
  const x = axisOf([0, ...highs], box.left + 4, box.right, { title: 'US$ per million output tokens', zero: true, better: 'less', count: view.width < 520 ? 4 : 7 });
  const y = { ...x, ticks: [], title: '', better: '' as const, at: () => 0 };
  const made = picture(figure, view, box.bottom + 44, 'Cost per million output tokens of each machine');
  made.setAttribute('role', 'group');
  made.append(frame(box, x, y));
  const marks = priced.map((each, i) => {
    const top = box.top + ROW * i;
    const words = `${view.shown(each.cost, 'USD')} · ${each.label}${each.holds === false ? ` · ${each.missed}` : ''}`;
    const room = fitting(box.right);
    return svg('g', {
      class: 'bar-row', role: 'img', 'aria-label': `${each.machine}: ${words}`,
      ...(each.key ? { onclick: (event: MouseEvent) => view.select([each.key!], event.shiftKey) } : {}),
      ...withTip(view, each.machine, () => rows(each, view)),
    },
    svg('rect', { class: 'hit', x: 0, y: top, width: view.width, height: ROW }),
    svg('text', { x: box.left + 4, y: top + 15 }, svg('tspan', { class: 'strong' }, cut(each.machine, room)), `  ${cut(words, Math.max(3, room - each.machine.length - 2))}`),
    svg('rect', { class: each.holds === false ? 'bar-hollow' : each.predicted ? 'bar-soft' : 'bar-solid', x: x.at(0), y: top + 21, width: Math.max(1, x.at(each.cost!) - x.at(0)), height: 16, rx: 3 }),
    typeof each.low === 'number' && typeof each.high === 'number' ? whisker(box, x, [each.low, each.high], top + 29, false, 'var(--text)') : null);
  });
  made.append(...marks);
  walkable(made, marks, (index, add) => { const { key } = priced[index]!; if (key) view.select([key], add); });
  const swatch = (look: string) => svg('rect', { class: look, x: 1, y: 3, width: 16, height: 10, rx: 2 });
  if (priced.some((each) => each.holds !== false && !each.predicted)) legend.append(legendEntry(swatch('bar-solid'), 'holds every limit, measured'));
  if (priced.some((each) => each.holds !== false && each.predicted)) legend.append(legendEntry(swatch('bar-soft'), 'holds every limit, predicted'));
  if (priced.some((each) => each.holds === false)) legend.append(legendEntry(swatch('bar-hollow'), 'misses a limit'));
  if (priced.some((each) => typeof each.low === 'number')) legend.append(legendEntry(svg('path', { class: 'whisker', d: 'M2 8H16M2 4v8M16 4v8', stroke: 'var(--text)' }), 'interval'));
  const drawn = new Set(priced);
  const more = input.filter((each) => each.cost !== null && !drawn.has(each)).length;
  note.replaceChildren([more ? `${more} dearer machines are not drawn.` : '', ...reasons(input.filter((each) => each.cost === null))].filter(Boolean).join(' '));
}

/** Machines without a bar, by the reason. */
function reasons(without: readonly MachineCost[]): string[] {
  const groups = new Map<string, string[]>();
  for (const each of without) { const why = each.missed || 'no cost'; groups.set(why, [...(groups.get(why) ?? []), each.machine]); }
  return [...groups].sort((a, b) => b[1].length - a[1].length).slice(0, 6)
    .map(([why, names]) => `${why[0]!.toUpperCase()}${why.slice(1)}: ${names.slice(0, 3).join(', ')}${names.length > 3 ? ` and ${names.length - 3} more` : ''}.`);
}

function rows(each: MachineCost, view: View): Rows {
  const found: Rows = [['Per million output tokens', withEnds(view, each.cost, [each.low ?? null, each.high ?? null], 'USD')], ['Configuration', each.label]];
  if (typeof each.usd_per_hour === 'number') found.push(['Machine per hour', `${view.shown(each.usd_per_hour, 'USD')}${each.price_source ? `, ${each.price_source}` : ''}`]);
  if (typeof each.copies === 'number') found.push(['Copies', String(each.copies)]);
  if (typeof each.output_tokens_per_s === 'number') found.push(['Output', view.shown(each.output_tokens_per_s, 'tokens/s')]);
  found.push(['Limits', each.holds === false ? each.missed ?? 'misses one' : 'holds every one'], ['Basis', each.predicted ? 'predicted' : 'measured']);
  return found;
}
