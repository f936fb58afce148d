/* The bar of a page that follows a run: what is measured now, the best so far, Stop and Put off. */
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Live, PageData, StatusMessage } from './data';
import { digits, duration, known, percent, plural, shown } from './words';

const TOKEN = 'servetune token';

export function LiveBar({ live, follow }: { live: Live; follow: (data: PageData) => void }): JSX.Element {
  const [status, setStatus] = useState<StatusMessage>({ state: 'running' });
  const [lost, setLost] = useState(false);
  const [answer, setAnswer] = useState('');
  const [asking, setAsking] = useState<string | null>(null);
  const token = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const source = new EventSource(live.events);
    source.addEventListener('page', (e) => { setLost(false); follow(JSON.parse((e as MessageEvent<string>).data) as PageData); });
    source.addEventListener('status', (e) => { setLost(false); setStatus(JSON.parse((e as MessageEvent<string>).data) as StatusMessage); });
    source.addEventListener('open', () => setLost(false));
    source.addEventListener('error', () => setLost(true));
    return () => source.close();
  }, [live.events]);
  useEffect(() => token.current?.focus(), [asking]);
  /** The trial that was shown when the order was given: a late order does not end the next one. */
  const [trial, setTrial] = useState('');
  const send = async (action: string, word: string, trial: string) => {
    try {
      const reply = await fetch(live.control, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ action, token: word, trial: action === 'put_off' ? trial : '' }) });
      if (reply.ok) { sessionStorage.setItem(TOKEN, word); setAnswer(action === 'stop' ? 'The run stops; trials that ended are kept' : 'The running trial is put off'); return; }
      const wrong = reply.status === 401 || reply.status === 403;
      if (wrong) sessionStorage.removeItem(TOKEN);
      setAnswer(wrong ? 'The token is not that of the terminal' : `Not done: ${(await reply.text()).slice(0, 200)}`);
    } catch { setAnswer('The server of this page does not answer'); }
  };
  const act = (action: string) => {
    const key = status.running?.[0]?.key ?? '';
    setTrial(key);
    const kept = sessionStorage.getItem(TOKEN);
    if (kept) void send(action, kept, key);
    else setAsking(action);
  };
  const facts: [string, string | null][] = [
    ['Running', status.label ?? null], ['Stage', status.stage ?? null],
    ['Throughput', known(status.throughput) ? shown(status.throughput, 'tokens/s') : null],
    ['Failed requests', known(status.errors) ? digits(status.errors) : null],
    ['Elapsed', known(status.elapsed_s) ? duration(status.elapsed_s * 1000) : null],
    ['Best so far', status.best ? `${status.best.label}${known(status.best.value) ? `, ${status.best.metric} ${digits(status.best.value)}` : ''}` : null],
    ['Regret so far', known(status.regret_fraction) ? percent(status.regret_fraction).replace('+', '') : null],
    ['Time left', known(status.time_left_s) ? duration(status.time_left_s * 1000) : null],
  ];
  const ended = status.state !== undefined && status.state !== 'running';
  return (
    <section class="card live" aria-label="Running" data-lost={String(lost)}>
      <div class="head">
        <h2><span class={`pulse${lost || ended ? ' still' : ''}`} aria-hidden="true" />{lost ? 'Connection lost; trying again' : ended ? (status.state === 'lost' ? 'The run is gone without a word' : 'The run is not in progress') : 'Live'}
          {known(status.done) && known(status.of) ? <span class="muted"> · {status.done} of {plural(status.of, 'trial')}</span> : null}</h2>
        {ended ? null : (
          <div class="controls">
            <button type="button" disabled={Boolean(status.refuses_put_off) || !status.label} title={status.refuses_put_off || undefined} onClick={() => act('put_off')}>Put off this trial</button>
            <button type="button" class="danger" onClick={() => act('stop')}>Stop the run</button>
          </div>)}
      </div>
      {known(status.done) && known(status.of) ? <progress value={status.done} max={Math.max(1, status.of)} aria-label="Trials that ended" /> : null}
      <dl class="facts">{facts.filter(([, v]) => v !== null).map(([n, v]) => <div><dt>{n}</dt><dd>{v}</dd></div>)}</dl>
      {asking ? (
        <form class="add" onSubmit={(e) => { e.preventDefault(); const word = token.current?.value.trim() ?? ''; const action = asking; setAsking(null); if (word) void send(action, word, trial); }}>
          <label>Token, printed in the terminal <input ref={token} type="password" autocomplete="off" /></label>
          <button type="submit" class="strong">{asking === 'stop' ? 'Stop' : 'Put off'}</button>
          <button type="button" onClick={() => setAsking(null)}>Cancel</button>
        </form>) : null}
      <p class="note" role="status">{answer || status.note}</p>
    </section>
  );
}
