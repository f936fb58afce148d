/* Reads the data that the page embeds and mounts the page. A fault is said, not swallowed. */
import { render } from 'preact';
import type { PageData } from './data';
import './page.css';
import { App } from './page';

/** Version of the data that this script knows; see PAGE_SCHEMA in page_data.py. */
const SCHEMA = 1;

function broken(message: string): void {
  document.documentElement.dataset['error'] = message;
  const box = document.getElementById('broken');
  if (!box) return;
  box.hidden = false;
  box.textContent = message;
}

window.addEventListener('error', (event) => broken(`This page could not be drawn completely (${event.message}). The journal is not affected; please report this.`));
window.addEventListener('unhandledrejection', (event) => broken(`This page could not be drawn completely (${String(event.reason)}). The journal is not affected; please report this.`));

/** The embedded data: JSON, or of long runs JSON as gzip in base64. */
async function embedded(): Promise<PageData> {
  const element = document.getElementById('data')!;
  const text = element.textContent ?? '';
  if (element.getAttribute('type') === 'application/json') return JSON.parse(text) as PageData;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return (await new Response(stream).json()) as PageData;
}

void embedded().then((data) => {
  if (data.schema > SCHEMA) {
    broken(`The data of this page have version ${data.schema}, and its script knows versions up to ${SCHEMA}: open it with a newer servetune (servetune report).`);
    return;
  }
  const host = document.getElementById('app')!;
  host.hidden = false;
  render(<App first={data} />, host);
});
