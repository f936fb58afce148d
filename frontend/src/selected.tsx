/* The selected trials: of one its latencies, of several what differs, with intervals. */
import type { JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { intervalOf } from './choice';
import * as distributions from './charts/distributions';
import type { Model } from './model';
import { Figure, FailedTag, Select, SourceTag } from './parts';
import type { State } from './state';
import type { Trial, View } from './view';
import { DASH, LATENCIES, percent, rangeText, shown } from './words';

/** Most trials that are compared at a time. */
export const MOST_COMPARED = 8;
const ROWS: readonly [string, string][] = [['output_throughput', 'mean'], ['request_throughput', 'mean'], ['ttft', 'mean'], ['ttft', 'p99'], ['itl', 'mean'], ['itl', 'p99'], ['tpot', 'mean'], ['e2e_latency', 'mean'], ['e2e_latency', 'p99'], ['cost_per_million_tokens', 'mean'], ['energy_per_token_j', 'mean']];

export function Selected({ model, state, set, view, trials, open, lazy }: {
  model: Model; state: State; set: (change: Partial<State>) => void; view: View; trials: readonly Trial[]; open: (trial: Trial) => void; lazy: boolean;
}): JSX.Element {
  const metric = LATENCIES.includes(state.load.name) ? state.load.name : 'e2e_latency';
  const draw = useMemo(() => (host: HTMLElement, v: View) => distributions.draw(host, { trials, metric }, v), [trials, metric]);
  const [first] = trials;
  const several = trials.length > 1;
  const title = several ? `${trials.length} trials compared` : 'Selected trial';
  const controls = several ? (
    <>
      <Select label="Latency of the overlay" value={metric} options={model.data.quantities.filter((q) => q.has_statistics).map((q) => [q.name, q.title])} choose={(name) => set({ load: { ...state.load, name } })} />
      <button type="button" onClick={() => set({ selection: [] })}>Clear</button>
    </>) : first ? <button type="button" id="open-details" onClick={() => open(first)}>All details</button> : null;
  return (
    <Figure id="selected" title={title} controls={controls} draw={draw} view={view} lazy={lazy}
      note={several ? null : first ? <span class="lead">{first.label} <SourceTag trial={first} /> <FailedTag trial={first} /></span> : null}>
      {several ? <Differences model={model} trials={trials} /> : first ? <Statistics model={model} trial={first} /> : null}
      {several ? null : <p class="note">Shift-click, or “Compare” in the table, compares trials.</p>}
    </Figure>
  );
}

export function Statistics({ model, trial }: { model: Model; trial: Trial }): JSX.Element {
  if (trial.status !== 'ok') return <p class="note">{trial.failure ? `Failed: ${trial.failure.reason}` : 'Failed'}</p>;
  return (
    <div class="scroll" tabindex={0} role="region" aria-label="Latency statistics">
      <table><thead><tr><th class="left"><span class="offscreen">Latency</span></th>{model.data.statistics.map((s) => <th scope="col">{s}</th>)}</tr></thead>
        <tbody>{['e2e_latency', 'tpot', 'itl', 'ttft'].map((name) => (
          <tr><th class="left" scope="row">{model.quantities.get(name)!.short}</th>
            {model.data.statistics.map((s) => {
              const ends = intervalOf(trial, name, s);
              return <td>{shown(model.values.of(trial, name, s), 'ms')}{ends ? <small class="ends">{rangeText(ends, 'ms')}</small> : null}</td>;
            })}
          </tr>))}
        </tbody>
      </table>
    </div>
  );
}

/** Difference to the first trial, and its 95% interval: two runs are independent, so reaches add as squares. */
export function difference(model: Model, one: Trial, other: Trial, name: string, statistic: string): { fraction: number; ends: [number, number] | null } | null {
  const [a, b] = [model.values.of(one, name, statistic), model.values.of(other, name, statistic)];
  if (a === null || b === null || a === 0) return null;
  const [own, across] = [intervalOf(one, name, statistic), intervalOf(other, name, statistic)];
  if (!own || !across) return { fraction: b / a - 1, ends: null };
  const reach = (end: number | null, value: number) => (end === null ? Infinity : Math.abs(end - value));
  const down = Math.hypot(reach(across[0], b), reach(own[1], a));
  const up = Math.hypot(reach(across[1], b), reach(own[0], a));
  return { fraction: b / a - 1, ends: Number.isFinite(down) && Number.isFinite(up) ? [(b - a - down) / a, (b - a + up) / a] : null };
}

function Differences({ model, trials }: { model: Model; trials: readonly Trial[] }): JSX.Element {
  const [first, ...others] = trials as [Trial, ...Trial[]];
  const rows = ROWS.filter(([name, s]) => trials.some((t) => model.values.of(t, name, s) !== null));
  return (
    <>
      <ol class="letters">{trials.map((t, i) => <li><b data-hue={i % 8}>{String.fromCharCode(65 + i)}</b> {t.label} <SourceTag trial={t} /></li>)}</ol>
      <div class="scroll" tabindex={0} role="region" aria-label="Differences">
        <table id="differences"><thead><tr><th class="left" scope="col">to A</th>{trials.map((_, i) => <th scope="col">{String.fromCharCode(65 + i)}</th>)}</tr></thead>
          <tbody>{rows.map(([name, s]) => {
            const q = model.quantities.get(name)!;
            return (
              <tr><th class="left" scope="row">{q.short}{q.has_statistics ? ` ${s}` : ''}</th>
                <td>{shown(model.values.of(first, name, s), q.unit)}</td>
                {others.map((t) => {
                  const found = difference(model, first, t, name, s);
                  const value = shown(model.values.of(t, name, s), q.unit);
                  if (!found) return <td>{value === DASH ? DASH : value}</td>;
                  const tie = found.ends && found.ends[0] <= 0 && found.ends[1] >= 0;
                  const better = (found.fraction > 0) === q.maximize;
                  return (
                    <td>{value}<small class={`ends ${found.ends && !tie ? (better ? 'better-by' : 'worse-by') : ''}`}>{percent(found.fraction)}{found.ends ? ` (${percent(found.ends[0])} to ${percent(found.ends[1])})` : ''}{tie ? ', not told apart' : ''}</small></td>);
                })}
              </tr>);
          })}</tbody>
        </table>
      </div>
      <p class="note">{rows.some(([n, s]) => trials.some((t) => intervalOf(t, n, s))) ? 'In brackets the 95% interval of the difference.' : 'These records have no sampling intervals, so it is not known which differences are more than chance.'}</p>
    </>
  );
}
