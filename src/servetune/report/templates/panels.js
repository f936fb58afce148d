/* Panels: header, constraints, picks, the selected trial, and predicted beside measured. */
const PICK_WORDS = {
  throughput: { title: 'Throughput pick', short: 'throughput', unit: 'output tokens/s' },
  latency: { title: 'Latency pick', short: 'latency', unit: 'p99 end-to-end' },
  cost: { title: 'Cheapest per million tokens', short: 'cheapest', unit: 'per million output tokens' },
};
const pickWords = (objective) => PICK_WORDS[objective.name]
  || { title: objective.heading, short: objective.objectives ? 'knee' : objective.name, unit: objective.title };
const sourceTag = (trial) => (trial.simulated
  ? make('span', { class: 'tag simulated-tag' }, 'SIMULATED') : make('span', { class: 'tag measured-tag' }, 'measured'));
/* Failed requests: counts, and words for more of them than a choice tolerates. */
const failedMark = (trial) => trial.failed_requests && trial.failed_requests.mark;
const failedWords = ({ failed_requests: failed }) => (failed.mark ? `${failed.fraction}, ${failed.mark}` : failed.fraction);
const failedTag = (trial) => (failedMark(trial) ? make('span', { class: 'tag failed-tag' }, failedMark(trial)) : '');

function drawHeader() {
  const { header } = DATA;
  const title = header.model || DATA.title;
  const leftOut = header.trial_count - TRIALS.length;
  byId('title').textContent = title;
  const price = header.price ? `$${header.price} per hour${header.price_source ? ` (${header.price_source})` : ''}` : null;
  const facts = [['Machine', header.machine], [header.instance ? 'Instance' : 'Price', [header.instance, price].filter(Boolean).join(', ')],
    ['Engine', header.engine], ['Workload', header.workload], [header.simulated_count === header.trial_count ? 'Simulated' : 'Measured', header.date],
    ['Trials', `${header.trial_count.toLocaleString('en-US')}${header.failed_count ? `, ${header.failed_count.toLocaleString('en-US')} failed` : ''}${leftOut ? `; ${TRIALS.length.toLocaleString('en-US')} on this page` : ''}`]];
  byId('facts').replaceChildren(...facts.filter(([, value]) => value)
    .map(([name, value]) => make('div', {}, make('dt', {}, name), make('dd', {}, value))));
  if (header.simulated_count) {
    const all = header.simulated_count === header.trial_count;
    byId('simulated').hidden = false;
    const fast = header.simulated_speed ? ` At ${header.simulated_speed} times real time: latencies and costs are 1/${header.simulated_speed} of the engine’s, rates ${header.simulated_speed} times.` : '';
    byId('simulated').replaceChildren(make('span', { class: 'stamp' }, 'SIMULATED'), make('span', {}, (all
      ? `${header.trial_count === 1 ? 'This trial was' : `All ${header.trial_count} trials were`} simulated: no model ran. Confirm a choice on the real machine before you rely on it.`
      : `${header.simulated_count} of ${header.trial_count} trials were simulated; they are marked, and drawn hollow.`) + fast + (header.accuracy ? ` Accuracy of predictions: ${header.accuracy}.` : '')));
  }
  byId('footer').replaceChildren(
    make('p', {}, 'TTFT: time to first token. ITL: gap between tokens, over all gaps. TPOT: time per output token after the first, one value per request. E2E: from when a request was due (in other tools’ journals: sent) to its last token. Latencies are over answered requests.'),
    ...(leftOut ? [make('p', { id: 'left-out' }, `This page holds ${TRIALS.length.toLocaleString('en-US')} of ${header.trial_count.toLocaleString('en-US')} trials: the picks of all, the Pareto front, the best, an even sample of the others and of those that failed. Counts, charts, the table and choices under other constraints are of these; the summary beside the page holds all.`)] : []),
    make('p', {}, `Made by servetune ${DATA.servetune} from the journal alone. This page loads nothing and sends nothing.`));
}

function drawConstraints() {
  const ok = TRIALS.filter((t) => t.status === 'ok');
  const chips = state.constraints.map((c, i) => {
    const met = ok.filter((t) => holds(c, t) === true).length;
    return make('span', { class: 'chip', 'data-on': String(c.on) },
      make('button', { type: 'button', 'aria-pressed': String(c.on), title: c.on ? 'Switch off' : 'Switch on',
        onclick: () => { c.on = !c.on; refresh(); } }, `${c.on ? '✓ ' : ''}${constraintText(c, QUANTITY)}`, make('small', {}, `${met}/${ok.length}`)),
      c.added ? make('button', { type: 'button', class: 'off', 'aria-label': `Remove ${constraintText(c, QUANTITY)}`,
        onclick: () => { state.constraints.splice(i, 1); refresh(); } }, '×') : '');
  });
  byId('chips').replaceChildren(make('span', { class: 'muted' }, 'Constraints'), ...chips,
    make('button', { type: 'button', id: 'add-open', 'aria-expanded': String(!byId('add').hidden),
      onclick: () => { byId('add').hidden = !byId('add').hidden; drawConstraints(); } }, '+ Add'));
  const meeting = ok.filter((t) => standing(t, active()).kind === 'meets').length;
  byId('standing').replaceChildren(...(active().length
    ? [make('strong', {}, `${meeting} of ${ok.length}`), ` finished trials meet ${active().length === 1 ? 'it' : `all ${active().length}`}`]
    : ['No constraint is on']));
}

function wireConstraintForm() {
  const metric = byId('add-metric');
  const option = (value, words) => make('option', { value }, words);
  DATA.quantities.filter((q) => !['output_throughput_per_gpu', 'user_throughput'].includes(q.name))
    .forEach((q) => metric.append(option(q.name, q.title)));
  [...DATA.statistics, 'p99.9'].forEach((s) => byId('add-statistic').append(option(s, s)));
  Object.entries(SIGNS).forEach(([op, sign]) => byId('add-op').append(option(op, sign)));
  const adapt = () => {
    const quantity = QUANTITY[metric.value];
    byId('add-statistic').hidden = !quantity.has_statistics;
    byId('add-op').value = quantity.maximize ? '>=' : '<=';
    byId('add-unit').replaceChildren(...(quantity.unit === 'ms' ? ['ms', 's'] : [quantity.unit === 'USD' ? 'US$' : quantity.unit])
      .map((unit) => option(unit, unit)));
  };
  metric.addEventListener('change', adapt);
  adapt();
  byId('add-statistic').value = 'p99';
  byId('add').addEventListener('submit', (e) => {
    e.preventDefault();
    const value = Number(byId('add-value').value) * (byId('add-unit').value === 's' ? 1000 : 1);
    if (!known(value)) return;
    const latency = QUANTITY[metric.value].has_statistics;
    state.constraints.push({ metric: metric.value, statistic: latency ? byId('add-statistic').value : 'mean',
      op: byId('add-op').value, value, on: true, added: true });
    byId('add').hidden = true;
    byId('add-value').value = '';
    refresh();
  });
}

function drawPicks() {
  byId('picks').replaceChildren(...DATA.objectives.map((objective) => pickCard(objective, state.picks[objective.name])));
}

function pickCard(objective, pick) {
  const words = pickWords(objective);
  const trial = pick.chosen;
  if (!trial) {
    return make('article', { class: 'card pick', 'data-pick': objective.name, 'data-key': '' },
      make('div', { class: 'kind' }, make('h2', {}, words.title)), make('p', { class: 'value' }, DASH),
      make('p', { class: 'note' }, objective.name === 'cost' ? 'No trial has a cost: the price of the machine is not known.' : 'No trial has a value for this.'));
  }
  const further = (objective.objectives || []).slice(1).map((o) => [o.name, o.metric, o.statistic]);
  const numbers = [...further, ['Output', 'output_throughput', 'mean'], ['TTFT mean', 'ttft', 'mean'], ['ITL mean', 'itl', 'mean'], ['E2E p99', 'e2e_latency', 'p99'], ['$/M tokens', 'cost_per_million_tokens', 'mean'], ['Requests', 'request_throughput', 'mean']]
    .filter(([, name, statistic], i, all) => !(name === objective.metric && statistic === objective.statistic) && known(valueOf(trial, name, statistic))
      && all.findIndex(([, other, also]) => other === name && also === statistic) === i).slice(0, Math.max(DATA.objectives.length > 3 ? 3 : 4, further.length));
  const value = pick.value(trial);
  return make('article', { class: 'card pick', 'data-pick': objective.name, 'data-key': trial.key, 'data-feasible': String(pick.feasible) },
    make('div', { class: 'kind' }, make('h2', {}, words.title), make('span', { class: 'tags' }, failedTag(trial), sourceTag(trial))),
    make('p', { class: 'value' }, objective.name === 'throughput' ? digits(value) : shown(value, QUANTITY[objective.metric].unit), make('small', {}, words.unit)),
    make('p', { class: 'config' }, make('button', { type: 'button', class: 'plain', title: 'Select this trial', onclick: () => select(trial.id, true) }, trial.label)),
    make('dl', { class: 'numbers' }, numbers.flatMap(([label, name, statistic]) => [make('dt', {}, label), make('dd', {}, shown(valueOf(trial, name, statistic), QUANTITY[name].unit))])),
    doubtAbout(objective, trial),
    make('ul', { class: 'why' }, reasons(objective, pick).map(([text, bad]) => make('li', { class: bad ? 'bad' : null }, text))),
    trial.suggestions.map((text) => make('p', { class: 'suggestion' }, `From the trials: ${text}.`)),
    trial.cmd ? command(trial.cmd) : '');
}

/* How sure the pick is. The doubt is the search's: of its own objective and constraints. */
function doubtAbout(objective, trial) {
  const doubt = DATA.search && DATA.search.doubt;
  const own = doubt && objective.name === doubt.objective && state.constraints.every((c) => c.on && !c.added);
  const rests = trial.simulated ? 'simulation' : 'measurement';
  if (own && trial.key === doubt.key) {
    const words = doubt.settled ? `✓ ${doubt.verdict}` : `? Not settled: ${doubt.verdict}`;
    return make('div', { class: 'doubt', 'data-settled': String(doubt.settled), 'data-rests': rests },
      make('p', { class: 'verdict' }, words), doubt.open.map((text) => make('p', {}, text)));
  }
  const alone = trial.simulated ? 'Rests on simulation alone' : null;
  const other = own ? `The search’s own pick is ${doubt.label}: ${doubt.verdict}` : null;
  const said = [alone, other].filter(Boolean).join('. ');
  return said ? make('div', { class: 'doubt', 'data-rests': rests }, make('p', {}, `${said}.`)) : '';
}

function reasons(objective, pick) {
  const { chosen, next, feasible, eligibleCount } = pick;
  const limitsNow = active();
  const got = (c) => shown(valueOf(chosen, c.metric, c.statistic), QUANTITY[c.metric].unit);
  const leftOut = pick.leftOut.map((text) => [text]);
  const failing = chosen.failed_requests ? [[chosen.failed_requests.sentence, Boolean(failedMark(chosen))]] : [];
  if (!feasible) {
    const { missed, unknown } = standing(chosen, limitsNow);
    const how = DATA.ladder ? 'it holds as many of the first as any and is nearest on the next' : 'this is the nearest miss';
    return [[`No trial meets every constraint; ${how}`, true],
      ...missed.map((c) => [`misses ${constraintText(c, QUANTITY)}: ${got(c)}`, true]),
      ...unknown.map((c) => [`${constraintText(c, QUANTITY)} was not measured`, true]), ...failing, ...leftOut];
  }
  const best = objective.maximize ? 'highest' : 'lowest';
  const what = pick.set.length ? `knee of the Pareto set (${pick.set.length} trials)` : `${best} ${objective.title}`;
  const said = [[`${what} of ${eligibleCount} trial${eligibleCount === 1 ? '' : 's'}${limitsNow.length ? ' that meet' + (eligibleCount === 1 ? 's' : '') + ' every constraint' : ''}`], ...failing, ...leftOut];
  limitsNow.forEach((c) => said.push([`${constraintText(c, QUANTITY)} holds: ${got(c)}`]));
  if (next) said.push([`next best: ${next.label} (${apart(pick.value(next) / pick.value(chosen) - 1)})`]);
  return said;
}

function command(text) {
  const pre = make('pre', {}, text.split(' ').flatMap((word, i) => [i ? ' ' : '', make('span', { class: 'word' }, word)]));
  const button = make('button', { type: 'button', onclick: async () => {
    let done = true;
    try { await navigator.clipboard.writeText(text); } catch {
      getSelection().selectAllChildren(pre);
      done = document.execCommand('copy');
    }
    button.textContent = done ? 'Copied' : 'Press Ctrl-C';
    setTimeout(() => { button.textContent = 'Copy'; }, 1600);
  } }, 'Copy');
  return make('div', { class: 'command', tabindex: 0, 'aria-label': 'Server command' }, pre, button);
}

function drawSelected() {
  const trial = TRIALS[state.selected];
  byId('selected-label').replaceChildren(trial.label, sourceTag(trial), failedTag(trial));
  drawQuantiles(trial);
  const rows = LATENCIES.slice().reverse().map((name) => make('tr', {}, make('th', { class: 'left', scope: 'row' }, QUANTITY[name].short),
    DATA.statistics.map((s) => make('td', {}, shown(valueOf(trial, name, s), 'ms')))));
  byId('statistics').replaceChildren(trial.status === 'ok'
    ? make('table', {}, make('thead', {}, make('tr', {}, make('th', { class: 'left' }, ''), DATA.statistics.map((s) => make('th', { scope: 'col' }, s)))), make('tbody', {}, rows))
    : make('p', { class: 'note' }, trial.failure ? `Failed: ${trial.failure.reason}` : 'Failed'));
}

function drawComparison() {
  const { pairs } = DATA;
  byId('comparison-card').hidden = !pairs.length;
  if (!pairs.length) return;
  const errors = pairs.flatMap((p) => p.gaps).map((g) => g.error_fraction).filter(known).map(Math.abs).sort((a, b) => a - b);
  const middle = errors.length ? (errors[Math.floor((errors.length - 1) / 2)] + errors[Math.ceil((errors.length - 1) / 2)]) / 2 : null;
  byId('comparison-note').textContent = `The same configuration twice: predicted → measured, and by how much the prediction is too high (+) or too low (−).${middle === null ? '' : ` Median absolute error over all ${errors.length} values: ${(middle * 100).toFixed(1)}%.`}`;
  const head = pairs[0].gaps.map((g) => make('th', { scope: 'col' }, ...(QUANTITY[g.quantity].has_statistics ? [`${QUANTITY[g.quantity].short} ${g.statistic}`, make('br'), g.quantity === 'e2e_latency' ? 's' : 'ms'] : [QUANTITY[g.quantity].short, make('br'), QUANTITY[g.quantity].unit])));
  const cell = (g) => {
    const off = known(g.error_fraction) ? Math.abs(g.error_fraction) : null;
    const look = off === null ? '' : off <= 0.1 ? 'near' : off <= 0.3 ? 'off' : 'far';
    const per = g.quantity === 'e2e_latency' ? 1000 : 1;
    const plain = (v) => (known(v) ? digits(v / per) : DASH);
    return make('td', {}, make('b', { class: look }, percent(g.error_fraction)), make('small', {}, `${plain(g.predicted)} → ${plain(g.measured)}`));
  };
  byId('comparison').replaceChildren(make('table', {}, make('thead', {}, make('tr', {}, make('th', { class: 'left', scope: 'col' }, 'Configuration'), head)),
    make('tbody', {}, pairs.map((p) => make('tr', {}, make('th', { class: 'left', scope: 'row' }, p.label), p.gaps.map(cell))))));
}
