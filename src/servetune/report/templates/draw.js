/* Drawing: elements, scales and axes. Text enters the page as text, never as markup. */
const byId = (id) => document.getElementById(id);

function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function svg(tag, attributes, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== ''));
  return element;
}

/* Ticks at 1, 2, 2.5 or 5 times a power of ten. */
function niceStep(span, count) {
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((m) => m * power).find((step) => step >= rough * 0.999);
}
function scaleOf(values, from, to, { log = false, count = 6 } = {}) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (log) {
    low = 10 ** (Math.log10(low) - 0.06);
    high = 10 ** (Math.log10(high) + 0.06);
    const at = (v) => from + (to - from) * (Math.log(v / low) / Math.log(high / low));
    const ticks = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += 1) {
      for (const m of high / low > 2000 ? [1] : high / low > 60 ? [1, 3] : [1, 2, 5]) {
        if (m * 10 ** e >= low && m * 10 ** e <= high) ticks.push(m * 10 ** e);
      }
    }
    return { at, ticks, low, high, log };
  }
  if (low > 0 && low < high * 0.6) low = 0;
  if (low === high) { high += Math.abs(high) * 0.1 || 1; low -= Math.abs(low) * 0.1; }
  const step = niceStep(high - low, count);
  low = Math.floor(low / step + 1e-9) * step;
  high = Math.ceil((high + (high - low) * 0.02) / step - 1e-9) * step;
  const ticks = [];
  for (let i = 0; low + i * step <= high + step * 1e-6; i += 1) ticks.push(low + i * step);
  return { at: (v) => from + (to - from) * ((v - low) / (high - low)), ticks, low, high, log };
}
const wantsLog = (values) => Math.min(...values) > 0
  && Math.max(...values) / Math.min(...values) > 40;

/* The unit in which an axis is written: latencies above two seconds are read in seconds. */
function axisUnit(quantity, high) {
  if (quantity.unit === 'ms') return high >= 2000 ? { text: 's', per: 1000 } : { text: 'ms', per: 1 };
  if (quantity.unit === 'fraction') return { text: '%', per: 0.01 };
  return { text: quantity.unit === 'USD' ? 'US$' : quantity.unit, per: 1 };
}
const tickText = (value) => (Math.abs(value) < 1e-12 ? '0'
  : value.toLocaleString('en-US', { maximumSignificantDigits: 4 }));
function axisTitle(quantity, statistic, unit, log) {
  const which = quantity.has_statistics ? `, ${statistic}` : '';
  return `${quantity.title}${which} (${unit.text}${log ? ', log scale' : ''})`;
}

function frame(box, x, y, titles) {
  const g = svg('g', { 'aria-hidden': 'true' });
  for (const tick of y.ticks) {
    g.append(svg('line', { class: 'grid', x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick) }),
      svg('text', { x: box.left - 8, y: y.at(tick) + 4, 'text-anchor': 'end' },
        titles.yTick ? titles.yTick(tick) : tickText(tick / titles.yUnit.per)));
  }
  let last = -Infinity;
  for (const tick of x.ticks) {
    g.append(svg('line', { class: 'base', x1: x.at(tick), x2: x.at(tick), y1: box.bottom, y2: box.bottom + 4 }));
    const text = titles.xTick ? titles.xTick(tick) : tickText(tick / titles.xUnit.per);
    const half = text.length * 3.4 + 5;
    if (x.at(tick) - half < last) continue;
    last = x.at(tick) + half;
    g.append(svg('text', { x: x.at(tick), y: box.bottom + 18, 'text-anchor': 'middle' }, text));
  }
  g.append(svg('line', { class: 'base', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg('text', { class: 'title', x: 0, y: 12 }, titles.y, titles.yBetter
      ? svg('tspan', { class: 'better', dx: 8 }, titles.yBetter) : ''),
    svg('text', { class: 'title', x: box.right, y: box.bottom + 37, 'text-anchor': 'end' }, titles.xBetter
      ? svg('tspan', { class: 'better' }, `${titles.xBetter}  `) : '', titles.x));
  return g;
}

/* Limits that speak of an axis: a shaded side and a line with its words. */
function limits(box, scale, axis, name, statistic, constraints, words, drawn = []) {
  const g = svg('g', { 'aria-hidden': 'true' });
  const vertical = axis === 'x';
  const [start, end] = vertical ? [box.left, box.right] : [box.bottom, box.top];
  const clamp = (p) => Math.max(Math.min(start, end), Math.min(Math.max(start, end), p));
  constraints.filter((c) => c.metric === name && (!LATENCIES.includes(name) || c.statistic === statistic))
    .forEach((c, i) => {
      if (scale.log && c.value <= 0) return;
      const raw = scale.at(c.value);
      const at = clamp(raw);
      const inside = Math.abs(raw - at) < 0.5;
      const bad = c.op.startsWith('<') ? [at, end] : c.op.startsWith('>') ? [start, at] : null;
      if (bad && Math.abs(bad[0] - bad[1]) > 0.5) {
        const [a, b] = [Math.min(...bad), Math.max(...bad)];
        g.append(svg('rect', vertical
          ? { class: 'excluded', x: a, y: box.top, width: b - a, height: box.bottom - box.top }
          : { class: 'excluded', x: box.left, y: a, width: box.right - box.left, height: b - a }));
      }
      if (!inside) return;
      g.append(svg('line', vertical
        ? { class: 'limit', x1: at, x2: at, y1: box.top, y2: box.bottom }
        : { class: 'limit', x1: box.left, x2: box.right, y1: at, y2: at }));
      if (!vertical) { g.append(limitWords(box, at, words(c), drawn)); return; }
      const late = at > box.left + (box.right - box.left) * 0.72;
      g.append(svg('text', { class: 'limit-label halo', x: at + (late ? -6 : 6), y: box.bottom - 8 - 15 * i,
        'text-anchor': late ? 'end' : 'start' }, words(c)));
    });
  return g;
}

/* The words of a level line, where they cover the fewest of the drawn points. */
function limitWords(box, at, text, drawn) {
  const wide = text.length * 6.6;
  const places = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [-5, 14].map((dy) => (
    { x: box.left + 4 + share * (box.right - box.left - 8 - wide), y: at + dy })))
    .filter((p) => p.y > box.top + 8 && p.y < box.bottom - 2);
  const covers = (p) => drawn.filter(([x, y]) => x > p.x - 6 && x < p.x + wide + 6 && y > p.y - 15 && y < p.y + 6).length;
  const best = places.sort((a, b) => covers(a) - covers(b))[0] || { x: box.left + 6, y: at - 5 };
  return svg('text', { class: 'limit-label halo', ...best }, text);
}

/* One mark of the scatter: shape says the standing, hollow says simulated. */
function mark(kind, x, y, hollow, attributes = {}, size = 5.2) {
  const look = `mark ${kind}${hollow ? ' hollow' : ''}`;
  if (kind === 'meets') return svg('circle', { class: look, cx: x, cy: y, r: size, ...attributes });
  const r = size * 1.25;
  const d = kind === 'misses' ? `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`
    : kind === 'reference' ? `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}Z`
      : `M${x - size} ${y - size}l${2 * size} ${2 * size}M${x + size} ${y - size}l${-2 * size} ${2 * size}`;
  return svg('path', { class: look, d, ...attributes });
}

const tip = {
  show(event, title, rows) {
    const box = byId('tip');
    box.replaceChildren(make('strong', {}, title),
      make('dl', {}, rows.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)])));
    box.hidden = false;
    const at = event.target.getBoundingClientRect();
    const size = box.getBoundingClientRect();
    const left = Math.min(window.innerWidth - size.width - 8, at.right + 12);
    const top = Math.max(8, Math.min(window.innerHeight - size.height - 8, at.top - 12));
    box.style.left = `${left < at.right && at.left - size.width - 12 > 8 ? at.left - size.width - 12 : Math.max(8, left)}px`;
    box.style.top = `${top}px`;
  },
  hide() { byId('tip').hidden = true; },
};
const withTip = (title, rows) => ({
  onpointerenter: (e) => tip.show(e, title, rows()), onpointerleave: tip.hide,
  onfocus: (e) => tip.show(e, title, rows()), onblur: tip.hide,
});

/* Inverse of the normal distribution (Acklam's approximation, error below 1.2e-9): with it as
   an axis the tail of a latency is as readable as its middle. */
function probit(p) {
  const a = [-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239];
  const b = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572];
  const c = [-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783];
  const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416];
  const poly = (k, x) => k.reduce((sum, each) => sum * x + each, 0);
  if (p < 0.02425) { const q = Math.sqrt(-2 * Math.log(p)); return poly(c, q) / poly([...d, 1], q); }
  if (p > 0.97575) return -probit(1 - p);
  const q = p - 0.5;
  return (poly(a, q * q) * q) / poly([...b, 1], q * q);
}
