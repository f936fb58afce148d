/* Timeline of one trial: how full the engine was, and what each request waited for. */
const ROWS = 150;
const SATURATED_WORDS = 'Requests came faster than they were served: latencies grow with the length of the run and describe no steady state.';
/* A simulation knows when the engine took a request up; a client only when it sent it. */
const ENGINE_WORDS = { queued: 'waits for the engine', prefill: 'prompt is computed', cut: 'cut off when the run was stopped',
  running: 'running', waiting: 'waiting', waited: 'Waited', note: 'A preempted request goes on counting as running.' };
const CLIENT_WORDS = { queued: 'due, not sent yet', prefill: 'sent, no token yet', cut: 'failed, or cut off',
  running: 'in flight', waiting: 'not sent', waited: 'Sent after', note: 'Seen from the client: until its first token a request waits in the server’s queue or is computed.' };
const wordsHere = () => (DATA.timeline.seen_by_client ? CLIENT_WORDS : ENGINE_WORDS);
const phases = () => { const w = wordsHere(); return [['queued', w.queued], ['prefill', w.prefill], ['decode', 'tokens come'], ['cut', w.cut]]; };
const seconds = (s) => (known(s) ? duration(s * 1000) : DASH);
const count = (n) => n.toLocaleString('en-US');

/* Bars of the page that is chosen: all, evenly thinned, or one stretch of them. */
function barsShown() {
  const { bars } = DATA.timeline;
  if (state.requests !== 'all') return bars.slice(state.requests * ROWS, (state.requests + 1) * ROWS);
  if (bars.length <= ROWS) return bars;
  return Array.from({ length: ROWS }, (_, i) => bars[Math.round(i * (bars.length - 1) / (ROWS - 1))]);
}

function wireTimeline() {
  if (!DATA.timeline) return;
  byId('timeline-card').hidden = false;
  document.documentElement.dataset.timeline = DATA.timeline.total;
  const { server, saturation } = TRIALS[0].results;
  if ((server && server.saturated) || (saturation && saturation.saturated)) byId('timeline-saturated').replaceChildren(make('span', { class: 'stamp' }, 'SATURATED'), SATURATED_WORDS);
  const { bars } = DATA.timeline;
  const pages = Math.ceil(bars.length / ROWS);
  if (pages < 2) return;
  const options = [['all', `whole run, ${ROWS} of ${count(bars.length)}`], ...Array.from({ length: pages }, (_, i) => {
    const part = bars.slice(i * ROWS, (i + 1) * ROWS);
    return [i, `${count(part[0][0] + 1)} to ${count(part[part.length - 1][0] + 1)}`];
  })];
  const choice = make('select', { 'aria-label': 'Requests', onchange: (e) => turn(e.target.value === 'all' ? 'all' : +e.target.value) },
    options.map(([value, words]) => make('option', { value }, words)));
  const turn = (page) => { state.requests = page; choice.value = page; drawTimeline(); };
  const step = (by) => { const at = state.requests === 'all' ? -1 : state.requests; const to = at + by; turn(to < 0 ? 'all' : Math.min(to, pages - 1)); };
  byId('timeline-pages').replaceChildren(make('label', {}, 'Requests', choice),
    make('button', { type: 'button', 'aria-label': 'Earlier requests', onclick: () => step(-1) }, '‹'),
    make('button', { type: 'button', 'aria-label': 'Later requests', onclick: () => step(1) }, '›'));
}

function drawTimeline() {
  if (!DATA.timeline) return;
  const shownBars = barsShown();
  const whole = state.requests === 'all';
  const from = whole ? 0 : Math.min(...shownBars.map((b) => b[1]));
  const to = whole ? DATA.timeline.duration_s : Math.max(...shownBars.map((b) => b[4]));
  drawCurves(from, to);
  drawBars(shownBars, from, to);
  byId('timeline-legend').replaceChildren(...phases().filter(([name]) => name !== 'cut' || shownBars.some((b) => !b[7]))
    .map(([name, words]) => make('span', {}, svg('svg', { viewBox: '0 0 18 16', class: 'bars', 'aria-hidden': 'true' },
      svg('rect', { class: name, x: 1, y: 4, width: 16, height: 8 })), words)));
  const { total, bars } = DATA.timeline;
  const drawn = shownBars.length === total ? `All ${count(total)} requests are drawn.`
    : `${count(shownBars.length)} of ${count(total)} requests are drawn${whole ? ', evenly chosen' : ''}${bars.length < total ? `; of them this page holds ${count(bars.length)}, one in ${digits(total / bars.length)}, the file of requests all` : ''}. The curves are of all.`;
  byId('timeline-note').textContent = `${drawn} ${wordsHere().note}`;
  document.documentElement.dataset.bars = shownBars.length;
}

const timeAxis = (from, to, box) => {
  const axis = scaleOf([from, to], box.left, box.right, { count: box.right < 520 ? 4 : 8 });
  const at = (s) => box.left + (box.right - box.left) * ((s - from) / (to - from || 1));
  return { at, ticks: axis.ticks.filter((t) => t >= from - 1e-9 && t <= to + 1e-9), log: false };
};

/* Two pictures over one time: requests running and waiting, and the share of the cache. */
function drawCurves(from, to) {
  const host = byId('timeline-curves');
  const width = Math.max(280, host.clientWidth);
  const { curves, kv } = DATA.timeline;
  const within = (points) => points.filter(([s], i) => (points[i + 1] ? points[i + 1][0] : s) >= from && s <= to);
  const middle = (values) => within(values.map((v, i) => [(i + 0.5) * curves.width_s, v]));
  const [running, waiting] = [middle(curves.running), middle(curves.waiting)];
  const share = within(kv);
  const box = { left: 52, right: width - 70, top: 30, bottom: 150 };
  const low = { left: 52, right: width - 70, top: 30, bottom: 90 };
  const x = timeAxis(from, to, box);
  const y = scaleOf([0, ...running.map((p) => p[1]), ...waiting.map((p) => p[1])], box.bottom, box.top, { count: 4 });
  const z = { at: (v) => low.bottom - (low.bottom - low.top) * v, ticks: [0, 0.5, 1], log: false };
  const clip = (s) => Math.max(box.left, Math.min(box.right, x.at(s)));
  const path = (points, scale) => points.map(([s, v], i) => `${i ? 'L' : 'M'}${clip(s)} ${scale.at(v)}`).join('');
  const titles = (words, yTick) => ({ xTick: tickText, yTick, x: '', y: words });
  const curve = (points, scale, look, label, at) => (points.length ? svg('g', { class: `series ${look}` },
    svg('path', { class: 'curve', d: path(points, scale) }), svg('text', { x: box.right + 6, y: at }, label)) : '');
  const ends = spread([running, waiting].map((p) => (p.length ? y.at(p[p.length - 1][1]) : box.bottom)), 14, box.top, box.bottom);
  const below = svg('g', { transform: `translate(0 ${box.bottom + 32})` }, frame(low, x, z, titles('KV cache in use', (v) => `${v * 100}%`)),
    share.length > 1 ? svg('path', { class: 'area c1', d: `${path(share, z)}L${clip(share[share.length - 1][0])} ${low.bottom}L${clip(share[0][0])} ${low.bottom}Z` }) : '',
    curve(share, z, 'c1', 'KV', share.length ? z.at(share[share.length - 1][1]) + 4 : 0));
  host.replaceChildren(svg('svg', { height: box.bottom + low.bottom + 62, role: 'img', 'aria-label': `Requests ${wordsHere().running} and ${wordsHere().waiting}, and the KV cache in use, over time` },
    frame(box, x, y, titles('Requests at a time', tickText)), curve(waiting, y, 'c2', wordsHere().waiting, ends[1] + 4), curve(running, y, 'c0', wordsHere().running, ends[0] + 4), below));
}

function drawBars(bars, from, to) {
  const host = byId('timeline-bars');
  const width = Math.max(280, host.clientWidth);
  const row = Math.max(3, Math.min(16, 420 / bars.length));
  const box = { left: 52, right: width - 70, top: 30, bottom: 34 + row * bars.length };
  const x = timeAxis(from, to, box);
  const every = Math.ceil(bars.length / 10);
  const y = { at: (i) => box.top + 2 + row * (i + 0.5), ticks: bars.map((_, i) => i).filter((i) => i % every === 0), log: false };
  const picture = svg('svg', { height: box.bottom + 46, class: 'bars', role: 'group', 'aria-label': `${bars.length} requests, one bar each: ${wordsHere().queued}, ${wordsHere().prefill}, tokens come` },
    frame(box, x, y, { x: 'Seconds since the run began', y: 'Request', xTick: tickText, yTick: (i) => count(bars[i][0] + 1) }));
  bars.forEach((bar, i) => picture.append(barOf(bar, x, y.at(i) - row / 2, row, box)));
  host.replaceChildren(picture);
}

function barOf([index, due, admitted, first, end, input, output, whole], x, top, row, box) {
  const queuedTo = admitted ?? end;
  const prefillTo = first ?? end;
  const parts = [['queued', due, queuedTo], ['prefill', queuedTo, prefillTo], [whole ? 'decode' : 'cut', prefillTo, end]];
  const rows = () => [['Due', `at ${seconds(due)}`], [wordsHere().waited, seconds(queuedTo - due)], ['Prompt', admitted === null ? DASH : `${count(input)} tokens, ${first === null ? 'not done' : seconds(first - admitted)}`],
    ['First token after', first === null ? DASH : seconds(first - due)], ['Answer', first === null ? DASH : `${count(output)} tokens, ${seconds(end - first)}`], [whole ? 'Ended' : 'Cut off', `after ${seconds(end - due)}`]];
  return svg('g', withTip(`Request ${count(index + 1)}`, rows),
    svg('rect', { class: 'row', x: box.left, y: top, width: box.right - box.left, height: row }),
    parts.filter(([, a, b]) => b > a).map(([look, a, b]) => svg('rect', { class: look, x: x.at(a), y: top + row * 0.12,
      width: Math.max(0.6, x.at(b) - x.at(a)), height: row * 0.76 })));
}
