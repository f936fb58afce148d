/* The table of trials, the drawer with all of one trial, and the CSV. */
const METRIC_COLUMNS = [['output_throughput', 'mean'], ['request_throughput', 'mean'], ['ttft', 'mean'], ['ttft', 'p99'], ['itl', 'mean'], ['tpot', 'mean'], ['e2e_latency', 'mean'], ['e2e_latency', 'p99'], ['cost_per_million_tokens', 'mean']];

function columns() {
  const settings = DATA.settings.map((s) => ({ id: s.name, head: s.short.split(' '), setting: true, value: (t) => t[s.side][s.name] ?? null }));
  const metrics = METRIC_COLUMNS.map(([name, statistic]) => {
    const quantity = QUANTITY[name];
    const values = TRIALS.map((t) => valueOf(t, name, statistic)).filter(known);
    const unit = axisUnit(quantity, values.length ? Math.max(...values) : 0);
    const least = values.length ? Math.min(...values.filter((v) => v > 0)) / unit.per : 1;
    const places = Math.max(0, Math.min(3, 2 - Math.floor(Math.log10(least))));
    return { id: `${statistic} ${name}`, head: [`${quantity.short}${quantity.has_statistics ? ` ${statistic}` : ''}`, quantity.unit === 'USD' ? '' : unit.text], value: (t) => valueOf(t, name, statistic),
      words: (v) => (v / unit.per).toLocaleString('en-US', { minimumFractionDigits: places, maximumFractionDigits: places }) };
  });
  const failing = TRIALS.some((t) => t.status === 'ok' && t.failed_requests)
    ? [{ id: 'error_rate', head: ['Requests', 'failed'], value: (t) => valueOf(t, 'error_rate'), words: (v, t) => (t.failed_requests ? t.failed_requests.fraction : '0') }] : [];
  // Below those of the same standing where too many requests failed, as in the ranking.
  const merit = (t) => ({ meets: 0, misses: 2, failed: 8 })[standing(t, active()).kind] + 4 * Boolean(t.miscounted) + tooManyFailed(t, active());
  return [{ id: 'standing', head: ['Standing'], left: true, value: merit }, ...settings, ...metrics, ...failing];
}

function visibleTrials() {
  const { text, kind, settings } = state.filter;
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  return TRIALS.filter((t) => {
    if (kind && standing(t, active()).kind !== kind) return false;
    if (Object.entries(settings).some(([name, value]) => value !== '' && String(t.server[name] ?? t.client[name] ?? DASH) !== value)) return false;
    const words = `${t.label} ${t.cmd} ${t.failure ? `${t.failure.kind} ${t.failure.reason}` : ''} ${t.simulated ? 'simulated' : 'measured'} ${failedMark(t) || ''}`.toLowerCase();
    return wanted.every((w) => words.includes(w));
  });
}

function drawTable() {
  const all = columns();
  const { id, descending } = state.sort;
  const by = all.find((c) => c.id === id) || all[0];
  const compare = (a, b) => {
    const [x, y] = [by.value(a), by.value(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y), 'en', { numeric: true });
    return descending ? -order : order;
  };
  const rows = visibleTrials().sort((a, b) => compare(a, b) || (valueOf(b, 'output_throughput', 'mean') || 0) - (valueOf(a, 'output_throughput', 'mean') || 0));
  const head = make('tr', {}, all.map((c) => make('th', { scope: 'col', class: c.left ? 'left' : null, 'aria-sort': c.id === by.id ? (descending ? 'descending' : 'ascending') : null },
    make('button', { type: 'button', onclick: () => { state.sort = { id: c.id, descending: c.id === by.id ? !descending : false }; drawTable(); } }, c.head.flatMap((h, i) => (i ? [make('br'), h] : [h]))))), make('th', {}, ''));
  byId('table').replaceChildren(make('table', {}, make('thead', {}, head), make('tbody', {}, rows.map((t) => tableRow(t, all)))));
  byId('table-note').textContent = rows.length === TRIALS.length ? '' : `${rows.length} of ${TRIALS.length} trials shown`;
  document.documentElement.dataset.rows = rows.length;
}

function tableRow(trial, all) {
  const { kind, missed, unknown } = standing(trial, active());
  const settings = all.filter((c) => c.setting);
  const metrics = all.filter((c) => c.words);
  const failing = trial.failure;
  const cells = kind === 'failed'
    ? [make('td', { class: 'left reason', colspan: metrics.length }, failing ? `${failing.kind}: ${failing.reason}` : 'the record does not say why',
      failing && failing.log_tail ? make('details', { onclick: (e) => e.stopPropagation() }, make('summary', {}, 'server log, last lines'), make('pre', {}, failing.log_tail)) : '')]
    : metrics.map((c) => { const v = c.value(trial); return make('td', {}, v === null ? DASH : c.words(v, trial)); });
  return make('tr', { 'data-row': trial.id, 'data-standing': kind, 'data-simulated': String(trial.simulated), 'aria-selected': String(trial.id === state.selected), onclick: () => select(trial.id, false) },
    make('td', { class: 'left' }, standingWords(kind, missed, unknown), trial.simulated ? make('span', {}, ' ', make('span', { class: 'tag simulated-tag' }, 'sim')) : '',
      failedMark(trial) ? make('span', {}, ' ', failedTag(trial)) : ''),
    settings.map((c) => { const v = c.value(trial); return make('td', {}, v === null ? DASH : String(v)); }), cells,
    make('td', {}, make('button', { type: 'button', class: 'open', 'aria-label': `Details of ${trial.label}`, onclick: (e) => { e.stopPropagation(); select(trial.id, false); openDrawer(); } }, 'Details')));
}

function standingWords(kind, missed, unknown) {
  const short = (c) => `${QUANTITY[c.metric].short}${LATENCIES.includes(c.metric) ? ` ${c.statistic}` : ''}`;
  const icon = svg('svg', { width: 14, height: 14, viewBox: '0 0 14 14', 'aria-hidden': 'true' }, mark(kind, 7, 7, false, {}, 4));
  const words = { meets: active().length ? 'meets' : 'ok', misses: 'misses', failed: 'failed' }[kind];
  const which = [...missed.map(short), ...unknown.map((c) => `${short(c)} (not measured)`)].join(', ');
  return make('span', { class: `stand ${kind}` }, icon, words, which ? make('span', { class: 'missed' }, which) : '');
}

function drawFilters() {
  const redraw = (change) => (e) => { change(e.target.value); drawTable(); };
  const choice = (label, options, change) => make('label', {}, label, make('select', { onchange: redraw(change) }, options.map(([value, words]) => make('option', { value }, words))));
  byId('filters').replaceChildren(
    make('label', {}, 'Find', make('input', { type: 'search', size: 14, oninput: redraw((v) => { state.filter.text = v; }) })),
    choice('Standing', [['', 'all'], ['meets', 'meets'], ['misses', 'misses'], ['failed', 'failed']], (v) => { state.filter.kind = v; }),
    ...DATA.settings.slice(0, 5).map((s) => {
      const values = [...new Set(TRIALS.map((t) => String(t[s.side][s.name] ?? DASH)))].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
      return choice(s.short, [['', 'all'], ...values.map((v) => [v, v])], (v) => { state.filter.settings[s.name] = v; });
    }));
}

function openDrawer() {
  const trial = TRIALS[state.selected];
  const text = (v) => (v === null || v === undefined ? DASH : typeof v === 'number' ? v.toLocaleString('en-US', { maximumSignificantDigits: 6, useGrouping: false }) : typeof v === 'object' ? JSON.stringify(v) : String(v));
  const rows = (values) => make('dl', { class: 'rows' }, Object.entries(values).flatMap(([name, v]) => [make('dt', {}, name), make('dd', {}, text(v))]));
  const part = (title, content, when = true) => (when ? make('section', {}, make('h3', {}, title), content) : '');
  const some = (values) => values && Object.keys(values).length > 0;
  const plain = (results) => Object.fromEntries(Object.entries(results || {}).filter(([name]) => name !== 'quantiles'));
  const { kind, missed, unknown } = standing(trial, active());
  byId('drawer').replaceChildren(
    make('div', { class: 'bar' }, make('div', {}, make('h2', { id: 'drawer-title' }, trial.label), make('p', { class: 'note' }, sourceTag(trial), ' ', failedTag(trial), ' ', standingWords(kind, missed, unknown)),
      trial.failed_requests ? make('p', { class: 'note' }, `${trial.failed_requests.sentence}.`) : '',
      trial.miscounted ? make('p', { class: 'note' }, `${trial.miscounted}.`) : ''),
      make('button', { type: 'button', onclick: () => byId('drawer').close() }, 'Close')),
    make('div', { class: 'body' },
      part('Why it failed', make('div', {}, make('p', {}, trial.failure ? `${trial.failure.kind}: ${trial.failure.reason}` : ''), trial.failure && trial.failure.log_tail ? make('details', { open: true }, make('summary', {}, 'server log, last lines'), make('pre', {}, trial.failure.log_tail)) : ''), kind === 'failed'),
      part('From the trials', make('div', {}, trial.suggestions.map((s) => make('p', { class: 'suggestion' }, `${s}.`))), trial.suggestions.length > 0),
      part('Server command', trial.cmd ? command(trial.cmd) : ''  , Boolean(trial.cmd)),
      part('Server settings', rows(trial.server), some(trial.server)), part('Client settings', rows(trial.client), some(trial.client)),
      part('Results (latencies in ms)', rows(plain(trial.results)), some(trial.results)), part('Predicted and measured', predictedTable(trial), DATA.pairs.some((p) => p.key === trial.key && p.own)),
      part('Predicted', rows(plain(trial.predicted)), some(trial.predicted)), part('Interval of predictions', rows(trial.interval || {}), some(trial.interval)),
      part('Machine and model', rows(trial.metadata), some(trial.metadata)), part('Provenance', rows(trial.provenance), some(trial.provenance)),
      part('Journal', rows({ key: trial.key, 'server log': trial.server_log }))));
  byId('drawer').showModal();
}

/* What was predicted for a measured trial: interval, ratio, and whether the measurement is inside. */
function predictedTable(trial) {
  const pair = DATA.pairs.find((p) => p.key === trial.key && p.own);
  if (!pair) return '';
  const cells = pair.gaps.filter((g) => known(g.predicted) && known(g.measured) && g.predicted).map((g) => {
    const quantity = QUANTITY[g.quantity];
    const value = (v) => shown(v, quantity.unit);
    const inside = g.inside === null ? DASH : g.inside ? 'inside' : 'outside';
    return make('tr', {}, make('th', { class: 'left', scope: 'row' }, `${quantity.short}${quantity.has_statistics ? ` ${g.statistic}` : ''}`),
      make('td', {}, value(g.predicted), known(g.low) ? make('small', { class: 'ends' }, `${value(g.low)} to ${value(g.high)}`) : ''),
      make('td', {}, value(g.measured)), make('td', {}, `${(g.measured / g.predicted).toFixed(2)}×`),
      make('td', { class: g.inside === false ? 'inside-no' : null }, inside));
  });
  return make('div', { class: 'scroll' }, make('table', {}, make('thead', {}, make('tr', {}, ['', 'predicted', 'measured', 'ratio', '90% interval'].map((h, i) => make('th', { class: i ? null : 'left', scope: 'col' }, h)))), make('tbody', {}, cells)));
}

/* Text that a spreadsheet would read as a formula is led by an apostrophe. */
function csvText() {
  const names = [...new Set(TRIALS.flatMap((t) => Object.entries(t.results).filter(([, v]) => v === null || typeof v !== 'object').map(([name]) => name)))]
    .filter((name) => !DATA.settings.some((s) => s.name === name));  // one column of a name
  const cell = (v) => {
    const text = v === null || v === undefined ? '' : typeof v === 'object' ? JSON.stringify(v) : String(v);
    const safe = typeof v !== 'number' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  const head = ['key', 'status', 'simulated', 'standing', ...DATA.settings.map((s) => s.name), ...names, 'failure', 'cmd'];
  const rows = TRIALS.map((t) => [t.key, t.status, t.simulated, standing(t, active()).kind, ...DATA.settings.map((s) => t[s.side][s.name]),
    ...names.map((n) => t.results[n]), t.failure ? `${t.failure.kind}: ${t.failure.reason}` : '', t.cmd]);
  return [head, ...rows].map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n';
}

function downloadCsv() {
  const address = URL.createObjectURL(new Blob([csvText()], { type: 'text/csv' }));
  const link = make('a', { href: address, download: `${(DATA.title || 'trials').replace(/[^\w.-]+/g, '_')}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
