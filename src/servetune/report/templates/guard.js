/* A fault is said on the page, not swallowed: the journal is still whole. */
window.addEventListener('error', (event) => {
  document.documentElement.dataset.error = event.message;
  const box = document.getElementById('broken');
  if (!box) return;
  box.hidden = false;
  box.textContent = `This page could not be drawn completely (${event.message}). The journal is not affected; please report this.`;
});
