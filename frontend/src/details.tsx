/* All of one trial: in a dialog beside the charts, or as the page of a single run. */
import type { ComponentChildren, JSX } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
import type { Json } from './data';
import { deployCommand } from './files';
import type { Model } from './model';
import { Command, CopyButton, FailedTag, SourceTag } from './parts';
import type { State } from './state';
import { StandingWords } from './table';
import type { Trial } from './view';
import { DASH, known, rangeText, shown } from './words';

const text = (v: Json | undefined): string => (v === null || v === undefined ? DASH
  : typeof v === 'number' ? v.toLocaleString('en-US', { maximumSignificantDigits: 6, useGrouping: false }) : typeof v === 'object' ? JSON.stringify(v) : String(v));

function Rows({ values }: { values: Record<string, Json | undefined> }): JSX.Element {
  return <dl class="rows">{Object.entries(values).map(([name, v]) => <div><dt>{name}</dt><dd>{text(v)}</dd></div>)}</dl>;
}

function Part({ title, when = true, children }: { title: string; when?: boolean; children: ComponentChildren }): JSX.Element | null {
  return when ? <section><h3>{title}</h3>{children}</section> : null;
}

const some = (values: Record<string, Json> | null): boolean => values !== null && Object.keys(values).length > 0;
const plain = (results: Record<string, Json> | null) => Object.fromEntries(Object.entries(results ?? {}).filter(([name]) => name !== 'quantiles'));

export function DetailParts({ model, trial, state }: { model: Model; trial: Trial; state: State }): JSX.Element {
  const pair = model.data.pairs.find((p) => p.key === trial.key && p.own);
  return (
    <div class="parts">
      <Part title="Why it failed" when={trial.status !== 'ok'}>
        <p>{trial.failure ? `${trial.failure.kind}: ${trial.failure.reason}` : 'The record does not say why.'}</p>
        {trial.failure?.log_tail ? <details open><summary>server log, last lines</summary><pre>{trial.failure.log_tail}</pre></details> : null}
      </Part>
      <Part title="From the trials" when={trial.suggestions.length > 0}>{trial.suggestions.map((s) => <p class="suggestion">{s}.</p>)}</Part>
      <Part title="Launch and deploy">
        <Command text={trial.cmd}><CopyButton text={() => deployCommand(model, trial, state)}>Copy deploy command</CopyButton></Command>
      </Part>
      <Part title="Predicted and measured" when={Boolean(pair)}>{pair ? <Predicted model={model} pair={pair} /> : null}</Part>
      <Part title="Server settings" when={some(trial.server)}><Rows values={trial.server} /></Part>
      <Part title="Settings of the load" when={some(trial.client)}><Rows values={trial.client} /></Part>
      <Part title="Results (latencies in ms)" when={some(trial.results)}><Rows values={plain(trial.results)} /></Part>
      <Part title="Predicted" when={some(trial.predicted)}><Rows values={plain(trial.predicted)} /></Part>
      <Part title="Interval of predictions" when={some(trial.interval)}><Rows values={trial.interval ?? {}} /></Part>
      <Part title="Machine and model" when={some(trial.metadata)}><Rows values={trial.metadata} /></Part>
      <Part title="Provenance" when={some(trial.provenance)}><Rows values={trial.provenance} /></Part>
      <Part title="Journal"><Rows values={{ key: trial.key, 'server log': trial.server_log }} /></Part>
    </div>
  );
}

/** What was predicted for a measured trial: interval, ratio, and whether the measurement is inside. */
function Predicted({ model, pair }: { model: Model; pair: Model['data']['pairs'][number] }): JSX.Element {
  return (
    <div class="scroll" tabindex={0} role="region" aria-label="Predicted and measured"><table>
      <thead><tr>{['quantity', 'predicted', 'measured', 'ratio', '90% interval'].map((h, i) => <th class={i ? '' : 'left'} scope="col">{h}</th>)}</tr></thead>
      <tbody>{pair.gaps.filter((g) => known(g.predicted) && known(g.measured) && g.predicted).map((g) => {
        const q = model.quantities.get(g.quantity)!;
        return (
          <tr><th class="left" scope="row">{q.short}{q.has_statistics ? ` ${g.statistic}` : ''}</th>
            <td>{shown(g.predicted, q.unit)}{known(g.low) ? <small class="ends">{rangeText([g.low, g.high ?? null], q.unit)}</small> : null}</td>
            <td>{shown(g.measured, q.unit)}</td><td>{((g.measured ?? 0) / (g.predicted ?? 1)).toFixed(2)}×</td>
            <td class={g.inside === false ? 'inside-no' : ''}>{g.inside === null || g.inside === undefined ? DASH : g.inside ? 'inside' : 'outside'}</td></tr>);
      })}</tbody></table></div>
  );
}

export function Details({ model, trial, state, close }: { model: Model; trial: Trial; state: State; close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => { dialog.current?.showModal(); }, []);
  const limits = state.limits.filter((c) => c.on);
  return (
    <dialog class="drawer" ref={dialog} aria-labelledby="drawer-title" onClose={close} onClick={(e) => { if (e.target === dialog.current) dialog.current?.close(); }}>
      <div class="bar">
        <div><h2 id="drawer-title">{trial.label}</h2>
          <p class="note"><SourceTag trial={trial} /> <FailedTag trial={trial} /> <StandingWords standing={model.values.standing(trial, limits)} model={model} limited={limits.length > 0} /></p>
          {trial.failed_requests ? <p class="note">{trial.failed_requests.sentence}.</p> : null}
          {trial.miscounted ? <p class="note">{trial.miscounted}.</p> : null}
        </div>
        <button type="button" onClick={() => dialog.current?.close()}>Close</button>
      </div>
      <div class="body" tabindex={0} role="region" aria-label={`All of ${trial.label}`}><DetailParts model={model} trial={trial} state={state} /></div>
    </dialog>
  );
}
