/* What a reader has chosen, kept in the page's address so that a link opens the same view. */
import type { PageData } from './data';
import type { Limit, Measure } from './view';

export type LogChoice = 'auto' | 'on' | 'off';

export interface State {
  x: Measure;
  y: Measure;
  xLog: LogChoice;
  yLog: LogChoice;
  /** Left, right, bottom and top of the trade-off's zoom, in the units of its axes. */
  zoom: [number, number, number, number] | null;
  limits: Limit[];
  /** Values of settings that are shown, by setting; a setting that is not here shows all. */
  filters: Record<string, string[]>;
  text: string;
  kind: string;
  /** Setting that gives colour and shape; '' is the standing. */
  colour: string;
  shape: string;
  selection: string[];
  load: Measure;
  loadX: 'throughput' | 'load';
  /** Columns of the table by id; null is the usual ones. */
  columns: string[] | null;
  sort: { id: string; descending: boolean };
  /** Page of the table, from 0. */
  page: number;
  /** Stretch of the timeline's requests; -1 is the whole run. */
  requests: number;
}

export function initialState(data: PageData): State {
  return {
    x: { name: 'e2e_latency', statistic: 'p99' }, y: { name: 'output_throughput', statistic: 'mean' }, xLog: 'auto', yLog: 'auto', zoom: null,
    limits: data.constraints.map(({ metric, statistic, op, value }) => ({ metric, statistic, op, value, on: true, added: false })),
    filters: {}, text: '', kind: '', colour: '', shape: '', selection: [],
    load: { name: 'e2e_latency', statistic: 'p99' }, loadX: 'throughput', columns: null,
    sort: { id: 'standing', descending: false }, page: 0, requests: -1,
  };
}

const measureText = ({ name, statistic }: Measure): string => `${name}:${statistic}`;
const limitsText = (limits: readonly Limit[]): string => limits
  .map((c) => [c.metric, c.statistic, c.op, c.value, c.on ? 1 : 0, c.added ? 1 : 0].join(',')).join(';');

/** The parts of the address; what equals the initial state is left out. */
export function toHash(state: State, initial: State): string {
  const parts = new URLSearchParams();
  const put = (name: string, now: string, before: string) => { if (now !== before) parts.set(name, now); };
  const each = (s: State): Record<string, string> => ({
    x: measureText(s.x), y: measureText(s.y), xlog: s.xLog, ylog: s.yLog,
    zoom: s.zoom ? s.zoom.map((v) => +v.toPrecision(6)).join(',') : '',
    limits: limitsText(s.limits), find: s.text, kind: s.kind, colour: s.colour, shape: s.shape,
    sel: s.selection.join(','), load: measureText(s.load), loadx: s.loadX, cols: s.columns ? s.columns.join(',') : '*',
    sort: `${s.sort.descending ? '-' : ''}${s.sort.id}`, page: String(s.page), requests: String(s.requests),
  });
  const [now, before] = [each(state), each(initial)];
  for (const name of Object.keys(now)) put(name, now[name]!, before[name]!);
  for (const [name, values] of Object.entries(state.filters)) parts.set(`f.${name}`, JSON.stringify(values));
  return parts.toString();
}

/** State of an address; what it does not say, or says wrongly, is as in the initial state. */
export function fromHash(hash: string, initial: State, data: PageData): State {
  const parts = new URLSearchParams(hash.replace(/^#/, ''));
  const state: State = { ...initial, filters: {} };
  const names = new Set(data.quantities.map((q) => q.name));
  const measure = (text: string | null, otherwise: Measure): Measure => {
    const [name = '', statistic = 'mean'] = (text ?? '').split(':');
    return names.has(name) && /^\w[\w.]*$/.test(statistic) ? { name, statistic } : otherwise;
  };
  const choice = <T extends string>(name: string, allowed: readonly T[], otherwise: T): T => {
    const said = parts.get(name) as T | null;
    return said !== null && allowed.includes(said) ? said : otherwise;
  };
  state.x = measure(parts.get('x'), initial.x);
  state.y = measure(parts.get('y'), initial.y);
  state.load = measure(parts.get('load'), initial.load);
  state.xLog = choice('xlog', ['auto', 'on', 'off'], initial.xLog);
  state.yLog = choice('ylog', ['auto', 'on', 'off'], initial.yLog);
  state.loadX = choice('loadx', ['throughput', 'load'], initial.loadX);
  state.kind = choice('kind', ['', 'meets', 'misses', 'failed'], '');
  const settings = data.settings.map((s) => s.name);
  state.colour = choice('colour', ['', ...settings], '');
  state.shape = choice('shape', ['', ...settings], '');
  state.text = parts.get('find') ?? '';
  const zoom = (parts.get('zoom') ?? '').split(',').map(Number);
  if (zoom.length === 4 && zoom.every(Number.isFinite)) state.zoom = zoom as State['zoom'];
  const limits = parts.get('limits');
  const metrics = new Set([...names, ...data.constraints.map((c) => c.metric)]);
  if (limits !== null) state.limits = limits.split(';').flatMap((text) => limitOf(text, metrics));
  const keys = new Set(data.trials.map((t) => t.key));
  state.selection = (parts.get('sel') ?? '').split(',').filter((key) => keys.has(key));
  const columns = parts.get('cols');
  if (columns !== null && columns !== '*') state.columns = columns.split(',').filter(Boolean);
  const sort = parts.get('sort');
  if (sort) state.sort = { id: sort.replace(/^-/, ''), descending: sort.startsWith('-') };
  state.page = Math.max(0, Math.floor(Number(parts.get('page')) || 0));
  const requests = parts.get('requests');
  if (requests !== null && Number.isInteger(+requests)) state.requests = Math.max(-1, +requests);
  for (const [name, text] of parts) if (name.startsWith('f.') && settings.includes(name.slice(2))) state.filters[name.slice(2)] = texts(text);
  return state;
}

function limitOf(text: string, names: ReadonlySet<string>): Limit[] {
  const [metric = '', statistic = 'mean', op = '', value = '', on, added] = text.split(',');
  const fine = names.has(metric) && ['<=', '>=', '<', '>', '==', '!='].includes(op) && value !== '' && Number.isFinite(+value);
  return fine ? [{ metric, statistic, op, value: +value, on: on === '1', added: added === '1' }] : [];
}

function texts(text: string): string[] {
  try {
    const made: unknown = JSON.parse(text);
    return Array.isArray(made) ? made.map(String) : [];
  } catch { return []; }
}
