/* The page: header, limits, filters, picks, charts and table of a study, or all of a single run. */
import type { ComponentChildren, JSX } from 'preact';
import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { CHARTS } from './charts';
import { intervalOf } from './choice';
import type { PageData, PageObjective, Timeline } from './data';
import { Details, DetailParts } from './details';
import { copy, csvText, download, markdown } from './files';
import { Filters, Limits } from './limits';
import { LiveBar } from './live';
import * as load from './load';
import { Model } from './model';
import { Figure, FailedTag, Select, SourceTag } from './parts';
import { Picks, titleOf } from './picks';
import { MOST_COMPARED, Selected, Statistics } from './selected';
import { fromHash, initialState, toHash, type LogChoice, type State } from './state';
import { PAGE, Trials } from './table';
import * as distributions from './charts/distributions';
import * as timeline from './timeline';
import { tip } from './tip';
import * as tradeoff from './tradeoff';
import type { Measure, Trial, View } from './view';
import { count, digits, known, percent, plural, rangeText, shown } from './words';

/** Trials above which charts are drawn only near the screen. */
const LAZY = 500;

export function App({ first }: { first: PageData }): JSX.Element {
  const [data, setData] = useState(first);
  const model = useMemo(() => new Model(data), [data]);
  const initial = useMemo(() => initialState(data), [data]);
  const [state, setState] = useState(() => fromHash(location.hash, initial, data));
  const [dark, setDark, printing] = useTheme();
  const [opened, open] = useState<Trial | null>(null);
  const set = useCallback((change: Partial<State>) => setState((now) => ({ ...now, ...change })), []);
  useEffect(() => {
    const hash = toHash(state, initial);
    if (hash === location.hash.replace(/^#/, '')) return;
    // A frame of a notebook has no address of its own, and refuses.
    try { history.replaceState(null, '', hash ? `#${hash}` : location.pathname + location.search); } catch { /* the view is kept all the same */ }
  }, [state, initial]);
  useEffect(() => {
    const changed = () => setState((now) => (location.hash.replace(/^#/, '') === toHash(now, initial) ? now : fromHash(location.hash, initial, data)));
    window.addEventListener('hashchange', changed);
    return () => window.removeEventListener('hashchange', changed);
  }, [initial, data]);
  useEffect(() => { document.documentElement.dataset['ready'] = 'true'; });
  const select = useCallback((keys: readonly string[], add = false) => setState((now) => {
    const [key] = keys;
    const wanted = add && keys.length === 1 && key !== undefined
      ? (now.selection.includes(key) ? now.selection.filter((k) => k !== key) : [...now.selection, key])
      : add ? [...new Set([...now.selection, ...keys])] : [...keys];
    return { ...now, selection: wanted.slice(-MOST_COMPARED) };
  }), []);
  const view = useMemo(() => model.view(state, select, dark, tip), [model, state.limits, state.filters, state.text, state.kind, state.selection, state.colour, state.shape, dark, printing]);
  const { trials } = data;
  const failed = trials.length > 0 && trials.every((t) => t.status !== 'ok');
  if (failed) document.documentElement.dataset['failed'] = 'all';
  const further = CHARTS.some((chart) => chart.input(data, view) != null);
  const parts = { model, state, set, view, select, open };
  return (
    <>
      <a class="skip" href={trials.length === 1 ? '#run' : '#trials'} onClick={(e) => { e.preventDefault(); document.getElementById(trials.length === 1 ? 'run' : 'trials')?.focus(); }}>Skip to the trials</a>
      <Header model={model} state={state} dark={dark} setDark={setDark} />
      {data.live ? <LiveBar live={data.live} follow={setData} /> : null}
      <Simulated data={data} />
      {isEstimate(data) ? <p class="simulated"><span class="stamp">PREDICTED</span><span>By formula: nothing was run. Confirm a choice on the real machine before you rely on it.</span></p> : null}
      {!trials.length && !further ? <p class="card nothing">This journal holds no trials yet. {data.live ? 'The first one appears here when it ends.' : 'When the first one ends, make this page again with: servetune report'}</p> : null}
      {failed ? <p class="card nothing">{trials.length === 1 ? 'The one trial' : `All ${trials.length} trials`} failed, so there is nothing to pick or draw. {trials.length === 1 ? 'Its log is below.' : 'The table says why.'}</p> : null}
      <main>
        {trials.length === 1 ? <Run {...parts} trial={trials[0]!} /> : trials.length ? <Study {...parts} failed={failed} /> : further ? <div class="grid"><Further data={data} view={view} lazy={false} /></div> : null}
      </main>
      <Footer data={data} />
      {opened ? <Details key={opened.key} model={model} trial={opened} state={state} close={() => open(null)} /> : null}
    </>
  );
}

interface Parts {
  model: Model; state: State; set: (change: Partial<State>) => void; view: View;
  select: (keys: readonly string[], add?: boolean) => void; open: (trial: Trial | null) => void;
}

function Study({ model, state, set, view, select, open, failed }: Parts & { failed: boolean }): JSX.Element {
  const { data } = model;
  const picks = model.picks(view.limits);
  const names = useMemo(() => {
    const made = new Map<string, string[]>();
    for (const o of data.objectives) { const key = picks[o.name]?.chosen?.key; if (key) made.set(key, [...(made.get(key) ?? []), titleOf(o).short]); }
    return made;
  }, [picks, data]);
  const lazy = data.trials.length > LAZY;
  const selected = useMemo(() => {
    const keys = state.selection.length ? state.selection : [...names.keys()].slice(0, 1);
    const found = keys.map((key) => model.byKey.get(key)).filter((t): t is Trial => Boolean(t));
    return found.length ? found : data.trials.slice(0, 1);
  }, [state.selection, names, model]);
  const setLimit = useCallback((index: number, value: number) => set({ limits: state.limits.map((c, i) => (i === index ? { ...c, value } : c)) }), [state.limits]);
  const drawTradeoff = useMemo(() => (host: HTMLElement, v: View) => tradeoff.draw(host, { state, picks: names, allLimits: state.limits, setZoom: (zoom) => set({ zoom }), setLimit }, v),
    [state.x, state.y, state.xLog, state.yLog, state.zoom, state.colour, state.shape, state.limits, names, setLimit]);
  const drawLoad = useMemo(() => (host: HTMLElement, v: View) => load.draw(host, { state, first: new Set(names.keys()) }, v), [state.load, state.loadX, names]);
  // A trial that is selected on a chart is turned to in the table.
  const shown = view.trials;
  const time = selected.length === 1 ? timelineOf(data, selected[0]!) : null;
  if (failed) return <Trials model={model} state={state} set={set} trials={shown} select={select} open={open} />;
  return (
    <>
      <Limits model={model} state={state} set={set} />
      <Picks model={model} state={state} select={(key) => select([key])} />
      <Filters model={model} state={state} set={set} shown={shown.length} />
      <div class="grid">
        <Figure id="tradeoff" title="Trade-off" view={view} draw={drawTradeoff}
          controls={<TradeoffControls model={model} state={state} set={set} />}>
          <p class="note hint">Drag a limit’s line, or move it with the arrow keys. Drag an area to zoom, Ctrl and wheel too; Shift-drag moves, double click shows all.</p>
        </Figure>
        <Selected model={model} state={state} set={set} view={view} trials={selected} open={open} lazy={lazy} />
        {data.load ? (
          <Figure id="load" title="Latency and throughput under load" view={view} draw={drawLoad} wide lazy={lazy} controls={(
            <><MeasureControls model={model} words="Y" measure={state.load} set={(measure) => set({ load: measure })} />
              <label>X <Select label="X of the load curves" value={state.loadX} options={[['throughput', 'Output throughput'], ['load', 'Load']]} choose={(v) => set({ loadX: v as State['loadX'] })} /></label></>)} />) : null}
        {time ? <Requests time={time} title="Requests of the selected trial in time" state={state} set={set} view={view} lazy={lazy} /> : null}
        <Further data={data} view={view} lazy={lazy} />
      </div>
      <Comparison model={model} />
      <Trials model={model} state={state} set={set} trials={shown} select={select} open={open} />
    </>
  );
}

/** The charts of `charts/index.ts` that have something to draw. */
/** Charts that say nothing of a single run. */
const ALONE: readonly string[] = ['predicted', 'progress', 'machines'];

function Further({ data, view, lazy, without = [] }: { data: PageData; view: View; lazy: boolean; without?: readonly string[] }): JSX.Element {
  const cards = useMemo(() => CHARTS.filter((chart) => !without.includes(chart.name)).flatMap((chart) => {
    const input = chart.input(data, view);
    if (input === null || input === undefined) return [];
    const note = typeof chart.note === 'function' ? chart.note(input, view) : chart.note;
    return [{ chart, note, draw: (host: HTMLElement, v: View) => chart.draw(host, input, v) }];
  }), [data, view]);
  return <>{cards.map(({ chart, note, draw }) => <Figure key={chart.name} id={chart.name} title={chart.title} wide={chart.wide} lazy={lazy} view={view} note={note} draw={draw} />)}</>;
}

/** Whether the page is of a prediction, without any trial. */
const isEstimate = ({ trials, figures }: PageData): boolean => !trials.length && Boolean(figures.roofline ?? figures.machines?.length);

/** One trial: no picks and no trade-off, its numbers, timeline and distributions are the page. */
function Run({ model, state, set, view, trial }: Parts & { trial: Trial }): JSX.Element {
  const { data } = model;
  const time = timelineOf(data, trial);
  const drawLatencies = useMemo(() => (host: HTMLElement, v: View) => distributions.draw(host, { trials: [trial], metric: 'e2e_latency' }, v), [trial]);
  const saturated = ['server', 'saturation'].some((name) => { const note = trial.results[name]; return Boolean(note && typeof note === 'object' && !Array.isArray(note) && note['saturated']); });
  const measures: [string, string][] = [['output_throughput', 'mean'], ['request_throughput', 'mean'], ['ttft', 'mean'], ['ttft', 'p99'], ['itl', 'mean'], ['tpot', 'mean'], ['e2e_latency', 'mean'], ['e2e_latency', 'p99'], ['goodput', 'mean'], ['cost_per_million_tokens', 'mean'], ['energy_per_token_j', 'mean']];
  if (time) document.documentElement.dataset['timeline'] = String(time.total);
  return (
    <>
      {data.constraints.length || trial.status === 'ok' ? <Limits model={model} state={state} set={set} /> : null}
      <section class="card" id="run" tabindex={-1} aria-label="The run">
        <p class="lead">{trial.label} <SourceTag trial={trial} /> <FailedTag trial={trial} /></p>
        {trial.status === 'ok' ? (
          <dl class="figures">{measures.filter(([name, s]) => model.quantities.has(name) && model.values.of(trial, name, s) !== null).map(([name, s]) => {
            const q = model.quantities.get(name)!;
            const ends = intervalOf(trial, name, s);
            return <div><dt>{q.has_statistics ? `${q.short} ${s}` : q.title}</dt><dd>{shown(model.values.of(trial, name, s), q.unit)}{ends ? <small>{rangeText(ends, q.unit)}</small> : null}</dd></div>;
          })}</dl>) : null}
        {trial.failed_requests ? <p class="note">{trial.failed_requests.sentence}.</p> : null}
        {trial.miscounted ? <p class="note">{trial.miscounted}.</p> : null}
        {saturated ? <p class="lead saturated"><span class="stamp">SATURATED</span> Requests came faster than they were served: latencies grow with the length of the run and describe no steady state.</p> : null}
      </section>
      <div class="grid">
        {time ? <Requests time={time} title="Every request in time" state={state} set={set} view={view} lazy={false} /> : null}
        {trial.status === 'ok' ? (
          <Figure id="selected" title="Latencies" wide={!time} view={view} draw={drawLatencies}><Statistics model={model} trial={trial} /></Figure>) : null}
        <Further data={data} view={view} lazy={false} without={ALONE} />
      </div>
      {data.pairs.every((p) => p.own) ? null : <Comparison model={model} />}
      <section class="card" id="trials" aria-labelledby="h-all"><div class="head"><h2 id="h-all">All of this run</h2></div><DetailParts model={model} trial={trial} state={state} /></section>
    </>
  );
}

/** Timeline of a trial: the page of one trial has its own, that of a sweep those of some trials. */
const timelineOf = (data: PageData, trial: Trial): Timeline | null => data.timelines[trial.key] ?? (data.trials.length === 1 ? data.timeline : null);

/** Requests of one trial in time, a stretch of them at a time where there are many. */
function Requests({ time, title, state, set, view, lazy }: { time: Timeline; title: string; state: State; set: (change: Partial<State>) => void; view: View; lazy: boolean }): JSX.Element {
  const ranges = timeline.stretches(time);
  const requests = Math.min(state.requests, ranges.length - 1);
  const turn = (to: number) => set({ requests: Math.max(-1, Math.min(ranges.length - 1, to)) });
  const draw = useMemo(() => (host: HTMLElement, v: View) => timeline.draw(host, { timeline: time, requests }, v), [time, requests]);
  return (
    <Figure id="timeline" title={title} wide lazy={lazy} view={view} draw={draw} controls={ranges.length ? (
      <>
        <label>Requests <Select label="Requests" value={String(requests)} options={[['-1', `whole run, ${timeline.ROWS} of ${count(time.bars.length)}`], ...ranges.map(([a, b], i): [string, string] => [String(i), `${count(a)} to ${count(b)}`])]} choose={(v) => turn(+v)} /></label>
        <button type="button" aria-label="Earlier requests" onClick={() => turn(requests - 1)}>‹</button>
        <button type="button" aria-label="Later requests" onClick={() => turn(requests + 1)}>›</button>
      </>) : null} />
  );
}

function MeasureControls({ model, words, measure, set }: { model: Model; words: string; measure: Measure; set: (measure: Measure) => void }): JSX.Element {
  const { data, values } = model;
  const offered = useMemo(() => data.quantities.filter((q) => [...data.trials.slice(0, 500), ...data.references].some((t) => data.statistics.some((s) => values.of(t, q.name, s) !== null))), [model]);
  const latency = model.quantities.get(measure.name)!.has_statistics;
  const statistics = [...new Set([...data.statistics, measure.statistic])];
  return (
    <label>{words} <Select label={`${words}: quantity`} value={measure.name} options={offered.map((q) => [q.name, q.title])} choose={(name) => set({ name, statistic: model.quantities.get(name)!.has_statistics && !latency ? 'p99' : measure.statistic })} />
      <Select label={`${words}: statistic`} value={measure.statistic} hide={!latency} options={statistics.map((s) => [s, s])} choose={(statistic) => set({ name: measure.name, statistic })} />
    </label>
  );
}

function TradeoffControls({ model, state, set }: { model: Model; state: State; set: (change: Partial<State>) => void }): JSX.Element {
  const settings: [string, string][] = model.data.settings.map((s) => [s.name, s.short]);
  const log = (name: 'xLog' | 'yLog', words: string) => (
    <Select label={`${words}: scale`} value={state[name]} options={[['auto', 'auto'], ['off', 'linear'], ['on', 'log']]} choose={(v) => set({ [name]: v as LogChoice, zoom: null })} />);
  return (
    <>
      <span class="axis"><MeasureControls model={model} words="Y" measure={state.y} set={(y) => set({ y, zoom: null })} />{log('yLog', 'Y')}</span>
      <span class="axis"><MeasureControls model={model} words="X" measure={state.x} set={(x) => set({ x, zoom: null })} />{log('xLog', 'X')}</span>
      {settings.length ? <label>Colour <Select label="Colour" value={state.colour} options={[['', 'standing'], ...settings]} choose={(colour) => set({ colour })} /></label> : null}
      {settings.length ? <label>Shape <Select label="Shape" value={state.shape} options={[['', 'standing'], ...settings]} choose={(shape) => set({ shape })} /></label> : null}
      {state.zoom ? <button type="button" onClick={() => set({ zoom: null })}>Show all</button> : null}
    </>
  );
}

function Header({ model, state, dark, setDark }: { model: Model; state: State; dark: boolean; setDark: (dark: boolean) => void }): JSX.Element {
  const { data } = model;
  const { header } = data;
  const [said, say] = useState('');
  const leftOut = header.trial_count - data.trials.length;
  const price = header.price ? `$${header.price} per hour${header.price_source ? ` (${header.price_source})` : ''}` : null;
  const trials = `${count(header.trial_count)}${header.failed_count ? `, ${count(header.failed_count)} failed` : ''}${leftOut ? `; ${count(data.trials.length)} on this page` : ''}`;
  const facts: [string, string | null][] = [['Machine', header.machine], [header.instance ? 'Instance' : 'Price', [header.instance, price].filter(Boolean).join(', ') || null],
    ['Engine', header.engine], ['Workload', header.workload], [header.simulated_count === header.trial_count ? 'Simulated' : 'Measured', header.date], ['Trials', isEstimate(data) ? null : trials]];
  const summary = async () => { say((await copy(markdown(model, state))) ? 'Copied' : 'Not allowed here'); setTimeout(() => say(''), 1600); };
  return (
    <header class="top">
      <div class="top-line">
        <span class="brand">servetune</span>
        <div class="actions">
          <button type="button" id="summary" hidden={isEstimate(data)} onClick={summary}>{said || 'Copy summary'}</button>
          <button type="button" id="csv" hidden={isEstimate(data)} onClick={() => download(`${data.title || 'trials'}.csv`, csvText(model, state), 'text/csv')}>CSV</button>
          <button type="button" id="print" onClick={() => print()}>Print</button>
          <button type="button" id="theme" onClick={() => setDark(!dark)}>{dark ? 'Light' : 'Dark'}</button>
        </div>
      </div>
      <h1 id="title"><bdi>{header.model ?? data.title}</bdi></h1>
      <dl class="facts">{facts.filter(([, v]) => v).map(([name, v]) => <div><dt>{name}</dt><dd><bdi>{v}</bdi></dd></div>)}</dl>
    </header>
  );
}

function Simulated({ data }: { data: PageData }): JSX.Element | null {
  const { header } = data;
  if (!header.simulated_count) return null;
  const all = header.simulated_count === header.trial_count;
  const fast = header.simulated_speed ? ` At ${header.simulated_speed} times real time: latencies and costs are 1/${header.simulated_speed} of the engine’s, rates ${header.simulated_speed} times.` : '';
  const who = header.trial_count === 1 ? 'This trial was' : `All ${count(header.trial_count)} trials were`;
  return (
    <p class="simulated"><span class="stamp">SIMULATED</span><span>{all ? `${who} simulated: no model ran. Confirm a choice on the real machine before you rely on it.`
      : `${count(header.simulated_count)} of ${count(header.trial_count)} trials were simulated; they are marked, and drawn hollow.`}{fast}{header.accuracy ? ` Accuracy of predictions: ${header.accuracy}.` : ''}</span></p>
  );
}

function Comparison({ model }: { model: Model }): JSX.Element | null {
  const { pairs } = model.data;
  const [all, showAll] = useState(false);
  const [head] = pairs;
  if (!head) return null;
  const errors = pairs.flatMap((p) => p.gaps).map((g) => g.error_fraction).filter(known).map(Math.abs).sort((a, b) => a - b);
  const middle = errors.length ? (errors[Math.floor((errors.length - 1) / 2)]! + errors[Math.ceil((errors.length - 1) / 2)]!) / 2 : null;
  const rows = all ? pairs : pairs.slice(0, PAGE);
  return (
    <section class="card" id="comparison" aria-labelledby="h-comparison">
      <div class="head"><h2 id="h-comparison">Predicted and measured</h2></div>
      <p class="note">The same configuration twice: predicted → measured, and by how much the prediction is too high (+) or too low (−).{middle === null ? '' : ` Median absolute error over all ${errors.length} values: ${(middle * 100).toFixed(1)}%.`}</p>
      <div class="scroll" tabindex={0} role="region" aria-label="Predicted and measured"><table>
        <thead><tr><th class="left" scope="col">Configuration</th>{head.gaps.map((g) => {
          const q = model.quantities.get(g.quantity)!;
          return <th scope="col">{q.short}{q.has_statistics ? ` ${g.statistic}` : ''}<br />{q.has_statistics ? (g.quantity === 'e2e_latency' ? 's' : 'ms') : q.unit}</th>;
        })}</tr></thead>
        <tbody>{rows.map((p) => (
          <tr><th class="left" scope="row">{p.label}</th>{p.gaps.map((g) => {
            const off = known(g.error_fraction) ? Math.abs(g.error_fraction) : null;
            const per = g.quantity === 'e2e_latency' ? 1000 : 1;
            const plain = (v: number | null) => (known(v) ? digits(v / per) : '–');
            return <td><b class={off === null ? '' : off <= 0.1 ? 'near' : off <= 0.3 ? 'off' : 'far'}>{percent(g.error_fraction)}</b><small>{plain(g.predicted)} → {plain(g.measured)}</small></td>;
          })}</tr>))}</tbody>
      </table></div>
      {rows.length < pairs.length ? <button type="button" onClick={() => showAll(true)}>Show all {plural(pairs.length, 'pair')}</button> : null}
    </section>
  );
}

function Footer({ data }: { data: PageData }): JSX.Element {
  const leftOut = data.header.trial_count - data.trials.length;
  const said: ComponentChildren = data.live ? 'This page talks to nothing but its own server.' : 'This page loads nothing and sends nothing.';
  return (
    <footer class="footer">
      <p>TTFT: time to first token. ITL: gap between tokens, over all gaps. TPOT: time per output token after the first, one value per request. E2E: from when a request was due (in other tools’ journals: sent) to its last token. Latencies are over answered requests.</p>
      {leftOut ? <p id="left-out">This page holds {count(data.trials.length)} of {count(data.header.trial_count)} trials: the picks of all, the Pareto front, the best, an even sample of the others and of those that failed. Counts, charts, the table and choices under other limits are of these; the summary beside the page holds all.</p> : null}
      {data.search ? data.search.lines.map((line) => <p>{line}</p>) : null}
      <p>Made by servetune {data.servetune} {isEstimate(data) ? 'by formula' : 'from the journal alone'}. {said}</p>
    </footer>
  );
}

/** Theme of the system until the reader chooses; paper is light. */
function useTheme(): [boolean, (dark: boolean) => void, boolean] {
  const asked = new URLSearchParams(location.search).get('theme');
  const system = useRef(matchMedia('(prefers-color-scheme: dark)'));
  const [chosen, choose] = useState<boolean | null>(asked === 'dark' ? true : asked === 'light' ? false : null);
  const [systemDark, setSystemDark] = useState(system.current.matches);
  const [printing, setPrinting] = useState(false);
  useEffect(() => {
    const changed = () => setSystemDark(system.current.matches);
    const [before, after] = [() => setPrinting(true), () => setPrinting(false)];
    system.current.addEventListener('change', changed);
    window.addEventListener('beforeprint', before);
    window.addEventListener('afterprint', after);
    return () => { system.current.removeEventListener('change', changed); window.removeEventListener('beforeprint', before); window.removeEventListener('afterprint', after); };
  }, []);
  const dark = !printing && (chosen ?? systemDark);
  document.documentElement.dataset['theme'] = dark ? 'dark' : 'light';
  return [dark, choose, printing];
}

export type { PageObjective };
