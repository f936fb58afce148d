/* The page itself: what is chosen, and who draws when that changes. */
const DATA = JSON.parse(byId('data').textContent);
const TRIALS = DATA.trials;
const QUANTITY = Object.fromEntries(DATA.quantities.map((q) => [q.name, q]));
const state = {
  constraints: DATA.constraints.map((c) => ({ ...c, on: true, added: false })),
  picks: {},
  selected: 0,
  x: { name: 'e2e_latency', statistic: 'p99' },
  y: { name: 'output_throughput', statistic: 'mean' },
  requests: 'all',
  load: { name: 'e2e_latency', statistic: 'p99' },
  sort: { id: 'standing', descending: false },
  filter: { text: '', kind: '', settings: {} },
};
const active = () => state.constraints.filter((c) => c.on);

function refresh() {
  state.picks = Object.fromEntries(DATA.objectives.map((o) => [o.name, recommend(TRIALS, active(), o)]));
  drawConstraints();
  drawPicks();
  drawCharts();
  drawTable();
}
function drawCharts() {
  tip.hide();
  drawScatter();
  drawLoad();
  drawSelected();
  drawTimeline();
}
function select(id, reveal) {
  state.selected = id;
  drawScatter();
  drawSelected();
  drawTable();
  const row = document.querySelector(`[data-row="${id}"]`);
  if (reveal && row) row.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

/* A quantity and, where it has one, its statistic. Only what some trial has is offered. */
function axisControls(host, entries) {
  const has = (q) => [...TRIALS, ...DATA.references].some((t) => DATA.statistics.some((s) => valueOf(t, q.name, s) !== null));
  const offered = DATA.quantities.filter(has);
  host.replaceChildren(...entries.map(([words, axis]) => {
    const statistic = make('select', { 'aria-label': `${words}: statistic`, onchange: (e) => { axis.statistic = e.target.value; drawCharts(); } },
      DATA.statistics.map((s) => make('option', { value: s, selected: s === axis.statistic }, s)));
    const adapt = () => { statistic.hidden = !QUANTITY[axis.name].has_statistics; };
    const name = make('select', { 'aria-label': words, onchange: (e) => { axis.name = e.target.value; adapt(); drawCharts(); } },
      offered.map((q) => make('option', { value: q.name, selected: q.name === axis.name }, q.title)));
    adapt();
    return make('label', {}, words, name, statistic);
  }));
}

function wireTheme() {
  const asked = new URLSearchParams(location.search).get('theme');
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = asked === 'dark' || asked === 'light' ? asked : null;
  const apply = () => {
    const now = chosen || (system.matches ? 'dark' : 'light');
    document.documentElement.dataset.theme = now;
    byId('theme').textContent = now === 'dark' ? 'Light' : 'Dark';
  };
  byId('theme').addEventListener('click', () => { chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'; apply(); });
  system.addEventListener('change', apply);
  window.addEventListener('beforeprint', () => { document.documentElement.dataset.theme = 'light'; });
  window.addEventListener('afterprint', apply);
  apply();
}

function start() {
  wireTheme();
  byId('app').hidden = false;
  drawHeader();
  if (!TRIALS.length) {
    byId('content').hidden = true;
    byId('nothing').hidden = false;
    byId('nothing').textContent = 'This journal holds no trials yet. When the first one ends, make this page again with: servetune report';
    document.documentElement.dataset.points = document.documentElement.dataset.rows = 0;
    return;
  }
  if (TRIALS.every((t) => t.status !== 'ok')) {
    document.documentElement.dataset.failed = 'all';
    byId('nothing').hidden = false;
    byId('nothing').textContent = `${TRIALS.length === 1 ? 'The one trial' : `All ${TRIALS.length} trials`} failed, so there is nothing to pick or draw. The table says why.`;
  }
  byId('csv').addEventListener('click', downloadCsv);
  byId('print').addEventListener('click', () => print());
  byId('open-details').addEventListener('click', openDrawer);
  byId('drawer').addEventListener('click', (e) => { if (e.target === byId('drawer')) byId('drawer').close(); });
  wireConstraintForm();
  axisControls(byId('axes'), [['Y', state.y], ['X', state.x]]);
  axisControls(byId('load-axes'), [['Show', state.load]]);
  drawFilters();
  wireTimeline();
  drawComparison();
  const first = DATA.objectives.map((o) => recommend(TRIALS, active(), o).chosen).find(Boolean);
  state.selected = first ? first.id : 0;
  refresh();
  let width = window.innerWidth;
  window.addEventListener('resize', () => { if (window.innerWidth !== width) { width = window.innerWidth; drawCharts(); } });
}

start();
document.documentElement.dataset.ready = 'true';
