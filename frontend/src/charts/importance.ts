/* What matters: which settings move a metric, so that the next search can leave out the others. */
import type { MetricImportance, SettingImportance } from '../data';
import { picture, svg, walkable, withTip } from '../plot';
import type { Rows, View } from '../view';
import { changeWords, choice, cut, empty, fitting, measureOf, measureWords, partsOf, quantityOf, shareWords, usualMeasure } from './parts';

const ROW = 26;
const GROUPS: readonly [side: string, words: string][] = [
  ['server', 'Server settings: share of what the load leaves'],
  ['client', 'Load: share of what the server settings leave'],
];

export function draw(host: HTMLElement, input: readonly MetricImportance[], view: View): void {
  const options = input.map((each): [string, string] => [`${each.metric}:${each.statistic}`, measureWords(view, each.metric, each.statistic)]);
  const value = choice(host, 'metric', 'Metric', options, usualMeasure(view), () => draw(host, input, view));
  const { name, statistic } = measureOf(value);
  const found = input.find((each) => each.metric === name && each.statistic === statistic);
  if (!found || found.reason || !found.settings?.length) {
    empty(host, `Nothing to show: ${found?.reason || 'no trial has values of a metric'}.`);
    return;
  }
  const { figure, note } = partsOf(host);
  const settings = found.settings;
  const groups = GROUPS.map(([side, words]) => ({ words, rows: settings.filter((each) => each.side === side) })).filter((each) => each.rows.length);
  const narrow = view.width < 560;
  const row = narrow ? ROW + 16 : ROW;
  const height = groups.reduce((sum, each) => sum + 34 + row * each.rows.length, 6);
  const made = picture(figure, view, height, `Importance of settings for ${measureWords(view, name, statistic)}`);
  made.setAttribute('role', 'group');
  const nameWidth = narrow ? 0 : Math.min(190, 20 + 7 * Math.max(...settings.map((each) => each.short.length)));
  const wordsWidth = narrow ? 0 : 250;
  const marks: SVGElement[] = [];
  let top = 0;
  for (const group of groups) {
    made.append(svg('text', { class: 'title', x: 0, y: top + 18 }, cut(group.words, fitting(view.width))));
    top += 28;
    for (const each of group.rows) {
      marks.push(bar(each, { left: nameWidth, right: view.width - wordsWidth - 8, top: top + (narrow ? 16 : 0), narrow }, view, found));
      made.append(marks[marks.length - 1]!);
      top += row;
    }
    top += 6;
  }
  walkable(made, marks, () => undefined);
  const left = found.unexplained_fraction ?? 0;
  note.replaceChildren(`Of ${found.trial_count} trials that succeeded, by the model ${found.with_pairs ? 'of each setting and each pair of them' : 'of each setting alone, as the trials are too few for pairs'}; `
    + `${shareWords(left)} of the whole variance it does not explain. A share is what the model loses without the setting, less what chance gives.`);
}

interface Place { left: number; right: number; top: number; narrow: boolean }

function bar(each: SettingImportance, place: Place, view: View, found: MetricImportance): SVGGElement {
  const width = Math.max(0, (place.right - place.left) * Math.min(1, each.share_fraction));
  const look = each.standing === 'matters' ? 'bar-solid' : 'bar-hollow';
  const words = wordsOf(each, view, found);
  const middle = place.top + ROW / 2;
  return svg('g', { class: 'bar-row', role: 'img', 'aria-label': `${each.short}: ${words}`, ...withTip(view, each.short, () => rows(each, view, found)) },
    svg('rect', { class: 'hit', x: 0, y: place.top - (place.narrow ? 16 : 0), width: view.width, height: ROW + (place.narrow ? 16 : 0) }),
    place.narrow
      ? svg('text', { x: 0, y: place.top - 3 }, svg('tspan', { class: 'strong' }, each.short), `  ${cut(words, fitting(view.width) - each.short.length - 3)}`)
      : svg('text', { class: 'strong', x: place.left - 10, y: middle + 4, 'text-anchor': 'end' }, cut(each.short, fitting(place.left))),
    svg('rect', { class: 'bar-track', x: place.left, y: place.top + 5, width: place.right - place.left, height: ROW - 10, rx: 3 }),
    width > 0.5 ? svg('rect', { class: look, x: place.left, y: place.top + 5, width, height: ROW - 10, rx: 3 }) : null,
    place.narrow ? null : svg('text', { x: place.right + 10, y: middle + 4 }, cut(words, fitting(view.width - place.right - 10))));
}

function wordsOf(each: SettingImportance, view: View, found: MetricImportance): string {
  switch (each.standing) {
    case 'nothing': return `changed nothing: ${changeWords(each.change_fraction)}`;
    case 'inseparable': return 'always changed with another setting';
    case 'unclear': return `within noise: at most ${changeWords(each.change_high_fraction)}`;
    default: return `${shareWords(each.share_fraction)}, changes it by ${changeWords(each.change_fraction)}${bestWords(each, view, found)}`;
  }
}

function bestWords(each: SettingImportance, view: View, found: MetricImportance): string {
  const more = quantityOf(view, found.metric).maximize;
  const levels = [...(each.levels ?? [])].sort((a, b) => (more ? b.factor - a.factor : a.factor - b.factor));
  return levels[0] && each.side === 'server' ? `; best ${levels[0].value}` : '';
}

const STANDINGS: Record<SettingImportance['standing'], string> = {
  matters: 'more than chance explains', nothing: 'no change that counts', unclear: 'no more than chance explains',
  inseparable: 'another setting always changed with it',
};

function rows(each: SettingImportance, _view: View, found: MetricImportance): Rows {
  const factor = (value: number): string => `${value < 1 ? '−' : '+'}${Math.abs((value - 1) * 100).toPrecision(2)}%`;
  return [
    ['Setting', each.name], ['Share', shareWords(each.share_fraction)], ['Change', `${changeWords(each.change_fraction)}, at most ${changeWords(each.change_high_fraction)}`],
    ['Verdict', STANDINGS[each.standing]],
    ...(each.levels ?? []).map((level): [string, string] => [
      `at ${level.value}`, `${factor(level.factor)} of the mean${level.trial_count ? `, ${level.trial_count} trial${level.trial_count === 1 ? '' : 's'}` : ''}`]),
    ['Trials', String(found.trial_count)],
  ];
}

