/* Limits as chips, with a form that adds or changes one; and filters by any setting. */
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Menu, Select } from './parts';
import type { Model } from './model';
import type { State } from './state';
import type { Limit } from './view';
import { LATENCIES, SIGNS, count, known, limitText, plural } from './words';

type Set = (change: Partial<State>) => void;
/** Quantities that are made of others, and can therefore not be a limit of the command line. */
const DERIVED = ['output_throughput_per_gpu', 'user_throughput'];

export function Limits({ model, state, set }: { model: Model; state: State; set: Set }): JSX.Element {
  const [editing, edit] = useState<number | null>(null); // -1 adds
  const { limits } = state;
  const ok = model.data.trials.filter((t) => t.status === 'ok');
  const on = limits.filter((c) => c.on);
  const standings = model.standings(on);
  const meeting = ok.filter((t) => standings[t.id]!.kind === 'meets').length;
  const change = (index: number, to: Limit | null) => set({ limits: to ? limits.map((c, i) => (i === index ? to : c)) : limits.filter((_, i) => i !== index) });
  return (
    <section class="limits" aria-label="Limits">
      <div class="chips">
        <span class="muted">Limits</span>
        {limits.map((c, i) => {
          const words = limitText(c, model.quantities);
          const met = ok.filter((t) => model.values.holds(c, t) === true).length;
          return (
            <span class="chip" data-on={String(c.on)}>
              <button type="button" aria-pressed={c.on} title={c.on ? 'Switch off' : 'Switch on'} onClick={() => change(i, { ...c, on: !c.on })}>
                {c.on ? '✓ ' : ''}{words}<small>{count(met)}/{count(ok.length)}</small>
              </button>
              <button type="button" class="side" aria-label={`Change ${words}`} aria-expanded={editing === i} onClick={() => edit(editing === i ? null : i)}>✎</button>
              {c.added ? <button type="button" class="side" aria-label={`Remove ${words}`} onClick={() => { edit(null); change(i, null); }}>×</button> : null}
            </span>
          );
        })}
        <button type="button" id="add-open" aria-expanded={editing === -1} onClick={() => edit(editing === -1 ? null : -1)}>+ Add limit</button>
      </div>
      {editing === null ? null : (
        <LimitForm key={editing} model={model} limit={editing < 0 ? null : limits[editing] ?? null}
          done={(made) => { if (made && editing < 0) set({ limits: [...limits, made] }); else if (made) change(editing, made); edit(null); }} />)}
      <p class="standing" role="status">{on.length
        ? <><strong>{count(meeting)} of {count(ok.length)}</strong> finished {ok.length === 1 ? 'trial' : 'trials'} meet {on.length === 1 ? 'it' : `all ${on.length}`}</> : 'No limit is on'}</p>
    </section>
  );
}

function LimitForm({ model, limit, done }: { model: Model; limit: Limit | null; done: (made: Limit | null) => void }): JSX.Element {
  const [metric, setMetric] = useState(limit?.metric ?? 'e2e_latency');
  const [statistic, setStatistic] = useState(limit?.statistic ?? 'p99');
  const [op, setOp] = useState(limit?.op ?? '<=');
  const inSeconds = limit ? LATENCIES.includes(limit.metric) && limit.value >= 1000 : false;
  const [unit, setUnit] = useState(inSeconds ? 's' : 'ms');
  const value = useRef<HTMLInputElement>(null);
  const form = useRef<HTMLFormElement>(null);
  const quantity = model.quantities.get(metric)!;
  const latency = quantity.has_statistics;
  useEffect(() => { (limit ? value.current : form.current?.querySelector('select'))?.focus(); }, []);
  const choose = (name: string) => { setMetric(name); setOp(model.quantities.get(name)!.maximize ? '>=' : '<='); };
  const submit = (e: Event) => {
    e.preventDefault();
    const text = value.current!.value;
    const made = Number(text) * (latency && unit === 's' ? 1000 : 1);
    if (text !== '' && known(made)) done({ metric, statistic: latency ? statistic : 'mean', op, value: made, on: true, added: limit?.added ?? true });
  };
  const statistics = [...new Set([...model.data.statistics, 'p99.9', statistic])];
  return (
    <form class="add" id="add" ref={form} onSubmit={submit} onKeyDown={(e) => { if (e.key === 'Escape') done(null); }}>
      <Select label="Metric" value={metric} options={model.data.quantities.filter((q) => !DERIVED.includes(q.name)).map((q) => [q.name, q.title])} choose={choose} />
      <Select label="Statistic" value={statistic} hide={!latency} options={statistics.map((s) => [s, s])} choose={setStatistic} />
      <Select label="Operator" value={op} options={Object.entries(SIGNS)} choose={setOp} />
      <input type="number" step="any" required aria-label="Value" placeholder="value" ref={value}
        defaultValue={limit ? String(+(inSeconds ? limit.value / 1000 : limit.value).toPrecision(6)) : ''} />
      {latency ? <Select label="Unit" value={unit} options={[['ms', 'ms'], ['s', 's']]} choose={setUnit} /> : <span class="muted">{quantity.unit === 'USD' ? 'US$' : quantity.unit}</span>}
      <button type="submit" class="strong">{limit ? 'Change' : 'Add'}</button>
      <button type="button" onClick={() => done(null)}>Cancel</button>
    </form>
  );
}

export function Filters({ model, state, set, shown }: { model: Model; state: State; set: Set; shown: number }): JSX.Element {
  const { data } = model;
  const total = data.trials.length;
  const choose = (name: string, all: readonly string[], value: string, wanted: boolean) => {
    const now = state.filters[name] ?? [...all];
    const next = wanted ? [...now, value] : now.filter((v) => v !== value);
    const filters = { ...state.filters };
    if (next.length === all.length) delete filters[name];
    else filters[name] = all.filter((v) => next.includes(v));
    set({ filters, page: 0, zoom: null });
  };
  const filtered = Boolean(Object.keys(state.filters).length || state.text || state.kind);
  return (
    <section class="filters" aria-label="Filters of charts and table">
      <span class="muted">Show</span>
      <input type="search" size={16} aria-label="Find trials" placeholder="Find…" value={state.text} onInput={(e) => set({ text: e.currentTarget.value, page: 0 })} />
      <Select label="Standing" value={state.kind} options={[['', 'any standing'], ['meets', 'meets'], ['misses', 'misses'], ['failed', 'failed']]} choose={(kind) => set({ kind, page: 0 })} />
      {data.settings.map((s) => {
        const all = model.valuesOf(s);
        const now = state.filters[s.name];
        const label = now ? `${s.short}: ${now.length === 0 ? 'none' : now.length <= 3 ? now.join(', ') : `${now.length} of ${all.length}`}` : s.short;
        return (
          <Menu label={label} on={Boolean(now)}>
            <div class="row"><button type="button" class="small" onClick={() => { const filters = { ...state.filters }; delete filters[s.name]; set({ filters, page: 0 }); }}>All</button>
              <button type="button" class="small" onClick={() => set({ filters: { ...state.filters, [s.name]: [] }, page: 0 })}>None</button></div>
            {all.slice(0, 200).map((v) => (
              <label class="check"><input type="checkbox" checked={!now || now.includes(v)} onChange={(e) => choose(s.name, all, v, e.currentTarget.checked)} /> {v}</label>))}
            {all.length > 200 ? <p class="note">{plural(all.length - 200, 'further value')}: use Find</p> : null}
          </Menu>
        );
      })}
      {filtered ? <button type="button" class="small" onClick={() => set({ filters: {}, text: '', kind: '', page: 0 })}>Show all</button> : null}
      <span class="standing" role="status">{filtered ? <><strong>{count(shown)} of {count(total)}</strong> trials shown; picks are of all</> : ''}</span>
    </section>
  );
}
