(() => {
'use strict';
const byId = (id) => document.getElementById(id);
let rows = [];

function cell(head, text, kind) {
  const made = document.createElement('td');
  made.dataset.head = head;
  made.textContent = text ?? '–';
  if (kind) made.className = kind;
  return made;
}

function when(unixS) {
  return new Date(unixS * 1000).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
}

function trials(facts) {
  const count = facts.trials.toLocaleString('en');
  return facts.failed ? `${count} (${facts.failed.toLocaleString('en')} failed)` : count;
}

function drawn(row) {
  const { facts } = row;
  const made = document.createElement('tr');
  const link = document.createElement('a');
  link.href = `/runs/${row.key}`;
  link.textContent = row.name;
  const first = document.createElement('td');
  first.append(link);
  made.append(first, cell('Status', row.standing, row.standing));
  if (facts.problem) {
    const problem = cell('Problem', facts.problem, 'interrupted');
    problem.colSpan = 5;
    made.append(problem);
  } else if (!row.read) {
    const reading = cell('Trials', 'being read', 'quiet');
    reading.colSpan = 5;
    made.append(reading);
  } else {
    made.append(cell('Model', facts.model), cell('Machine', facts.machine),
      cell('Engine', facts.engine), cell('Trials', trials(facts), 'number'),
      cell('Pick', facts.pick));
  }
  made.append(cell('Changed', when(row.changed_unix_s), 'quiet'));
  return made;
}

function words(row) {
  const { name, standing, facts } = row;
  return [name, standing, facts.model, facts.machine, facts.engine, facts.pick, facts.problem]
    .join(' ').toLowerCase();
}

function draw() {
  const wanted = byId('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = rows.filter((row) => wanted.every((word) => words(row).includes(word)));
  byId('runs').replaceChildren(...shown.map(drawn));
  const noun = rows.length === 1 ? 'run' : 'runs';
  byId('count').textContent = shown.length === rows.length
    ? `${rows.length} ${noun}` : `${shown.length} of ${rows.length} ${noun}`;
}

byId('search').addEventListener('input', draw);
const events = new EventSource('/events');
events.addEventListener('runs', (event) => {
  rows = JSON.parse(event.data);
  draw();
});
events.addEventListener('error', () => {
  byId('count').textContent = 'The server of this page does not answer; trying again';
});
events.addEventListener('open', () => { if (rows.length) draw(); });
})();
