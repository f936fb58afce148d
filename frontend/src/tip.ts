/* The hover box: one for the page, beside what it speaks of and inside the window. */
import { html } from './plot';
import type { Tip } from './view';

let box: HTMLElement | null = null;

export const tip: Tip = {
  show(at, title, rows) {
    if (!box) { box = html('div', { id: 'tip', class: 'tip', role: 'tooltip' }); document.body.append(box); }
    box.replaceChildren(html('strong', {}, title), html('dl', {}, rows.map(([name, value]) => html('div', name ? {} : { class: 'alone' }, html('dt', {}, name), html('dd', {}, value)))));
    box.hidden = false;
    const place = at instanceof Element ? at.getBoundingClientRect() : new DOMRect(at.clientX - 4, at.clientY - 4, 8, 8);
    const size = box.getBoundingClientRect();
    const right = place.right + 12;
    const left = right + size.width + 8 <= window.innerWidth ? right : place.left - size.width - 12;
    box.style.left = `${Math.max(8, Math.min(window.innerWidth - size.width - 8, left))}px`;
    box.style.top = `${Math.max(8, Math.min(window.innerHeight - size.height - 8, place.top - 12))}px`;
  },
  hide() { if (box) box.hidden = true; },
};
