/* Values, words and choices: the page's arithmetic, without a document.
   It repeats metrics/slo.py and search/recommend.py, because constraints change here;
   the browser test holds the two to the same choices. */
const DASH = '–';
const LATENCIES = ['ttft', 'itl', 'tpot', 'e2e_latency'];
const OPERATORS = {
  '<=': (a, b) => a <= b, '>=': (a, b) => a >= b, '<': (a, b) => a < b,
  '>': (a, b) => a > b, '==': (a, b) => a === b, '!=': (a, b) => a !== b,
};
const SIGNS = { '<=': '≤', '>=': '≥', '<': '<', '>': '>', '==': '=', '!=': '≠' };

const known = (value) => typeof value === 'number' && Number.isFinite(value);

function valueOf(trial, name, statistic) {
  const results = trial.results || {};
  if (name === 'output_throughput_per_gpu' && !known(results[name])) {
    const total = results.output_throughput;
    return known(total) && trial.devices ? total / trial.devices : null;
  }
  if (name === 'user_throughput') {
    const tpot = valueOf(trial, 'tpot', 'median');
    return tpot ? 1000 / tpot : null;
  }
  if (name === 'energy_per_token_j' && !known(results[name])) {
    const { server, total_output_tokens: tokens } = results;
    return server && known(server.energy_j) && tokens ? server.energy_j / tokens : null;
  }
  if (!LATENCIES.includes(name)) return known(results[name]) ? results[name] : null;
  let direct = results[`${statistic}_${name}_ms`];
  if (!known(direct) && statistic === 'p50') direct = results[`median_${name}_ms`];
  if (known(direct)) return direct;
  const grid = (results.quantiles || {})[`${name}_ms`];
  return grid && statistic[0] === 'p' ? interpolate(quantilePoints(grid), +statistic.slice(1)) : null;
}

function quantilePoints(grid) {
  return Object.entries(grid || {}).map(([percent, value]) => [+percent, value])
    .filter(([percent, value]) => known(percent) && known(value)).sort((a, b) => a[0] - b[0]);
}

function interpolate(points, percent) {
  const below = points.filter((p) => p[0] <= percent).pop();
  const above = points.find((p) => p[0] >= percent);
  if (!below || !above) return null;
  const share = above[0] === below[0] ? 0 : (percent - below[0]) / (above[0] - below[0]);
  return below[1] + share * (above[1] - below[1]);
}

/* Words for numbers. */
function digits(value) {
  if (value >= 100) return value.toLocaleString('en-US', { maximumFractionDigits: 0 });
  return value.toLocaleString('en-US', { maximumSignificantDigits: 3, minimumSignificantDigits: 1 });
}
function duration(ms) {
  if (ms < 10) return `${ms.toFixed(2)} ms`;
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}
function shown(value, unit) {
  if (!known(value)) return DASH;
  if (unit === 'ms') return duration(value);
  if (unit === 'USD') {
    return Math.abs(value) >= 0.1 ? `$${value.toLocaleString('en-US',
      { minimumFractionDigits: 2, maximumFractionDigits: 2 })}` : `$${value.toPrecision(3)}`;
  }
  if (unit === 'J') return `${digits(value)} J`;
  if (unit === 'fraction') return `${digits(value * 100)}%`;
  return `${digits(value)} ${unit === 'tokens/s' ? 'tok/s' : 'req/s'}`;
}
const percent = (fraction) => (known(fraction)
  ? `${fraction < 0 ? '−' : '+'}${Math.abs(fraction * 100).toFixed(Math.abs(fraction) < 0.1 ? 1 : 0)}%` : DASH);
const apart = (fraction) => (Math.abs(fraction) < 0.0005 ? 'within 0.1%' : percent(fraction));

function constraintText(c, quantities) {
  const quantity = quantities[c.metric] || { short: c.metric, unit: '' };
  const statistic = LATENCIES.includes(c.metric) ? ` ${c.statistic}` : '';
  const limit = LATENCIES.includes(c.metric)
    ? (c.value >= 1000 ? `${+(c.value / 1000).toPrecision(6)} s` : `${+c.value.toPrecision(6)} ms`)
    : shown(c.value, quantity.unit);
  return `${quantity.short}${statistic} ${SIGNS[c.op]} ${limit}`;
}

/* Choices. */
const holds = (c, trial) => {
  const value = valueOf(trial, c.metric, c.statistic);
  return value === null ? null : OPERATORS[c.op](value, c.value);
};
function standing(trial, constraints) {
  if (trial.status !== 'ok') return { kind: 'failed', missed: [], unknown: [] };
  const missed = constraints.filter((c) => holds(c, trial) === false);
  const unknown = constraints.filter((c) => holds(c, trial) === null);
  return { kind: missed.length + unknown.length ? 'misses' : 'meets', missed, unknown };
}
/* Too many failed requests to be chosen, unless a constraint says how many may fail. */
const tooManyFailed = (trial, constraints) => !constraints.some((c) => c.metric === 'error_rate')
  && (valueOf(trial, 'error_rate') || 0) > DATA.tolerated_error_rate;
/* Constraints that a trial meets: of a ladder those from the first on, else all or none. */
function heldCount(trial, constraints) {
  if (!DATA.ladder) return standing(trial, constraints).kind === 'meets' ? constraints.length : -1;
  const at = constraints.findIndex((c) => !holds(c, trial));
  return at < 0 ? constraints.length : at;
}
function recommend(trials, constraints, objective) {
  const wanted = objective.objectives || [objective];
  const valueFor = (o) => (t) => valueOf(t, o.metric, o.statistic);
  const value = valueFor(objective);
  const sign = objective.maximize ? -1 : 1;
  const rank = (t) => [sign * value(t), -(valueOf(t, 'output_throughput', 'mean') || 0)];
  const valued = trials.filter((t) => t.status === 'ok' && wanted.every((o) => valueFor(o)(t) !== null));
  const held = new Map(valued.map((t) => [t, heldCount(t, constraints)]));
  const most = Math.max(-1, ...held.values());
  const feasible = valued.length > 0 && most === constraints.length;
  const order = feasible ? rank : (t) => [...misses(t, constraints), ...rank(t)];
  const possible = valued.filter((t) => held.get(t) === most);
  const clean = possible.filter((t) => !t.miscounted && !tooManyFailed(t, constraints));
  const eligible = clean.length ? clean : possible;
  const set = feasible && wanted.length > 1 ? paretoSet(eligible, wanted, valueFor) : [];
  const ranked = (set.length ? set : eligible).slice().sort((a, b) => lexical(order(a), order(b)));
  const chosen = (set.length ? knee(ranked, wanted, valueFor) : ranked[0]) || null;
  return { chosen, next: (set.length ? null : ranked[1]) || null, feasible, set: set.length ? ranked : [],
    eligibleCount: eligible.length, leftOut: clean.length ? leftOut(possible, constraints) : [], value };
}
/* Trials that no other one beats in all objectives. */
function paretoSet(trials, wanted, valueFor) {
  const costs = trials.map((t) => wanted.map((o) => (o.maximize ? -1 : 1) * valueFor(o)(t)));
  const beats = (a, b) => a.every((x, i) => x <= b[i]) && a.some((x, i) => x < b[i]);
  return trials.filter((_, i) => !costs.some((other) => beats(other, costs[i])));
}
/* The trial nearest to the best value of every objective at once, each scaled to its range. */
function knee(trials, wanted, valueFor) {
  const distances = trials.map(() => 0);
  for (const objective of wanted) {
    const gains = trials.map((t) => (objective.maximize ? 1 : -1) * valueFor(objective)(t));
    const [best, worst] = [Math.max(...gains), Math.min(...gains)];
    gains.forEach((gain, i) => { distances[i] += ((best - gain) / (best > worst ? best - worst : 1)) ** 2; });
  }
  return trials[distances.indexOf(Math.min(...distances))];
}
/* Trials that are not chosen for a fault, in the words of the command line. */
function leftOut(trials, constraints) {
  const miscounted = trials.filter((t) => t.miscounted).length;
  const failing = trials.filter((t) => !t.miscounted && tooManyFailed(t, constraints)).length;
  return [[failing, `with more than ${digits(DATA.tolerated_error_rate * 100)}% failed requests`],
    [miscounted, 'whose server counts tokens that did not arrive']].filter(([count]) => count)
    .map(([count, words]) => `left out: ${count} trial${count === 1 ? '' : 's'} ${words}`);
}
/* Relative misses to compare trials by: one for each rung of a ladder, else the worst. */
function misses(trial, constraints) {
  const each = constraints.map((c) => {
    const value = valueOf(trial, c.metric, c.statistic);
    if (value === null) return Infinity;
    return holds(c, trial) ? 0 : Math.max(Math.abs(value - c.value) / (Math.abs(c.value) || 1), Number.EPSILON);
  });
  return DATA.ladder ? each : [Math.max(0, ...each)];
}
function lexical(a, b) {
  for (let i = 0; i < a.length; i += 1) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}
/* Points that no other point beats in both directions, from left to right. */
function front(points, maximizeX, maximizeY) {
  const x = (p) => (maximizeX ? -p.x : p.x);
  const y = (p) => (maximizeY ? -p.y : p.y);
  return points.filter((p) => !points.some((q) => x(q) <= x(p) && y(q) <= y(p)
    && (x(q) < x(p) || y(q) < y(p)))).sort((a, b) => a.x - b.x || a.y - b.y);
}
