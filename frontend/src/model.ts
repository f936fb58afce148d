/* What follows from the data and a reader's choices: standings, picks, the trials that are shown. */
import { Values, intervalOf, type Choice, type Standing } from './choice';
import type { PageData, PageQuantity, PageSetting } from './data';
import type { State } from './state';
import type { Limit, Shape, Tip, Trial, View } from './view';
import { naturally, settingText, shown } from './words';

const SHAPES: readonly Shape[] = ['circle', 'square', 'triangle', 'diamond', 'plus', 'cross'];
const HUES = 8;

export class Model {
  readonly values: Values;
  readonly quantities: ReadonlyMap<string, PageQuantity>;
  readonly byKey: ReadonlyMap<string, Trial>;
  private standingsFor: { limits: string; each: Standing[] } | null = null;
  private picksFor: { limits: string; each: Record<string, Choice> } | null = null;
  private readonly looks = new Map<string, (trial: Trial) => number>();

  constructor(readonly data: PageData) {
    this.values = new Values(data);
    this.quantities = new Map(data.quantities.map((q) => [q.name, q]));
    this.byKey = new Map(data.trials.map((t) => [t.key, t]));
  }

  standings(limits: readonly Limit[]): Standing[] {
    const key = JSON.stringify(limits);
    if (this.standingsFor?.limits !== key) this.standingsFor = { limits: key, each: this.data.trials.map((t) => this.values.standing(t, limits)) };
    return this.standingsFor.each;
  }

  picks(limits: readonly Limit[]): Record<string, Choice> {
    const key = JSON.stringify(limits);
    if (this.picksFor?.limits !== key) {
      this.picksFor = { limits: key, each: Object.fromEntries(this.data.objectives.map((o) => [o.name, this.values.recommend(limits, o)])) };
    }
    return this.picksFor.each;
  }

  /** Trials that pass the filters, in the order of the run. */
  filtered(state: State): readonly Trial[] {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const settings = this.data.settings.filter((s) => state.filters[s.name]).map((s) => ({ s, wanted: new Set(state.filters[s.name]) }));
    if (!words.length && !state.kind && !settings.length) return this.data.trials;
    const standings = this.standings(state.limits.filter((c) => c.on));
    return this.data.trials.filter((t) => {
      if (state.kind && standings[t.id]!.kind !== state.kind) return false;
      if (settings.some(({ s, wanted }) => !wanted.has(settingOf(t, s)))) return false;
      if (!words.length) return true;
      const text = `${t.label} ${t.cmd} ${t.failure ? `${t.failure.kind} ${t.failure.reason}` : ''} ${t.simulated ? 'simulated' : 'measured'} ${t.failed_requests?.mark ?? ''}`.toLowerCase();
      return words.every((w) => text.includes(w));
    });
  }

  /** Values of a setting, in natural order. */
  valuesOf(setting: PageSetting): string[] {
    return [...new Set(this.data.trials.map((t) => settingOf(t, setting)))].sort(naturally);
  }

  /** Place of a trial's value among those of a setting. */
  private place(name: string): (trial: Trial) => number {
    let found = this.looks.get(name);
    if (!found) {
      const setting = this.data.settings.find((s) => s.name === name)!;
      const places = new Map(this.valuesOf(setting).map((v, i) => [v, i]));
      found = (trial) => places.get(settingOf(trial, setting))!;
      this.looks.set(name, found);
    }
    return found;
  }

  /** View of a chart; `width` is set by its figure. */
  view(state: State, select: View['select'], dark: boolean, tip: Tip): View {
    const limits = state.limits.filter((c) => c.on);
    const standings = this.standings(limits);
    const standing = (t: Trial) => standings[t.id]?.kind ?? this.values.standing(t, limits).kind;
    const [hue, form] = [state.colour ? this.place(state.colour) : null, state.shape ? this.place(state.shape) : null];
    return {
      data: this.data, trials: this.filtered(state), limits, selection: new Set(state.selection), select, dark, width: 0,
      value: (trial, name, statistic) => this.values.of(trial, name, statistic), interval: intervalOf, standing, shown,
      colour: (t) => (hue ? `var(--c${hue(t) % HUES})` : `var(--${standing(t)})`),
      shape: (t) => (form ? SHAPES[form(t) % SHAPES.length]! : standing(t) === 'misses' ? 'diamond' : standing(t) === 'failed' ? 'cross' : 'circle'),
      tip,
    };
  }
}

export const settingOf = (trial: Trial, setting: PageSetting): string => settingText((setting.side === 'server' ? trial.server : trial.client)[setting.name]);
