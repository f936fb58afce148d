/* What leaves the page: CSV, Markdown, commands and downloads. */
import type { Model } from './model';
import type { State } from './state';
import type { Trial } from './view';
import type { Json } from './data';
import { LATENCIES, count, limitGrammar, limitText, shown } from './words';

export function download(name: string, content: Blob | string, type = 'text/plain'): void {
  const address = URL.createObjectURL(typeof content === 'string' ? new Blob([content], { type }) : content);
  const link = document.createElement('a');
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, '_');
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** All trials; text that a spreadsheet would read as a formula is led by an apostrophe. */
export function csvText(model: Model, state: State): string {
  const { trials, settings } = model.data;
  const names = [...new Set(trials.flatMap((t) => Object.entries(t.results).filter(([, v]) => v === null || typeof v !== 'object').map(([name]) => name)))]
    .filter((name) => !settings.some((s) => s.name === name));
  const cell = (v: Json | undefined): string => {
    const text = v === null || v === undefined ? '' : typeof v === 'object' ? JSON.stringify(v) : String(v);
    const safe = typeof v !== 'number' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  const standings = model.standings(state.limits.filter((c) => c.on));
  const setting = (t: Trial, s: (typeof settings)[number]) => (s.side === 'server' ? t.server : t.client)[s.name];
  const head: Json[] = ['key', 'status', 'simulated', 'standing', ...settings.map((s) => s.name), ...names, 'failure', 'cmd'];
  const rows = trials.map((t): (Json | undefined)[] => [t.key, t.status, t.simulated, standings[t.id]!.kind, ...settings.map((s) => setting(t, s)),
    ...names.map((n) => t.results[n]), t.failure ? `${t.failure.kind}: ${t.failure.reason}` : '', t.cmd]);
  return `${[head, ...rows].map((row) => row.map(cell).join(',')).join('\r\n')}\r\n`;
}

/** Facts, limits and picks as Markdown, to paste into a message or a ticket. */
export function markdown(model: Model, state: State): string {
  const { data } = model;
  const { header } = data;
  const limits = state.limits.filter((c) => c.on);
  const picks = model.picks(limits);
  const plain = (text: string) => text.replace(/[\\`*_{}[\]<>#|]/g, '\\$&');
  const facts = [header.machine, header.engine, header.workload, header.date].filter((v): v is string => Boolean(v)).map(plain).join(' · ');
  const lines = [`## ${plain(header.model ?? data.title)}`, '', facts, '',
    `${count(header.trial_count)} trials${header.failed_count ? `, ${header.failed_count} failed` : ''}${header.simulated_count === header.trial_count ? ', all **simulated: no model ran**' : header.simulated_count ? `, ${header.simulated_count} simulated` : ''}.`,
    limits.length ? `Limits: ${limits.map((c) => `${plain(limitText(c, model.quantities))}`).join('; ')}.` : 'No limits.', '',
    '| Pick | Configuration | Value | TTFT p99 | ITL mean | E2E p99 | Requests | |', '|---|---|---|---|---|---|---|---|'];
  for (const objective of data.objectives) {
    const pick = picks[objective.name]!;
    const t = pick.chosen;
    if (!t) continue;
    const v = (name: string, statistic?: string) => shown(model.values.of(t, name, statistic), model.quantities.get(name)!.unit);
    const notes = [pick.feasible ? '' : 'misses a limit', pick.ties.length ? `tie with ${pick.ties.length}` : '', t.simulated ? 'simulated' : ''].filter(Boolean).join(', ');
    lines.push(`| ${plain(objective.heading)} | ${plain(t.label)} | ${shown(pick.value(t), model.quantities.get(objective.metric)?.unit ?? '')} | ${v('ttft', 'p99')} | ${v('itl')} | ${v('e2e_latency', 'p99')} | ${v('request_throughput')} | ${notes} |`);
  }
  const commands = [...new Set(data.objectives.map((o) => picks[o.name]!.chosen?.cmd).filter(Boolean))];
  return `${lines.join('\n')}\n${commands.map((cmd) => `\n\`\`\`sh\n${cmd}\n\`\`\`\n`).join('')}`;
}

/** Command that writes the deployment of a trial; the summary is beside the page. */
export function deployCommand(model: Model, trial: Trial, state: State): string {
  const { title, header } = model.data;
  const quoted = (text: string) => (/^[\w./:=-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);
  const limits = state.limits.filter((c) => c.on && (LATENCIES.includes(c.metric) || model.quantities.has(c.metric)));
  const target = header.instance?.startsWith('ml.') ? 'sagemaker' : 'compose';
  return ['servetune deploy', target, quoted(`${title}.json`), '--key', trial.key, ...(limits.length ? ['--constraints', quoted(limits.map(limitGrammar).join(';'))] : []), '--out bundle'].join(' ');
}

/** Writes text to the clipboard; where that is forbidden, by a selection. */
export async function copy(text: string): Promise<boolean> {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* from disk, or not allowed */ }
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'offscreen';
  document.body.append(area);
  const before = document.activeElement;
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  if (before instanceof HTMLElement) before.focus();
  return done;
}
