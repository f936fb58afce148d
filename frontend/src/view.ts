/* What a chart is given by the page beside its own data. */
import type { PageConstraint, PageData, PageReference, PageTrial } from './data';

export type Trial = PageTrial;
export type Statistic = string;

/** A limit of the page; `on` where it counts, `added` where the page added it. */
export interface Limit extends Omit<PageConstraint, 'label'> {
  on: boolean;
  added: boolean;
}

/** Metric and, for latencies, its statistic. */
export interface Measure {
  name: string;
  statistic: Statistic;
}

export type Shape = 'circle' | 'diamond' | 'square' | 'triangle' | 'cross' | 'plus';
export type Rows = [name: string, value: string][];

/** Hover box of the page, one for all charts. Text is inserted as text. */
export interface Tip {
  show(at: Element | { clientX: number; clientY: number }, title: string, rows: Rows): void;
  hide(): void;
}

export interface View {
  data: PageData;
  /** Trials that pass the filters, in the order of the run. */
  trials: readonly Trial[];
  /** Limits that are on. */
  limits: readonly Limit[];
  /** Keys of the selected trials. */
  selection: ReadonlySet<string>;
  /** Makes these trials the selection; `add` keeps what is selected. */
  select(keys: readonly string[], add?: boolean): void;
  dark: boolean;
  /** Width to draw for, in CSS pixels; 390 px screens have some 330. */
  width: number;
  /** Value of a trial; null without one. Latencies are in ms. */
  value(trial: Trial | PageReference, name: string, statistic?: Statistic): number | null;
  /** 95% sampling interval of a value; null where the record has none, an end null where unknown. */
  interval(trial: Trial | PageReference, name: string, statistic?: Statistic): [number | null, number | null] | null;
  /** `meets`, `misses` or `failed` under the limits that are on. */
  standing(trial: Trial): 'meets' | 'misses' | 'failed';
  /** Number with its unit: `shown(1234, 'ms')` is `1.23 s`. */
  shown(value: number | null | undefined, unit: string): string;
  /** Colour and shape of a trial as the reader has chosen them; CSS colour such as `var(--c0)`. */
  colour(trial: Trial): string;
  shape(trial: Trial): Shape;
  tip: Tip;
}

/** Chart of the page; `input` picks its data, null where there is nothing to draw. */
export interface Chart<Input = unknown> {
  /** Anchor and key in the page's address: `importance`. */
  name: string;
  title: string;
  /** One sentence under the title; may depend on the data. */
  note?: string | ((input: Input, view: View) => string);
  /** Whether it takes the whole width of the page. */
  wide?: boolean;
  input(data: PageData, view: View): Input | null;
  draw(host: HTMLElement, input: Input, view: View): void;
}

/** Chart with its own type of input, as an entry of the list of charts. */
export function chart<Input>(made: Chart<Input>): Chart {
  return made as unknown as Chart;
}
