/* Charts: trade-off, load curves, and the distribution of one trial. */
const STANDING_WORDS = { meets: 'meets every constraint', misses: 'misses a constraint', failed: 'failed' };

function tipRows(trial, axes) {
  const rows = axes.map(([name, statistic]) => {
    const q = QUANTITY[name];
    return [q.has_statistics ? `${q.short} ${statistic}` : q.short, shown(valueOf(trial, name, statistic), q.unit)];
  });
  const { kind, missed, unknown } = standing(trial, active());
  if (active().length || kind === 'failed') {
    rows.push(['Standing', STANDING_WORDS[kind]]);
    missed.forEach((c) => rows.push(['misses', constraintText(c, QUANTITY)]));
    unknown.forEach((c) => rows.push(['not measured', constraintText(c, QUANTITY)]));
  }
  if (trial.failed_requests) rows.push(['Failed requests', failedWords(trial)]);
  rows.push(['How', trial.simulated ? 'simulated, no model ran' : 'measured']);
  return rows;
}

function drawScatter() {
  const { x: ax, y: ay } = state;
  const [qx, qy] = [QUANTITY[ax.name], QUANTITY[ay.name]];
  const place = (t) => ({ t, x: valueOf(t, ax.name, ax.statistic), y: valueOf(t, ay.name, ay.statistic) });
  const whole = (p) => p.x !== null && p.y !== null;
  const points = TRIALS.filter((t) => t.status === 'ok').map(place).filter(whole);
  const references = DATA.references.map(place).filter(whole);
  const failed = TRIALS.filter((t) => t.status !== 'ok');
  const host = byId('scatter');
  document.documentElement.dataset.points = points.length;
  const all = [...points, ...references];
  if (!all.length) { host.replaceChildren(make('p', { class: 'note' }, 'No trial has values for these axes.')); return; }
  const width = Math.max(280, host.clientWidth);
  const rail = failed.length ? 34 : 0;
  const box = { left: 52, right: width - 14, top: 30, bottom: width < 520 ? 300 : 392 };
  const x = scaleOf(all.map((p) => p.x), box.left, box.right, { log: wantsLog(all.map((p) => p.x)), count: width < 520 ? 4 : 7 });
  const y = scaleOf(all.map((p) => p.y), box.bottom, box.top, { log: wantsLog(all.map((p) => p.y)) });
  const xUnit = axisUnit(qx, x.high);
  const yUnit = axisUnit(qy, y.high);
  const narrow = width < 520;
  const picture = svg('svg', { height: box.bottom + 46 + rail, role: 'group',
    'aria-label': `${qy.title} against ${qx.title}, ${points.length} trials; arrow keys move between them` },
  frame(box, x, y, { xUnit, yUnit, x: axisTitle(qx, ax.statistic, xUnit, x.log), y: axisTitle(qy, ay.statistic, yUnit, y.log),
    xBetter: narrow ? '' : qx.maximize ? 'better →' : '← better', yBetter: qy.maximize ? '↑ better' : '↓ better' }),
  limits(box, x, 'x', ax.name, ax.statistic, active(), (c) => constraintText(c, QUANTITY)),
  limits(box, y, 'y', ay.name, ay.statistic, active(), (c) => constraintText(c, QUANTITY), all.map((p) => [x.at(p.x), y.at(p.y)])));

  const best = front(points, qx.maximize, qy.maximize);
  if (best.length > 1) {
    picture.append(svg('path', { class: 'front', d: best.map((p, i) => `${i ? 'L' : 'M'}${x.at(p.x)} ${y.at(p.y)}`).join('') }));
  }
  const marks = [];
  const order = { misses: 0, meets: 1 };
  points.map((p) => ({ ...p, kind: standing(p.t, active()).kind }))
    .sort((a, b) => order[a.kind] - order[b.kind]).forEach((p) => {
      marks.push(mark(p.kind, x.at(p.x), y.at(p.y), p.t.simulated, { 'data-trial': p.t.id, role: 'button',
        'aria-label': [p.t.label, STANDING_WORDS[p.kind], failedMark(p.t), p.t.simulated && 'simulated'].filter(Boolean).join(', '),
        ...withTip(p.t.label, () => tipRows(p.t, [[ay.name, ay.statistic], [ax.name, ax.statistic]])) }));
    });
  references.forEach((p) => picture.append(mark('reference', x.at(p.x), y.at(p.y), p.t.simulated, {
    ...withTip(`${p.t.label} (for comparison)`, () => tipRows({ ...p.t, status: 'ok' }, [[ay.name, ay.statistic], [ax.name, ax.statistic]])) }, 4)));
  if (failed.length) {
    const at = box.bottom + 60;
    picture.append(svg('text', { x: 0, y: at + 4 }, 'failed'));
    failed.slice(0, Math.floor((width - 60) / 18)).forEach((t, i) => marks.push(mark('failed', 58 + i * 18, at, false, {
      'data-trial': t.id, role: 'button', 'aria-label': `${t.label}, failed`,
      ...withTip(t.label, () => [['Failed', t.failure ? t.failure.kind : DASH], ['Why', t.failure ? t.failure.reason : DASH]]) }, 4)));
  }
  callouts(picture, box, points, x, y, all.map((p) => [x.at(p.x), y.at(p.y), 7]));
  const selected = points.find((p) => p.t.id === state.selected);
  if (selected) picture.append(svg('circle', { class: 'mark ring', cx: x.at(selected.x), cy: y.at(selected.y), r: 11 }));
  picture.append(...marks);
  arrowKeys(picture, marks);
  host.replaceChildren(picture);
  drawLegend(failed.length, references.length, TRIALS.length - failed.length - points.length);
}

/* The picks, named where they stand; one trial may be several picks. A name takes the first
   place beside its point that covers no other mark and no other name. */
function callouts(picture, box, points, x, y, taken) {
  const named = new Map();
  for (const objective of DATA.objectives) {
    const { chosen } = state.picks[objective.name];
    if (chosen) named.set(chosen.id, [...(named.get(chosen.id) || []), pickWords(objective).short]);
  }
  for (const [id, names] of named) {
    const p = points.find((each) => each.t.id === id);
    if (!p) continue;
    const text = names.join(' · ');
    const [wide, cx, cy] = [text.length * 6.9, x.at(p.x), y.at(p.y)];
    const places = [14, 24, 36, 50].flatMap((d) => [[cx - d, cy - d * 0.55, 'end'], [cx + d, cy + d * 0.55 + 4, 'start'],
      [cx - d, cy + d * 0.55 + 4, 'end'], [cx + d, cy - d * 0.55, 'start']])
      .map(([tx, ty, anchor]) => ({ tx, ty, anchor, a: anchor === 'end' ? tx - wide : tx, b: anchor === 'end' ? tx : tx + wide }));
    const inside = places.filter((s) => s.a > box.left && s.b < box.right + 8 && s.ty > box.top && s.ty < box.bottom - 4);
    const crowd = (s) => taken.filter(([tx, ty, half]) => tx + half > s.a && tx - half < s.b && ty > s.ty - 17 && ty < s.ty + 7).length;
    const best = inside.sort((s, t) => crowd(s) - crowd(t))[0];
    if (!best) continue;
    taken.push([(best.a + best.b) / 2, best.ty - 4, wide / 2]);
    if (Math.hypot(best.tx - cx, best.ty - cy) > 20) picture.append(svg('path', { class: 'callout-line', d: `M${cx} ${cy}L${best.tx} ${best.ty - 4}` }));
    picture.append(svg('text', { class: 'callout halo', x: best.tx, y: best.ty, 'text-anchor': best.anchor }, text));
  }
}

/* One tab stop for all marks; arrows walk, Enter selects. */
function arrowKeys(picture, marks) {
  marks.forEach((each, i) => each.setAttribute('tabindex', i ? -1 : 0));
  picture.addEventListener('click', (e) => { if (e.target.dataset.trial) select(+e.target.dataset.trial, true); });
  picture.addEventListener('keydown', (e) => {
    const at = marks.indexOf(e.target);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (at >= 0 && step) { marks[(at + step + marks.length) % marks.length].focus(); e.preventDefault(); }
    if (at >= 0 && (e.key === 'Enter' || e.key === ' ')) { select(+e.target.dataset.trial, true); e.preventDefault(); }
  });
}

function drawLegend(failed, references, unplaced) {
  const entry = (kind, hollow, words) => make('span', {}, svg('svg', { viewBox: '0 0 18 16', 'aria-hidden': 'true' },
    mark(kind, 9, 8, hollow, {}, kind === 'reference' ? 4 : 4.6)), words);
  const ok = TRIALS.filter((t) => t.status === 'ok');
  const hollow = ok.length > 0 && ok.every((t) => t.simulated);
  const kinds = active().length ? [['meets', 'meets every constraint'], ['misses', 'misses a constraint']] : [['meets', 'trial']];
  byId('legend').replaceChildren(
    ...kinds.map(([kind, words]) => entry(kind, hollow, words)),
    ...(failed ? [entry('failed', false, 'failed')] : []),
    ...(references ? [entry('reference', false, 'for comparison, measured')] : []),
    make('span', {}, svg('svg', { viewBox: '0 0 18 16', 'aria-hidden': 'true' }, svg('path', { class: 'front', d: 'M1 12L8 5L17 4' })), 'Pareto front'),
    make('span', {}, hollow ? 'hollow: simulated' : ok.some((t) => t.simulated) ? 'hollow: simulated, filled: measured' : 'filled: measured'),
    ...(unplaced > 0 ? [make('span', {}, `${unplaced} trials have no value for these axes`)] : []));
}

function loadSeries() {
  const loadName = DATA.load;
  const others = DATA.settings.filter((s) => s.side === 'client' && s.name !== loadName && s.name !== 'num_prompts');
  const mixed = new Set(TRIALS.map((t) => t.simulated)).size > 1;
  const groups = new Map();
  for (const trial of TRIALS) {
    if (trial.status !== 'ok' || !known(trial.load)) continue;
    const words = [trial.series, ...others.map((s) => `${s.short} ${trial.client[s.name] ?? DASH}`)];
    if (mixed) words.push(trial.simulated ? 'simulated' : 'measured');
    const label = words.join(' · ');
    groups.set(label, [...(groups.get(label) || []), trial]);
  }
  return [...groups].map(([label, trials]) => ({ label, trials: trials.slice().sort((a, b) => a.load - b.load) }));
}

function drawLoad() {
  const host = byId('load');
  const card = byId('load-card');
  card.hidden = !DATA.load;
  if (!DATA.load) return;
  const { name, statistic } = state.load;
  const quantity = QUANTITY[name];
  const series = loadSeries().map((s) => ({ ...s, points: s.trials.map((t) => ({ t, x: t.load, y: valueOf(t, name, statistic) })).filter((p) => p.y !== null) }))
    .filter((s) => s.points.length);
  const all = series.flatMap((s) => s.points);
  if (!all.length) { host.replaceChildren(make('p', { class: 'note' }, 'No trial has this value.')); return; }
  const width = Math.max(280, host.clientWidth);
  const beside = Math.max(...series.map((s) => s.label.length)) * 6.8 + 34;
  const named = width >= 620 && series.length <= 16 && beside <= width * 0.4;
  const box = { left: 52, right: width - (named ? beside : 14), top: 30, bottom: width < 520 ? 280 : 330 };
  const loads = [...new Set(all.map((p) => p.x))].sort((a, b) => a - b);
  const x = scaleOf(loads, box.left + 10, box.right - 8, { log: loads.length > 1 && loads[loads.length - 1] / loads[0] >= 4 });
  x.ticks = loads;
  const y = scaleOf(all.map((p) => p.y), box.bottom, box.top, { log: wantsLog(all.map((p) => p.y)) });
  const yUnit = axisUnit(quantity, y.high);
  const loadWords = DATA.load === 'max_concurrency' ? 'Concurrent requests (max_concurrency)' : 'Request rate asked (requests/s)';
  const picture = svg('svg', { height: box.bottom + 46, role: 'group', 'aria-label': `${quantity.title} against load, one line per server configuration` },
    frame(box, x, y, { xUnit: { per: 1 }, yUnit, x: loadWords, y: axisTitle(quantity, statistic, yUnit, y.log), yBetter: quantity.maximize ? '↑ better' : '↓ better' }),
    limits(box, y, 'y', name, statistic, active(), (c) => constraintText(c, QUANTITY), sampled(series, x, y)));
  const looks = seriesLooks(series);
  const last = (s) => s.points[s.points.length - 1];
  const full = series.filter((s) => last(s).x === loads[loads.length - 1]);
  const ends = spread(full.map((s) => y.at(last(s).y)), 14, box.top, box.bottom + 6);
  const drawn = sampled(series, x, y);
  const groups = series.map((s, i) => seriesGroup(s, looks[i], x, y, picture, named && { box, drawn, at: ends[full.indexOf(s)] }));
  // Those that end early carry their name inside the plot, so they are drawn on top.
  groups.sort((a, b) => full.includes(b.series) - full.includes(a.series));
  picture.append(...groups.map((g) => g.element));
  host.replaceChildren(picture);
  if (!named) host.append(loadLegend(series, looks));
}

/* Every line by its look; where looks repeat, what the hues mean. */
function loadLegend(series, looks) {
  const entry = (look, words) => make('span', {}, svg('svg', { viewBox: '0 0 18 16', 'aria-hidden': 'true' },
    svg('g', { class: `series ${look}` }, svg('path', { class: 'curve', d: 'M0 8H18' }))), words);
  const lead = DATA.settings.find((s) => s.side === 'server');
  if (!lead || new Set(looks).size === series.length) return make('div', { class: 'legend' }, series.map((s, i) => entry(looks[i], s.label)));
  const hues = new Map();
  series.forEach((s, i) => {
    const hue = looks[i].split(' ')[0];
    hues.set(hue, (hues.get(hue) || new Set()).add(String(s.trials[0].server[lead.name] ?? DASH)));
  });
  return make('div', { class: 'legend' }, [...hues].map(([hue, values]) => entry(hue, `${lead.short} ${[...values].join(', ')}`)),
    make('span', {}, `${series.length} server configurations: point at a mark to name its own`));
}

/* Points along all lines, some pixels apart: what words must not cover. */
function sampled(series, x, y) {
  return series.flatMap((s) => s.points.flatMap((p, i) => {
    const from = [x.at(p.x), y.at(p.y)];
    if (!i) return [from];
    const before = [x.at(s.points[i - 1].x), y.at(s.points[i - 1].y)];
    return Array.from({ length: 30 }, (_, k) => [0, 1].map((d) => from[d] + (before[d] - from[d]) * (k / 30)));
  }));
}

/* Hue by the first swept server setting, dashes by what else differs. */
function seriesLooks(series) {
  const lead = DATA.settings.find((s) => s.side === 'server');
  const hues = new Map();
  const within = new Map();
  return series.map((s) => {
    const key = lead ? String(s.trials[0].server[lead.name]) : s.label;
    if (!hues.has(key)) hues.set(key, hues.size % 6);
    within.set(key, (within.get(key) ?? -1) + 1);
    return `c${hues.get(key)} dash${within.get(key) % 4}`;
  });
}

function seriesGroup(s, look, x, y, picture, label) {
  const d = s.points.map((p, i) => `${i ? 'L' : 'M'}${x.at(p.x)} ${y.at(p.y)}`).join('');
  const g = svg('g', { class: `series ${look}`, onpointerenter: () => { g.classList.add('focus'); picture.classList.add('dim'); },
    onpointerleave: () => { g.classList.remove('focus'); picture.classList.remove('dim'); } },
  svg('path', { class: 'curve', d }), svg('path', { class: 'hit', d }));
  for (const p of s.points) {
    g.append(svg('circle', { class: p.t.simulated ? 'hollow' : '', cx: x.at(p.x), cy: y.at(p.y), r: 3.6, onclick: () => select(p.t.id, true),
      ...withTip(p.t.label, () => tipRows(p.t, [[state.load.name, state.load.statistic], ['output_throughput', 'mean']])) }));
  }
  if (label) {
    const end = s.points[s.points.length - 1];
    if (label.at === undefined) {
      const [left, wide] = [x.at(end.x) + 9, s.label.length * 6.2];
      const covers = (dy) => label.drawn.filter(([px, py]) => px > left && px < left + wide
        && py > y.at(end.y) + dy - 13 && py < y.at(end.y) + dy + 5).length;
      const dy = [-8, 16, 29, -21, 42, -34].sort((a, b) => covers(a) - covers(b))[0];
      g.append(svg('text', { class: 'halo', x: left, y: y.at(end.y) + dy }, s.label));
    }
    else g.append(svg('path', { class: 'leader', d: `M${x.at(end.x) + 6} ${y.at(end.y)}L${label.box.right + 14} ${label.at}` }),
      svg('text', { x: label.box.right + 18, y: label.at + 4 }, s.label));
  }
  return { series: s, element: g };
}

/* Labels apart from each other by at least `gap`, as near to where they belong as that allows. */
function spread(wanted, gap, low, high) {
  const order = wanted.map((at, i) => ({ at, i })).sort((a, b) => a.at - b.at);
  order.forEach((each, k) => { if (k) each.at = Math.max(each.at, order[k - 1].at + gap); });
  const over = order.length ? order[order.length - 1].at - high : 0;
  if (over > 0) {
    order[order.length - 1].at -= over;
    for (let k = order.length - 2; k >= 0; k -= 1) order[k].at = Math.min(order[k].at, order[k + 1].at - gap);
  }
  const placed = [];
  order.forEach((each) => { placed[each.i] = Math.max(low, each.at); });
  return placed;
}

const QUANTILE_TICKS = [5, 25, 50, 75, 90, 99, 99.9];
const DISTRIBUTIONS = [['e2e_latency', 'E2E', 'c0'], ['ttft', 'TTFT', 'c2'], ['itl', 'ITL', 'c1']];

function distributionOf(results, name) {
  const grid = quantilePoints((results.quantiles || {})[`${name}_ms`]);
  const points = grid.length ? grid : [['median', 50], ['p90', 90], ['p95', 95], ['p99', 99]]
    .map(([statistic, percent]) => [percent, results[`${statistic}_${name}_ms`]]).filter(([, value]) => known(value));
  return points.filter(([percent, value]) => percent > 0 && percent < 100 && value > 0);
}

function drawQuantiles(trial) {
  const host = byId('quantiles');
  const curves = [];
  for (const [name, label, look] of DISTRIBUTIONS) {
    const points = distributionOf(trial.results, name);
    if (points.length > 1) curves.push({ label, look, points });
    const predicted = trial.predicted ? distributionOf(trial.predicted, name) : [];
    if (predicted.length > 1) curves.push({ label: '', look: `${look} predicted`, points: predicted });
  }
  if (!curves.length) {
    host.replaceChildren(make('p', { class: 'note' }, trial.status === 'ok' ? 'This record holds no latency distribution.' : 'A failed trial has no latencies.'));
    return;
  }
  const width = Math.max(260, host.clientWidth);
  const box = { left: 52, right: width - 44, top: 30, bottom: 216 };
  const values = curves.flatMap((c) => c.points.map((p) => p[1]));
  const percents = curves.flatMap((c) => c.points.map((p) => p[0]));
  const [from, to] = [Math.min(...percents), Math.max(...percents)].map((p) => probit(p / 100));
  const at = (p) => box.left + 4 + (box.right - box.left - 8) * ((probit(p / 100) - from) / (to - from));
  const y = scaleOf(values, box.bottom, box.top, { log: true });
  const tickWords = (ms) => (ms >= 1000 ? `${tickText(ms / 1000)} s` : `${tickText(ms)} ms`);
  const picture = svg('svg', { height: box.bottom + 44, role: 'img', 'aria-label': `Latency quantiles of ${trial.label}` },
    frame(box, { at, ticks: QUANTILE_TICKS.filter((p) => at(p) >= box.left && at(p) <= box.right + 1), log: false }, y,
      { x: width < 400 ? 'Share of requests no slower than this' : 'Share of requests (ITL: of gaps) no slower than this', y: 'Latency (log scale)', xTick: (p) => `${p}%`, yTick: tickWords }));
  const labels = spread(curves.map((c) => y.at(c.points[c.points.length - 1][1])), 13, box.top, box.bottom);
  curves.forEach((c, i) => picture.append(svg('g', { class: `series ${c.look}` },
    svg('path', { class: 'curve', d: c.points.map((p, k) => `${k ? 'L' : 'M'}${at(p[0])} ${y.at(p[1])}`).join('') }),
    svg('text', { x: box.right + 4, y: labels[i] + 4 }, c.label))));
  host.replaceChildren(picture);
  if (trial.predicted) host.append(make('p', { class: 'note' }, 'Dashed: predicted for the same trial.'));
}
