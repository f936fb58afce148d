/* The table of trials: pages, columns to choose, sorting, selection for comparison. */
import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { lexical, type Standing } from './choice';
import type { Model } from './model';
import { settingOf } from './model';
import { FailedTag, Menu, StandingMark } from './parts';
import { unitOf } from './plot';
import type { State } from './state';
import type { Trial } from './view';
import { DASH, count, known, naturally, statisticOf } from './words';

/** Rows of one page of the table. */
export const PAGE = 50;
const USUAL: readonly [string, string][] = [['output_throughput', 'mean'], ['request_throughput', 'mean'], ['ttft', 'mean'], ['ttft', 'p99'], ['itl', 'mean'], ['tpot', 'mean'], ['e2e_latency', 'mean'], ['e2e_latency', 'p99'], ['cost_per_million_tokens', 'mean']];

interface Column {
  id: string;
  head: string[];
  kind: 'standing' | 'setting' | 'metric' | 'command';
  value(t: Trial): number | string | null;
  words(t: Trial): string;
}

/** All columns that some trial has a value for; `usual` are those shown until others are chosen. */
function columnsOf(model: Model, standings: readonly Standing[], limits: State['limits']): { all: Column[]; usual: string[] } {
  const { data, values } = model;
  const merit = (t: Trial) => ({ meets: 0, misses: 2, failed: 8 })[standings[t.id]!.kind] + 4 * Number(Boolean(t.miscounted)) + Number(values.tooManyFailed(t, limits.filter((c) => c.on)));
  const settings = data.settings.map((s): Column => ({ id: s.name, head: s.short.split(' '), kind: 'setting', value: (t) => { const v = (s.side === 'server' ? t.server : t.client)[s.name]; return typeof v === 'number' ? v : settingOf(t, s); }, words: (t) => settingOf(t, s) }));
  const measures = data.quantities.flatMap((q) => (q.has_statistics ? data.statistics : ['mean']).map((s): [string, string] => [q.name, s]));
  const metrics = measures.flatMap(([name, statistic]): Column[] => {
    const q = model.quantities.get(name)!;
    let [least, most] = [Infinity, -Infinity];
    for (const t of data.trials) {
      const v = values.of(t, name, statistic);
      if (v !== null) { if (v > 0 && v < least) least = v; if (v > most) most = v; }
    }
    if (most < 0) return [];
    const unit = unitOf(q.unit, most);
    const places = Math.max(0, Math.min(3, 2 - Math.floor(Math.log10((Number.isFinite(least) ? least : 1) / unit.per))));
    const failed = name === 'error_rate';
    return [{
      id: `${statistic}.${name}`, kind: 'metric', head: failed ? ['Requests', 'failed'] : [`${q.short}${statisticOf(name, statistic)}`, q.unit === 'USD' ? '' : unit.text],
      value: (t) => values.of(t, name, statistic),
      words: (t) => {
        if (failed) return t.failed_requests?.fraction ?? '0';
        const v = values.of(t, name, statistic);
        return v === null ? DASH : (v / unit.per).toLocaleString('en-US', { minimumFractionDigits: places, maximumFractionDigits: places });
      },
    }];
  });
  const failing = data.trials.some((t) => t.status === 'ok' && t.failed_requests);
  if (failing && !metrics.some((c) => c.id === 'mean.error_rate')) {
    metrics.push({ id: 'mean.error_rate', kind: 'metric', head: ['Requests', 'failed'], value: (t) => values.of(t, 'error_rate'), words: (t) => t.failed_requests?.fraction ?? '0' });
  }
  const standing: Column = { id: 'standing', head: ['Standing'], kind: 'standing', value: merit, words: () => '' };
  const command: Column = { id: 'cmd', head: ['Launch', 'command'], kind: 'command', value: (t) => t.cmd, words: (t) => t.cmd };
  const usual = [...settings.slice(0, 8).map((c) => c.id), ...USUAL.map(([name, s]) => `${s}.${name}`), ...(failing ? ['mean.error_rate'] : [])];
  return { all: [standing, ...settings, ...metrics, command], usual };
}

export function Trials({ model, state, set, trials, select, open }: {
  model: Model; state: State; set: (change: Partial<State>) => void; trials: readonly Trial[]; select: (keys: readonly string[], add?: boolean) => void; open: (trial: Trial) => void;
}): JSX.Element {
  const limits = state.limits.filter((c) => c.on);
  const standings = model.standings(limits);
  const { all, usual } = useMemo(() => columnsOf(model, standings, state.limits), [model, standings]);
  const wanted = new Set(state.columns ?? usual);
  const columns = all.filter((c) => c.kind === 'standing' || wanted.has(c.id));
  const rows = useMemo(() => sorted(model, all, trials, state.sort), [model, all, trials, state.sort]);
  const pages = Math.max(1, Math.ceil(rows.length / PAGE));
  const page = Math.min(state.page, pages - 1);
  const shown = rows.slice(page * PAGE, (page + 1) * PAGE);
  const chosen = new Set(state.selection);
  document.documentElement.dataset['rows'] = String(rows.length);
  const toggle = (id: string, on: boolean) => set({ columns: all.map((c) => c.id).filter((each) => (each === id ? on : wanted.has(each))) });
  const sortBy = (id: string) => set({ sort: { id, descending: id === state.sort.id ? !state.sort.descending : false }, page: 0 });
  return (
    <section class="card" id="trials" aria-labelledby="h-trials" tabindex={-1}>
      <div class="head">
        <h2 id="h-trials">Trials <span class="muted count">{rows.length === model.data.trials.length ? count(rows.length) : `${count(rows.length)} of ${count(model.data.trials.length)}`}</span></h2>
        <div class="controls">
          <Menu label="Columns" on={state.columns !== null}>
            <button type="button" class="small" onClick={() => set({ columns: null })}>Usual columns</button>
            {all.filter((c) => c.kind !== 'standing').map((c) => (
              <label class="check"><input type="checkbox" checked={wanted.has(c.id)} onChange={(e) => toggle(c.id, e.currentTarget.checked)} /> {c.head.filter(Boolean).join(' ')}</label>))}
          </Menu>
          <Pager page={page} pages={pages} total={rows.length} turn={(to) => set({ page: to })} />
        </div>
      </div>
      <div class="scroll" id="table" tabindex={0} role="region" aria-label="Table of trials">
        <table>
          <thead><tr>
            {columns.map((c) => (
              <th scope="col" class={c.kind === 'standing' || c.kind === 'command' ? 'left' : ''} aria-sort={c.id === state.sort.id ? (state.sort.descending ? 'descending' : 'ascending') : undefined}>
                <button type="button" onClick={() => sortBy(c.id)}>{c.head.flatMap((h, i) => (i ? [<br />, h] : [h]))}</button>
              </th>))}
            <th class="left" scope="col">Compare</th><th><span class="offscreen">Details</span></th>
          </tr></thead>
          <tbody>{shown.map((t) => <Row key={t.key} trial={t} columns={columns} standing={standings[t.id]!} model={model} chosen={chosen.has(t.key)} limited={limits.length > 0} select={select} open={open} />)}</tbody>
        </table>
      </div>
      {pages > 1 ? <div class="foot-pager"><Pager page={page} pages={pages} total={rows.length} turn={(to) => set({ page: to })} /></div> : null}
    </section>
  );
}

function Pager({ page, pages, total, turn }: { page: number; pages: number; total: number; turn: (to: number) => void }): JSX.Element | null {
  if (pages < 2) return null;
  return (
    <span class="pager">
      <button type="button" aria-label="Earlier trials" disabled={page === 0} onClick={() => turn(page - 1)}>‹</button>
      <span>{count(page * PAGE + 1)}–{count(Math.min(total, (page + 1) * PAGE))} of {count(total)}</span>
      <button type="button" aria-label="Later trials" disabled={page >= pages - 1} onClick={() => turn(page + 1)}>›</button>
    </span>
  );
}

/** Trials in the order of a column; equal ones by throughput, those without a value last. */
export function sorted(model: Model, columns: readonly Column[], trials: readonly Trial[], { id, descending }: State['sort']): readonly Trial[] {
  const by = columns.find((c) => c.id === id) ?? columns[0]!;
  const sign = descending ? -1 : 1;
  const keyed = trials.map((t) => ({ t, v: by.value(t), tie: [-(model.values.of(t, 'output_throughput') ?? 0), t.id] }));
  return keyed.sort((a, b) => {
    if (a.v === null || b.v === null) return Number(a.v === null) - Number(b.v === null) || lexical(a.tie, b.tie);
    const order = known(a.v) && known(b.v) ? a.v - b.v : naturally(String(a.v), String(b.v));
    return sign * order || lexical(a.tie, b.tie);
  }).map((each) => each.t);
}

function Row({ trial, columns, standing, model, chosen, limited, select, open }: {
  trial: Trial; columns: readonly Column[]; standing: Standing; model: Model; chosen: boolean; limited: boolean;
  select: (keys: readonly string[], add?: boolean) => void; open: (trial: Trial) => void;
}): JSX.Element {
  const { kind } = standing;
  const metrics = columns.filter((c) => c.kind === 'metric').length;
  const failed = kind === 'failed';
  const stop = (e: Event) => e.stopPropagation();
  let reasoned = false;
  const cells = columns.map((c) => {
    if (c.kind === 'standing') {
      return <td class="left"><StandingWords standing={standing} model={model} limited={limited} />{trial.simulated ? <> <span class="tag simulated-tag">sim</span></> : null} <FailedTag trial={trial} /></td>;
    }
    if (c.kind === 'command') return <td class="left cmd"><code>{trial.cmd}</code></td>;
    if (c.kind === 'metric' && failed) {
      if (reasoned) return null;
      reasoned = true;
      return (
        <td class="left reason" colSpan={metrics}>{trial.failure ? `${trial.failure.kind}: ${trial.failure.reason}` : 'the record does not say why'}
          {trial.failure?.log_tail ? <details onClick={stop}><summary>server log, last lines</summary><pre>{trial.failure.log_tail}</pre></details> : null}</td>);
    }
    return <td>{c.words(trial)}</td>;
  });
  return (
    <tr data-row={trial.id} data-standing={kind} data-simulated={String(trial.simulated)} aria-selected={chosen} onClick={(e) => select([trial.key], e.shiftKey)}>
      {cells}
      <td class="left" onClick={stop}><input type="checkbox" aria-label={`Compare ${trial.label}`} checked={chosen} onChange={() => select([trial.key], true)} /></td>
      <td><button type="button" class="open" aria-label={`Details of ${trial.label}`} onClick={(e) => { e.stopPropagation(); open(trial); }}>Details</button></td>
    </tr>
  );
}

export function StandingWords({ standing: { kind, missed, unknown }, model, limited }: { standing: Standing; model: Model; limited: boolean }): JSX.Element {
  const short = (c: State['limits'][number]) => `${model.quantities.get(c.metric)?.short ?? c.metric}${statisticOf(c.metric, c.statistic)}`;
  const which = [...missed.map(short), ...unknown.map((c) => `${short(c)} (not measured)`)].join(', ');
  return <span class={`stand ${kind}`}><StandingMark kind={kind} />{{ meets: limited ? 'meets' : 'ok', misses: 'misses', failed: 'failed' }[kind]}{which ? <span class="missed">{which}</span> : null}</span>;
}
