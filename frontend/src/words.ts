/* Words for numbers, settings and limits. */
import type { Json, PageQuantity } from './data';
import type { Limit } from './view';

export const DASH = '–';
export const LATENCIES: readonly string[] = ['ttft', 'itl', 'tpot', 'e2e_latency'];
export const SIGNS: Record<string, string> = { '<=': '≤', '>=': '≥', '<': '<', '>': '>', '==': '=', '!=': '≠' };

export const known = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);

export function digits(value: number): string {
  if (Math.abs(value) >= 100) return value.toLocaleString('en-US', { maximumFractionDigits: 0 });
  return value.toLocaleString('en-US', { maximumSignificantDigits: 3, minimumSignificantDigits: 1 });
}

export function duration(ms: number): string {
  if (ms < 10) return `${ms.toFixed(2)} ms`;
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

export function shown(value: number | null | undefined, unit: string): string {
  if (!known(value)) return DASH;
  if (unit === 'ms') return duration(value);
  if (unit === 'USD') {
    return Math.abs(value) >= 0.1 ? `$${value.toLocaleString('en-US', { minimumFractionDigits: 2, maximumFractionDigits: 2 })}` : `$${value.toPrecision(3)}`;
  }
  if (unit === 'J') return `${digits(value)} J`;
  if (unit === 'fraction') return `${digits(value * 100)}%`;
  return `${digits(value)} ${unit === 'tokens/s' ? 'tok/s' : unit === 'requests/s' ? 'req/s' : unit}`.trim();
}

export const percent = (fraction: number | null): string => (known(fraction)
  ? `${fraction < 0 ? '−' : '+'}${Math.abs(fraction * 100).toFixed(Math.abs(fraction) < 0.1 ? 1 : 0)}%` : DASH);
export const apart = (fraction: number): string => (Math.abs(fraction) < 0.0005 ? 'within 0.1%' : percent(fraction));
export const count = (n: number): string => n.toLocaleString('en-US');
export const plural = (n: number, noun: string): string => `${count(n)} ${noun}${n === 1 ? '' : 's'}`;

/** `912 to 925 tok/s`; an end that is not known is a dash. */
export function rangeText(ends: readonly [number | null, number | null], unit: string): string {
  const [low, high] = ends.map((end) => shown(end, unit));
  const [number, tail] = [low!.split(' '), high!.split(' ')];
  return number.length === 2 && number[1] === tail[1] ? `${number[0]} to ${high}` : `${low} to ${high}`;
}

export const statisticOf = (name: string, statistic: string): string => (LATENCIES.includes(name) ? ` ${statistic}` : '');

export function limitText(limit: Pick<Limit, 'metric' | 'statistic' | 'op' | 'value'>, quantities: ReadonlyMap<string, PageQuantity>): string {
  const quantity = quantities.get(limit.metric);
  const bound = LATENCIES.includes(limit.metric)
    ? (limit.value >= 1000 ? `${+(limit.value / 1000).toPrecision(6)} s` : `${+limit.value.toPrecision(6)} ms`)
    : shown(limit.value, quantity?.unit ?? '');
  return `${quantity?.short ?? limit.metric}${statisticOf(limit.metric, limit.statistic)} ${SIGNS[limit.op] ?? limit.op} ${bound}`;
}

/** The limit as the command line reads it: `ttft:p99<=2000ms`. */
export function limitGrammar(limit: Pick<Limit, 'metric' | 'statistic' | 'op' | 'value'>): string {
  const latency = LATENCIES.includes(limit.metric);
  return `${limit.metric}${latency && limit.statistic !== 'mean' ? `:${limit.statistic}` : ''}${limit.op}${+limit.value.toPrecision(6)}${latency ? 'ms' : ''}`;
}

/** A setting's value as text; a dash where it is not set. */
export const settingText = (value: Json | undefined): string => (value === null || value === undefined ? DASH
  : typeof value === 'object' ? JSON.stringify(value) : String(value));

export const naturally = (a: string, b: string): number => a.localeCompare(b, 'en', { numeric: true });
