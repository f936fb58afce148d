/* Types of the page's data and of a run's status. Written by tools/page_types.py out of
   structs in src/servetune/report/ and ui/messages.py; change those and run `make page`. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** Value at one concurrency, with the interval of its prediction. */
export interface BandPoint {
  concurrency: number;
  value: number;
  low: number;
  high: number;
}

/** Best trial so far. */
export interface BestSoFar {
  label: string;
  metric: string;
  value?: number | null;
}

/** Quantity over concurrency. */
export interface Curve {
  title: string;
  unit: "ms" | "tokens/s";
  points: BandPoint[];
}

/** Operation of one step under the roof, on one device. */
export interface Dot {
  name: string;
  kind: string;
  phase: "decode" | "prefill";
  flops_per_byte: number;
  flops_per_s: number;
  share_fraction: number;
}

/** Failed requests as texts; `mark` where they are more than a pick tolerates. */
export interface FailedRequestCount {
  fraction: string;
  sentence: string;
  mark: string | null;
}

/** Data of further figures, each made by a module of its own; empty where there is nothing. */
export interface Figures {
  importance?: MetricImportance[];
  progress?: Progress[];
  machines?: MachineCost[];
  differences?: RunDifference[];
  roofline?: RooflineFigure | null;
}

/** Facts common to all trials, for the top of the page; `None` where unknown. */
export interface Header {
  model: string | null;
  machine: string | null;
  instance: string | null;
  price: string | null;
  price_source: string | null;
  engine: string | null;
  workload: string | null;
  date: string | null;
  simulated: boolean | string;
  simulated_speed: number | null;
  accuracy: string | null;
  simulated_count: number;
  failed_count: number;
  trial_count: number;
}

/** Metric under one value of a setting, the other settings' effects taken out. */
export interface LevelEffect {
  value: string;
  factor: number;
  trial_count: number;
}

/** Addresses of a page that follows a run: server-sent events, and where to POST controls. */
export interface Live {
  events: string;
  control: string;
}

/** Cheapest way to serve the workload on one machine. */
export interface MachineCost {
  machine: string;
  label: string;
  cost: number | null;
  low?: number | null;
  high?: number | null;
  usd_per_hour?: number | null;
  price_source?: string;
  copies?: number | null;
  output_tokens_per_s?: number | null;
  holds?: boolean;
  missed?: string;
  key?: string;
  predicted?: boolean;
}

/** Importance of every varied setting for one metric. */
export interface MetricImportance {
  metric: string;
  statistic: string;
  trial_count: number;
  settings?: SettingImportance[];
  unexplained_fraction?: number;
  with_pairs?: boolean;
  reason?: string;
}

/** Objective of a choice: one metric of a trial and its direction. */
export interface Objective {
  name: string;
  metric: string;
  statistic: string;
  maximize: boolean;
  title: string;
}

/** Limit that is enabled when the page opens, in ms for latencies. */
export interface PageConstraint {
  metric: string;
  statistic: string;
  op: string;
  value: number;
  label: string;
}

/** Data of the whole page; `timelines` has those of a sweep's trials by their keys. */
export interface PageData {
  schema: number;
  servetune: string;
  title: string;
  header: Header;
  quantities: PageQuantity[];
  statistics: string[];
  objectives: PageObjective[];
  ladder: boolean;
  constraints: PageConstraint[];
  tolerated_error_rate: number;
  settings: PageSetting[];
  load: string | null;
  trials: PageTrial[];
  repeats: PageRepeat[];
  picks: Record<string, PagePick>;
  pareto: string[];
  search: PageSearch | null;
  pairs: PagePair[];
  timeline: Timeline | null;
  timelines: Record<string, Timeline>;
  references: PageReference[];
  figures: Figures;
  live?: Live | null;
}

/** How sure the search's pick is, in the words of the command line. */
export interface PageDoubt {
  key: string;
  label: string;
  objective: string;
  settled: boolean;
  verdict: string;
  open: string[];
}

/** Objective of a pick, the first of several; `objectives` has all where there are several. */
export interface PageObjective {
  name: string;
  heading: string;
  metric: string;
  statistic: string;
  maximize: boolean;
  title: string;
  objectives?: Objective[];
}

/** Predicted and measured values of one configuration. */
export interface PagePair {
  own: boolean;
  label: string;
  key: string;
  gaps: QuantityError[];
}

/** Pick of the command line under the limits of the run, with its reasons and ties. */
export interface PagePick {
  key: string | null;
  label: string | null;
  feasible: boolean;
  reasons: string[];
  ties: string[];
}

/** Quantity of a trial: names, unit and direction; see `quantities.Quantity`. */
export interface PageQuantity {
  name: string;
  title: string;
  short: string;
  unit: string;
  maximize: boolean;
  has_statistics: boolean;
}

/** Record of another run, shown for comparison. */
export interface PageReference {
  label: string;
  results: Record<string, Json>;
  failed_requests: FailedRequestCount | null;
  devices: number | null;
  simulated: boolean;
}

/** Trials that differ by their seed alone: one candidate of a pick, with the mean of their     results. */
export interface PageRepeat {
  label: string;
  keys: string[];
  results: Record<string, Json>;
}

/** What the search did, as lines, and the doubt about its pick. */
export interface PageSearch {
  lines: string[];
  doubt: PageDoubt | null;
}

/** Setting that differs between trials; `side` is `server` or `client`. */
export interface PageSetting {
  name: string;
  short: string;
  side: string;
}

/** Trial as the page shows it. */
export interface PageTrial {
  id: number;
  key: string;
  label: string;
  series: string;
  server: Record<string, Json>;
  client: Record<string, Json>;
  status: string;
  simulated: boolean;
  devices: number | null;
  load: number | null;
  results: Record<string, Json>;
  failed_requests: FailedRequestCount | null;
  predicted: Record<string, Json> | null;
  interval: Record<string, Json> | null;
  cmd: string;
  metadata: Record<string, Json>;
  provenance: Record<string, Json>;
  server_log: string | null;
  failure: TrialFailure | null;
  suggestions: string[];
  miscounted: string | null;
}

/** Progress of a run in one objective. */
export interface Progress {
  objective: string;
  steps: ProgressStep[];
  trial_count: number;
  best: number | null;
  predicted?: number | null;
  predicted_low?: number | null;
  predicted_high?: number | null;
  reason?: string;
}

/** State of a run when one of its trials had ended. */
export interface ProgressStep {
  number: number;
  key: string;
  label: string;
  started_s: number | null;
  value: number | null;
  counts: boolean;
  best: number | null;
  regret_fraction: number | null;
}

/** Prediction error of one quantity. */
export interface QuantityError {
  quantity: string;
  statistic: string;
  predicted: number | null;
  measured: number | null;
  error_fraction: number | null;
  low?: number | null;
  high?: number | null;
  inside?: boolean | null;
}

/** Compute roof of one dtype (or of several at one rate). */
export interface Roof {
  dtype: string;
  flops_per_s: number;
}

/** Roofline, steps and curves of one plan on one machine. */
export interface RooflineFigure {
  device: string;
  memory_bytes_per_s: number;
  roofs: Roof[];
  dots: Dot[];
  bars: StepBar[];
  curves: Curve[];
  chosen_concurrency: number;
  knee_concurrency: number | null;
  dots_note: string;
  curves_note: string;
}

/** One metric of one configuration in two runs. */
export interface RunDifference {
  key: string;
  label: string;
  quantity: string;
  statistic: string;
  here: number;
  here_ends: [number | null, number | null];
  there: number;
  there_ends: [number | null, number | null];
  change_fraction: number;
  change_low: number | null;
  change_high: number | null;
  told_apart: boolean | null;
}

/** Trial that is running now. */
export interface RunningTrial {
  label: string;
  stage: string;
  key?: string;
  throughput?: number | null;
  errors?: number;
  elapsed_s?: number;
}

/** Importance of one setting for one metric. */
export interface SettingImportance {
  name: string;
  short: string;
  side: "client" | "server";
  share_fraction: number;
  change_fraction: number;
  change_high_fraction: number;
  standing: "inseparable" | "matters" | "nothing" | "unclear";
  levels?: LevelEffect[];
}

/** Status of a run for its page; the first fields are of the first running trial. */
export interface StatusMessage {
  label?: string | null;
  stage?: string | null;
  throughput?: number | null;
  elapsed_s?: number | null;
  errors?: number;
  best?: BestSoFar | null;
  regret_fraction?: number | null;
  time_left_s?: number | null;
  done?: number | null;
  of?: number | null;
  state?: "ended" | "lost" | "running";
  running?: RunningTrial[];
  run_elapsed_s?: number | null;
  refuses_put_off?: string;
  note?: string;
}

/** Step with its time, its bottleneck and its slices. */
export interface StepBar {
  phase: "decode" | "prefill";
  label: string;
  time_ms: number;
  bound: string;
  slices: StepSlice[];
}

/** Share of one operation in a step's time, operations without a dot included. */
export interface StepSlice {
  name: string;
  kind: string;
  share_fraction: number;
  time_ms: number;
}

/** Request timeline of a single trial; `seen_by_client` where its admissions are send times. */
export interface Timeline {
  duration_s: number;
  total: number;
  seen_by_client: boolean;
  bars: ([number, number, number | null, number | null, number, number | null, number | null, boolean])[];
  curves: TimelineCurves;
  kv: [number, number][];
}

/** Mean numbers of requests over bins of equal width. */
export interface TimelineCurves {
  width_s: number;
  running: number[];
  waiting: number[];
}

/** Reason for which a trial failed, and the end of its server's log. */
export interface TrialFailure {
  kind: string;
  reason: string;
  log_tail: string;
}
