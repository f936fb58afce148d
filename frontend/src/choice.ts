/* Values, standings and picks: the page's arithmetic, without a document. It repeats metrics/slo.py,
   search/recommend.py and search/ties.py, because limits change here; tests/report/test_browser.py
   holds the two to the same picks and ties. */
import type { Json, Objective, PageData, PageObjective, PageReference } from './data';
import type { Limit, Trial } from './view';
import { LATENCIES, digits, known } from './words';

type Results = Record<string, Json>;
type Valued = Pick<PageReference, 'results' | 'devices'>;
type Ends = [number | null, number | null];

const OPERATORS: Record<string, (a: number, b: number) => boolean> = {
  '<=': (a, b) => a <= b, '>=': (a, b) => a >= b, '<': (a, b) => a < b,
  '>': (a, b) => a > b, '==': (a, b) => a === b, '!=': (a, b) => a !== b,
};

const number = (value: Json | undefined): number | null => (known(value) ? value : null);
const fields = (value: Json | undefined): Results => (value && typeof value === 'object' && !Array.isArray(value) ? value : {});

export function valueOf(trial: Valued, name: string, statistic = 'mean'): number | null {
  const { results } = trial;
  if (name === 'output_throughput_per_gpu' && !known(results[name])) {
    const total = number(results['output_throughput']);
    return total !== null && trial.devices ? total / trial.devices : null;
  }
  if (name === 'user_throughput') {
    const tpot = valueOf(trial, 'tpot', 'median');
    return tpot ? 1000 / tpot : null;
  }
  if (name === 'energy_per_token_j' && !known(results[name])) {
    const energy = number(fields(results['server'])['energy_j']);
    const tokens = number(results['total_output_tokens']);
    return energy !== null && tokens ? energy / tokens : null;
  }
  if (!LATENCIES.includes(name)) return number(results[name]);
  const direct = number(results[`${statistic}_${name}_ms`]) ?? (statistic === 'p50' ? number(results[`median_${name}_ms`]) : null);
  if (direct !== null) return direct;
  return statistic.startsWith('p') ? interpolated(quantiles(results, name), +statistic.slice(1)) : null;
}

/** Pairs of percent and latency in ms. */
export function quantiles(results: Results, name: string): [number, number][] {
  return Object.entries(fields(fields(results['quantiles'])[`${name}_ms`]))
    .map(([percent, value]): [number, unknown] => [+percent, value])
    .filter((pair): pair is [number, number] => known(pair[0]) && known(pair[1])).sort((a, b) => a[0] - b[0]);
}

function interpolated(points: readonly [number, number][], percent: number): number | null {
  const below = points.filter((p) => p[0] <= percent).pop();
  const above = points.find((p) => p[0] >= percent);
  if (!below || !above) return null;
  const share = above[0] === below[0] ? 0 : (percent - below[0]) / (above[0] - below[0]);
  return below[1] + share * (above[1] - below[1]);
}

/** 95% sampling interval; throughput per GPU and cost are the output throughput, scaled. */
export function intervalOf(trial: Valued, name: string, statistic = 'mean'): Ends | null {
  const { results } = trial;
  const all = fields(results['intervals']);
  const field = LATENCIES.includes(name) ? `${statistic === 'p50' ? 'median' : statistic}_${name}_ms` : name;
  const own = ends(all[field]);
  if (own || !['output_throughput_per_gpu', 'cost_per_million_tokens'].includes(name)) return own;
  const [rate, value, of] = [number(results['output_throughput']), valueOf(trial, name), ends(all['output_throughput'])];
  if (!of || !rate || value === null) return null;
  const [low, high] = of;
  if (name === 'output_throughput_per_gpu') return [low && (value * low) / rate, high && (value * high) / rate];
  return [high && (value * rate) / high, low && low > 0 ? (value * rate) / low : null];
}

function ends(value: Json | undefined): Ends | null {
  if (!Array.isArray(value) || value.length !== 2) return null;
  return [number(value[0]), number(value[1])];
}

export interface Standing { kind: 'meets' | 'misses' | 'failed'; missed: Limit[]; unknown: Limit[] }
export interface Choice {
  chosen: Trial | null;
  next: Trial | null;
  feasible: boolean;
  /** Members of the Pareto set of several objectives. */
  set: Trial[];
  ties: Trial[];
  eligibleCount: number;
  /** What was left out for a fault, in the words of the command line. */
  leftOut: string[];
  value(trial: Trial): number | null;
}

/** Values of the trials of a page, each read once. */
export class Values {
  readonly trials: readonly Trial[];
  /** Trials to choose among: of those that differ by their seed alone, the mean. */
  readonly candidates: readonly Trial[];
  private readonly columns = new Map<string, Float64Array>();

  constructor(private readonly data: PageData) {
    this.trials = data.trials;
    const repeats = new Map(data.repeats.flatMap((each) => each.keys.map((key) => [key, each])));
    this.candidates = data.trials.filter((t) => t.status === 'ok').flatMap((trial) => {
      const repeat = repeats.get(trial.key);
      if (!repeat) return [trial];
      return repeat.keys[0] === trial.key ? [{ ...trial, id: -1, label: repeat.label, results: repeat.results }] : [];
    });
  }

  of(trial: Trial | PageReference, name: string, statistic = 'mean'): number | null {
    const id = 'id' in trial ? trial.id : -1;
    if (id < 0) return valueOf(trial, name, statistic);
    const value = this.column(name, statistic)[id]!;
    return Number.isNaN(value) ? null : value;
  }

  private column(name: string, statistic: string): Float64Array {
    const key = LATENCIES.includes(name) ? `${statistic} ${name}` : name;
    let made = this.columns.get(key);
    if (!made) {
      made = Float64Array.from(this.trials, (trial) => valueOf(trial, name, statistic) ?? NaN);
      this.columns.set(key, made);
    }
    return made;
  }

  holds(limit: Limit, trial: Trial): boolean | null {
    const value = this.of(trial, limit.metric, limit.statistic);
    return value === null ? null : OPERATORS[limit.op]!(value, limit.value);
  }

  standing(trial: Trial, limits: readonly Limit[]): Standing {
    if (trial.status !== 'ok') return { kind: 'failed', missed: [], unknown: [] };
    const [missed, unknown]: [Limit[], Limit[]] = [[], []];
    for (const limit of limits) {
      const held = this.holds(limit, trial);
      if (held === false) missed.push(limit);
      if (held === null) unknown.push(limit);
    }
    return { kind: missed.length + unknown.length ? 'misses' : 'meets', missed, unknown };
  }

  /** Whether too many requests failed for a pick, unless a limit says how many may. */
  tooManyFailed(trial: Trial, limits: readonly Limit[]): boolean {
    return !limits.some((c) => c.metric === 'error_rate') && (this.of(trial, 'error_rate') ?? 0) > this.data.tolerated_error_rate;
  }

  /** Best trial for an objective, or for several, among those that meet every limit. */
  recommend(limits: readonly Limit[], objective: PageObjective): Choice {
    const wanted: readonly (Objective | PageObjective)[] = objective.objectives?.length ? objective.objectives : [objective];
    const valueFor = (o: Objective | PageObjective) => (t: Trial) => this.of(t, o.metric, o.statistic);
    const value = valueFor(objective);
    const sign = objective.maximize ? -1 : 1;
    const rank = (t: Trial): number[] => [sign * (value(t) ?? 0), -(this.of(t, 'output_throughput') ?? 0)];
    const valued = this.candidates.filter((t) => wanted.every((o) => valueFor(o)(t) !== null));
    const held = new Map(valued.map((t) => [t, this.heldCount(t, limits)]));
    let most = -1;
    held.forEach((each) => { most = Math.max(most, each); });
    const feasible = valued.length > 0 && most === limits.length;
    const possible = valued.filter((t) => held.get(t) === most);
    const clean = possible.filter((t) => !t.miscounted && !this.tooManyFailed(t, limits));
    const eligible = clean.length ? clean : possible;
    const set = feasible && wanted.length > 1 ? paretoSet(eligible, wanted.map((o) => (t: Trial) => (o.maximize ? -1 : 1) * valueFor(o)(t)!)) : [];
    const order = feasible ? rank : (t: Trial) => [...this.misses(t, limits), ...rank(t)];
    const ranked = (set.length ? set : eligible).map((t) => ({ t, by: order(t) })).sort((a, b) => lexical(a.by, b.by)).map((each) => each.t);
    const chosen = (set.length ? knee(ranked, wanted.map((o) => (t: Trial) => (o.maximize ? 1 : -1) * valueFor(o)(t)!)) : ranked[0]) ?? null;
    return {
      chosen, next: (set.length ? null : ranked[1]) ?? null, feasible, set: set.length ? ranked : [],
      ties: feasible && wanted.length === 1 && chosen ? ranked.slice(1).filter((t) => this.toldApart(objective, chosen, t) === false) : [],
      eligibleCount: eligible.length, leftOut: clean.length ? this.leftOut(possible, limits) : [], value,
    };
  }

  /** Whether the sampling intervals tell the values of two trials apart; null where not known. */
  toldApart(measure: { metric: string; statistic: string }, one: Trial, other: Trial): boolean | null {
    const [a, b] = [one, other].map((t) => this.of(t, measure.metric, measure.statistic));
    if (a == null || b == null) return null;
    if (a === b) return false;
    const reach = (trial: Trial, own: number, towards: number): number | null => {
      const found = intervalOf(trial, measure.metric, measure.statistic);
      if (!found) return null;
      const end = towards > own ? found[1] : found[0];
      return end === null ? Infinity : Math.abs(end - own);
    };
    const [r, s] = [reach(one, a, b), reach(other, b, a)];
    return r === null || s === null ? null : Math.abs(a - b) > Math.hypot(r, s);
  }

  /** Number of limits that a trial meets: of a ladder those from the first on, else all or -1. */
  private heldCount(trial: Trial, limits: readonly Limit[]): number {
    const at = limits.findIndex((c) => !this.holds(c, trial));
    if (at < 0) return limits.length;
    return this.data.ladder ? at : -1;
  }

  /** Relative misses to compare trials by: one for each rung of a ladder, else the worst. */
  private misses(trial: Trial, limits: readonly Limit[]): number[] {
    const each = limits.map((c) => {
      const value = this.of(trial, c.metric, c.statistic);
      if (value === null) return Infinity;
      return this.holds(c, trial) ? 0 : Math.max(Math.abs(value - c.value) / (Math.abs(c.value) || 1), Number.EPSILON);
    });
    return this.data.ladder ? each : [Math.max(0, ...each)];
  }

  private leftOut(trials: readonly Trial[], limits: readonly Limit[]): string[] {
    const miscounted = trials.filter((t) => t.miscounted).length;
    const failing = trials.filter((t) => !t.miscounted && this.tooManyFailed(t, limits)).length;
    const words: [number, string][] = [[failing, `with more than ${digits(this.data.tolerated_error_rate * 100)}% failed requests`],
      [miscounted, 'whose server counts tokens that did not arrive']];
    return words.filter(([n]) => n).map(([n, why]) => `left out: ${n} trial${n === 1 ? '' : 's'} ${why}`);
  }
}

/** Trials that no other one beats in all costs; found in order of the first cost. */
function paretoSet(trials: readonly Trial[], costs: readonly ((t: Trial) => number)[]): Trial[] {
  const rows = trials.map((t) => ({ t, cost: costs.map((cost) => cost(t)) })).sort((a, b) => lexical(a.cost, b.cost));
  const kept: typeof rows = [];
  for (const row of rows) {
    const beaten = kept.some((other) => other.cost.every((x, i) => x <= row.cost[i]!) && other.cost.some((x, i) => x < row.cost[i]!));
    if (!beaten) kept.push(row);
  }
  return kept.map((row) => row.t);
}

/** The trial nearest to the best value of every objective at once, each scaled to its range. */
function knee(trials: readonly Trial[], gains: readonly ((t: Trial) => number)[]): Trial | undefined {
  const distances = trials.map(() => 0);
  for (const gain of gains) {
    const each = trials.map(gain);
    const [best, worst] = [Math.max(...each), Math.min(...each)];
    each.forEach((value, i) => { distances[i]! += ((best - value) / (best > worst ? best - worst : 1)) ** 2; });
  }
  return trials[distances.indexOf(Math.min(...distances))];
}

export function lexical(a: readonly number[], b: readonly number[]): number {
  for (let i = 0; i < a.length; i += 1) if (a[i] !== b[i]) return a[i]! < b[i]! ? -1 : 1;
  return 0;
}

/** Points that no other beats in both directions, from left to right. */
export function front<P extends { x: number; y: number }>(points: readonly P[], maximizeX: boolean, maximizeY: boolean): P[] {
  const [sx, sy] = [maximizeX ? -1 : 1, maximizeY ? -1 : 1];
  const order = [...points].sort((a, b) => sx * (a.x - b.x) || sy * (a.y - b.y));
  const kept: P[] = [];
  for (const point of order) {
    const last = kept[kept.length - 1];
    if (!last || sy * point.y < sy * last.y || (point.x === last.x && point.y === last.y)) kept.push(point);
  }
  return kept.sort((a, b) => a.x - b.x || a.y - b.y);
}
