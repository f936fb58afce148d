/* The picks as cards: value with its interval, how sure it is beside the tick, reasons, command. */
import type { JSX } from 'preact';
import type { Choice } from './choice';
import { intervalOf } from './choice';
import type { PageObjective } from './data';
import { deployCommand } from './files';
import type { Model } from './model';
import { Command, CopyButton, FailedTag, SourceTag } from './parts';
import type { State } from './state';
import type { Limit, Trial } from './view';
import { DASH, apart, digits, known, limitText, plural, rangeText, shown } from './words';

const TITLES: Record<string, { title: string; short: string; unit: string }> = {
  throughput: { title: 'Throughput pick', short: 'throughput', unit: 'output tokens/s' },
  latency: { title: 'Latency pick', short: 'latency', unit: 'p99 end-to-end' },
  cost: { title: 'Cheapest per million tokens', short: 'cheapest', unit: 'per million output tokens' },
};
export const titleOf = (objective: PageObjective) => TITLES[objective.name]
  ?? { title: objective.heading, short: objective.objectives?.length ? 'knee' : objective.name, unit: objective.title };

export interface Verdict { sign: '✓' | '?' | '≈' | '✗'; words: string; further: string[]; settled: boolean | null }

/** How sure a pick is, in one line: what the search says of its own pick, else ties, intervals, origin. */
export function verdictOf(model: Model, state: State, objective: PageObjective, pick: Choice): Verdict {
  const trial = pick.chosen!;
  const { search } = model.data;
  const own = search?.doubt && objective.name === search.doubt.objective && sameLimits(model, state) ? search.doubt : null;
  const alone = trial.simulated ? 'Rests on simulation alone' : '';
  const other = own && own.key !== trial.key ? [`The search’s own pick is ${own.label}: ${own.verdict}.`] : [];
  if (own?.key === trial.key) {
    return { sign: own.settled ? '✓' : '?', words: own.settled ? own.verdict : `Not settled: ${own.verdict}`, further: [...own.open, ...(alone ? [`${alone}.`] : [])], settled: own.settled };
  }
  if (!pick.feasible) return { sign: '✗', words: 'No trial meets every limit; this is the nearest', further: [...(alone ? [`${alone}.`] : []), ...other], settled: false };
  if (pick.ties.length) {
    const named = pick.ties.slice(0, 2).map((t) => t.label).join(', ');
    const more = pick.ties.length > 2 ? ` and ${pick.ties.length - 2} more` : '';
    const why = pick.ties.every((t) => pick.value(t) === pick.value(trial)) ? 'equal values' : 'the difference lies within the sampling intervals (95%)';
    return { sign: '≈', words: `A tie with ${named}${more}`, further: [`${why}.`, ...(alone ? [`${alone}.`] : []), ...other], settled: false };
  }
  if (alone) return { sign: '?', words: `${alone}.`, further: other, settled: null };
  if (pick.set.length) return { sign: '✓', words: 'Measured', further: other, settled: null };
  if (!pick.next) return { sign: '✓', words: 'The only one to choose from', further: other, settled: null };
  const told = model.values.toldApart(objective, trial, pick.next);
  return told ? { sign: '✓', words: 'Told apart from the next best (95% intervals)', further: other, settled: true }
    : { sign: '?', words: 'Sampling error not known: a tie cannot be ruled out', further: other, settled: null };
}

function sameLimits(model: Model, state: State): boolean {
  const own = model.data.constraints;
  return state.limits.length === own.length && state.limits.every((c, i) => c.on && c.value === own[i]!.value && c.metric === own[i]!.metric && c.op === own[i]!.op && c.statistic === own[i]!.statistic);
}

export function Picks({ model, state, select }: { model: Model; state: State; select: (key: string) => void }): JSX.Element {
  const limits = state.limits.filter((c) => c.on);
  const picks = model.picks(limits);
  const before = new Map<string, string>();
  return (
    <section class="picks" aria-label="Picks">
      {model.data.objectives.map((objective) => {
        const pick = picks[objective.name]!;
        const key = pick.chosen?.key ?? '';
        const same = before.get(key) ?? null;
        if (key && !same) before.set(key, titleOf(objective).title);
        return <Card model={model} state={state} objective={objective} pick={pick} limits={limits} same={same} select={select} />;
      })}
    </section>
  );
}

function Card({ model, state, objective, pick, limits, same, select }: {
  model: Model; state: State; objective: PageObjective; pick: Choice; limits: readonly Limit[]; same: string | null; select: (key: string) => void;
}): JSX.Element {
  const words = titleOf(objective);
  const trial = pick.chosen;
  if (!trial) {
    return (
      <article class="card pick" data-pick={objective.name} data-key="">
        <div class="kind"><h2>{words.title}</h2></div><p class="value">{DASH}</p>
        <p class="note">{objective.name === 'cost' ? 'No trial has a cost: the price of the machine is not known.' : 'No trial has a value for this.'}</p>
      </article>
    );
  }
  const unit = model.quantities.get(objective.metric)?.unit ?? '';
  const value = pick.value(trial);
  const ends = intervalOf(trial, objective.metric, objective.statistic);
  const verdict = verdictOf(model, state, objective, pick);
  return (
    <article class="card pick" data-pick={objective.name} data-key={trial.key} data-feasible={String(pick.feasible)} data-ties={pick.ties.map((t) => t.key).join(' ')}>
      <div class="kind"><h2>{words.title}</h2><span class="tags"><FailedTag trial={trial} /><SourceTag trial={trial} /></span></div>
      <div>
        <p class="value">{objective.name === 'throughput' && known(value) ? digits(value) : shown(value, unit)}<small>{words.unit}</small></p>
        {ends ? <p class="ends">{rangeText(ends, unit)} <span class="muted">(95%)</span></p> : null}
      </div>
      <p class="config"><button type="button" class="plain" title="Select this trial" onClick={() => select(trial.key)}>{trial.label}</button></p>
      <div class="doubt" data-settled={String(verdict.settled)} data-rests={trial.simulated ? 'simulation' : 'measurement'}>
        <p class="verdict"><span class="sign">{verdict.sign}</span> {verdict.words}</p>
        {verdict.further.map((text) => <p>{text}</p>)}
      </div>
      <Numbers model={model} objective={objective} trial={trial} />
      <ul class="why">{reasonsOf(model, objective, pick, limits).map(([text, bad]) => <li class={bad ? 'bad' : ''}>{text}</li>)}</ul>
      {same ? <p class="note">The same trial as the {same.charAt(0).toLowerCase() + same.slice(1)}.</p> : (
        <>
          {trial.suggestions.length ? (
            <details><summary>{plural(trial.suggestions.length, 'suggestion')} from the trials</summary>
              {trial.suggestions.map((text) => <p class="suggestion">{text}.</p>)}</details>) : null}
          <div class="foot"><Command text={trial.cmd}><CopyButton text={() => deployCommand(model, trial, state)}>Copy deploy command</CopyButton></Command></div>
        </>)}
    </article>
  );
}

function Numbers({ model, objective, trial }: { model: Model; objective: PageObjective; trial: Trial }): JSX.Element {
  const further = (objective.objectives ?? []).slice(1).map((o): [string, string, string] => [o.name, o.metric, o.statistic]);
  const usual: [string, string, string][] = [['Output', 'output_throughput', 'mean'], ['TTFT mean', 'ttft', 'mean'], ['ITL mean', 'itl', 'mean'], ['E2E p99', 'e2e_latency', 'p99'], ['$/M tokens', 'cost_per_million_tokens', 'mean'], ['Requests', 'request_throughput', 'mean']];
  const rows = [...further, ...usual].filter(([, name, statistic], i, all) => !(name === objective.metric && statistic === objective.statistic)
    && model.values.of(trial, name, statistic) !== null && all.findIndex(([, n, s]) => n === name && s === statistic) === i)
    .slice(0, Math.max(model.data.objectives.length > 3 ? 3 : 4, further.length));
  return <dl class="numbers">{rows.map(([label, name, statistic]) => <div><dt>{label}</dt><dd>{shown(model.values.of(trial, name, statistic), model.quantities.get(name)?.unit ?? '')}</dd></div>)}</dl>;
}

function reasonsOf(model: Model, objective: PageObjective, pick: Choice, limits: readonly Limit[]): [string, boolean][] {
  const chosen = pick.chosen!;
  const got = (c: Limit) => shown(model.values.of(chosen, c.metric, c.statistic), model.quantities.get(c.metric)?.unit ?? '');
  const text = (c: Limit) => limitText(c, model.quantities);
  const leftOut = pick.leftOut.map((each): [string, boolean] => [each, false]);
  const failing: [string, boolean][] = chosen.failed_requests ? [[chosen.failed_requests.sentence, Boolean(chosen.failed_requests.mark)]] : [];
  if (!pick.feasible) {
    const { missed, unknown } = model.values.standing(chosen, limits);
    return [[model.data.ladder ? 'It holds as many of the first limits as any and is nearest on the next' : 'Its worst miss, relative to its limit, is the smallest', true],
      ...missed.map((c): [string, boolean] => [`misses ${text(c)}: ${got(c)}`, true]), ...unknown.map((c): [string, boolean] => [`${text(c)} was not measured`, true]), ...failing, ...leftOut];
  }
  const what = pick.set.length ? `knee of the Pareto set (${plural(pick.set.length, 'trial')})` : `${objective.maximize ? 'highest' : 'lowest'} ${objective.title}`;
  const one = pick.eligibleCount === 1;
  const said: [string, boolean][] = [[`${what} of ${plural(pick.eligibleCount, 'trial')}${limits.length ? ` that meet${one ? 's' : ''} every limit` : ''}`, false], ...failing, ...leftOut];
  limits.forEach((c) => said.push([`${text(c)} holds: ${got(c)}`, false]));
  const { next } = pick;
  if (next) said.push([`next best: ${next.label} (${apart((pick.value(next) ?? 0) / (pick.value(chosen) || 1) - 1)})`, false]);
  return said;
}
