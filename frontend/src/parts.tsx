/* Small parts of the page that several panels use. */
import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { copy, download } from './files';
import { pngOf, svgText } from './plot';
import type { Trial, View } from './view';
import { mark } from './plot';

export function SourceTag({ trial }: { trial: Pick<Trial, 'simulated'> }): JSX.Element {
  return trial.simulated ? <span class="tag simulated-tag">SIMULATED</span> : <span class="tag measured-tag">measured</span>;
}

export function FailedTag({ trial }: { trial: Pick<Trial, 'failed_requests'> }): JSX.Element | null {
  const words = trial.failed_requests?.mark;
  return words ? <span class="tag failed-tag">{words}</span> : null;
}

export function CopyButton({ text, children }: { text: () => string; children: string }): JSX.Element {
  const [said, say] = useState('');
  const act = async () => {
    say((await copy(text())) ? 'Copied' : 'Not allowed here');
    setTimeout(() => say(''), 1600);
  };
  return <button type="button" class="small" onClick={act} aria-live="polite">{said || children}</button>;
}

/** A command in full, wrapped between its words, with a button that copies it. */
export function Command({ text, children }: { text: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="command">
      {text ? <pre>{text.split(' ').flatMap((word, i) => [i ? ' ' : '', <span class="word">{word}</span>])}</pre> : null}
      <div class="row">{text ? <CopyButton text={() => text}>Copy launch command</CopyButton> : null}{children}</div>
    </div>
  );
}

/** Menu that closes on Escape and on a click elsewhere. */
export function Menu({ label, on, children }: { label: string; on?: boolean; children: ComponentChildren }): JSX.Element {
  const ref = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    // An element around the menu takes the focus of a click on the menu's words: that is not elsewhere.
    const outside = (e: Event) => {
      const [menu, target] = [ref.current, e.target as Node];
      if (menu?.open && !menu.contains(target) && !(e.type === 'focusin' && target.contains(menu))) menu.open = false;
    };
    document.addEventListener('pointerdown', outside);
    document.addEventListener('focusin', outside);
    return () => { document.removeEventListener('pointerdown', outside); document.removeEventListener('focusin', outside); };
  }, []);
  const keys = (e: KeyboardEvent) => {
    if (e.key !== 'Escape' || !ref.current?.open) return;
    ref.current.open = false;
    ref.current.querySelector('summary')?.focus();
  };
  return (
    <details class={`menu${on ? ' on' : ''}`} ref={ref} onKeyDown={keys}>
      <summary>{label}</summary>
      <div class="menu-body">{children}</div>
    </details>
  );
}

export function Select({ label, value, options, choose, hide }: {
  label: string; value: string; options: readonly (readonly [string, string])[]; choose: (value: string) => void; hide?: boolean;
}): JSX.Element {
  return (
    <select aria-label={label} value={value} hidden={hide} onChange={(e) => choose(e.currentTarget.value)}>
      {options.map(([v, words]) => <option value={v} selected={v === value}>{words}</option>)}
    </select>
  );
}

/** Mark of a standing, for words beside it. */
export function StandingMark({ kind }: { kind: 'meets' | 'misses' | 'failed' }): JSX.Element {
  const ref = useRef<SVGSVGElement>(null);
  useLayoutEffect(() => {
    const shape = { meets: 'circle', misses: 'diamond', failed: 'cross' }[kind] as 'circle' | 'diamond' | 'cross';
    ref.current?.replaceChildren(mark(shape, 7, 7, 4, `var(--${kind})`, false));
  }, [kind]);
  return <svg ref={ref} width="14" height="14" viewBox="0 0 14 14" aria-hidden="true" />;
}

/** Card of one chart: drawn for its width, again when what it shows changes, only near the screen
    where there are many trials, and saved as a file. */
export function Figure({ id, title, note, controls, wide, lazy, draw, view, children }: {
  id: string; title: string; note?: ComponentChildren; controls?: ComponentChildren; wide?: boolean; lazy?: boolean;
  draw: (host: HTMLElement, view: View) => void; view: View; children?: ComponentChildren;
}): JSX.Element {
  const host = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [near, setNear] = useState(!lazy);
  useLayoutEffect(() => {
    const box = host.current!;
    const measure = () => setWidth(Math.max(260, Math.floor(box.clientWidth)));
    measure();
    // In the next frame, since a measurement that changes the page's height would be one too many.
    const resized = new ResizeObserver(() => requestAnimationFrame(measure));
    resized.observe(box);
    const seen = new IntersectionObserver((entries) => setNear((now) => (lazy ? entries.some((e) => e.isIntersecting) : now)), { rootMargin: '300px' });
    seen.observe(box);
    const all = () => setNear(true);
    window.addEventListener('beforeprint', all);
    return () => { resized.disconnect(); seen.disconnect(); window.removeEventListener('beforeprint', all); };
  }, [lazy]);
  useLayoutEffect(() => {
    if (!width || !near) return;
    view.tip.hide();
    const focus = document.activeElement;
    const cursor = focus instanceof SVGElement && host.current!.contains(focus) ? focus.dataset['trial'] ?? (focus.classList.contains('cursor') ? 'cursor' : null) : null;
    draw(host.current!, { ...view, width });
    if (cursor === 'cursor') host.current!.querySelector<SVGElement>('.cursor')?.focus();
    else if (cursor) host.current!.querySelector<SVGElement>(`[data-trial="${cursor}"][tabindex]`)?.focus();
  }, [width, near, view, draw]);
  const name = `${view.data.title || 'servetune'}-${id}`;
  const png = async () => { const made = await pngOf(host.current!); if (made) download(`${name}.png`, made); };
  return (
    <section class={`card figure${wide ? ' wide' : ''}`} id={id} aria-labelledby={`h-${id}`}>
      <div class="head">
        <h2 id={`h-${id}`}>{title}</h2>
        <div class="controls">{controls}
          <span class="export">
            <button type="button" class="quiet" aria-label={`Save ${title} as SVG`} onClick={() => { const made = svgText(host.current!); if (made) download(`${name}.svg`, made, 'image/svg+xml'); }}>SVG</button>
            <button type="button" class="quiet" aria-label={`Save ${title} as PNG`} onClick={png}>PNG</button>
          </span>
        </div>
      </div>
      {note ? <p class="note">{note}</p> : null}
      <div class={near ? 'plot' : 'plot pending'} ref={host} />
      {children}
    </section>
  );
}
