/* Further charts of the page, in the order in which they are shown. */
import './charts.css';
import type { MachineCost, MetricImportance, PagePair, Progress, RooflineFigure, RunDifference } from '../data';
import { chart, type Chart, type Trial } from '../view';
import { draw as drawDifferences } from './differences';
import { draw as drawHeatmap } from './heatmap';
import { draw as drawImportance } from './importance';
import { draw as drawMachines } from './machines';
import { draw as drawParallel } from './parallel';
import { draw as drawPredicted } from './predicted';
import { draw as drawProgress } from './progress';
import { drawCurves, drawRoof, drawSteps } from './roofline';

const some = <T>(list: readonly T[] | undefined): readonly T[] | null => (list && list.length ? list : null);

export const CHARTS: readonly Chart[] = [
  chart<RooflineFigure>({
    name: 'curves', title: 'Steady state over users', wide: true, input: (data) => data.figures.roofline ?? null, draw: drawCurves,
  }),
  chart<RooflineFigure>({
    name: 'roofline', title: 'Roofline', note: (input) => `One ${input.device}: operations near a sloped line wait for memory, those near a flat one for compute.`,
    input: (data) => data.figures.roofline ?? null, draw: drawRoof,
  }),
  chart<RooflineFigure>({
    name: 'steps', title: 'Where a step’s time goes', note: 'All layers together.', input: (data) => data.figures.roofline ?? null, draw: drawSteps,
  }),
  chart<readonly MetricImportance[]>({
    name: 'importance', title: 'What matters', note: 'How much each setting moves a metric, the other settings taken out.',
    input: (data) => (data.trials.length > 1 ? some(data.figures.importance) : null), draw: drawImportance,
  }),
  chart<readonly Trial[]>({
    name: 'heatmap', title: 'Two settings', note: 'A metric over two settings, whatever the others are.',
    input: (data, view) => (data.settings.length > 1 ? view.trials : null), draw: drawHeatmap,
  }),
  chart<readonly Progress[]>({
    name: 'progress', title: 'Progress', note: 'The best trial within the limits after each trial, and what stopping there would have cost.',
    input: (data) => (data.trials.length > 1 ? some(data.figures.progress) : null), draw: drawProgress,
  }),
  chart<readonly PagePair[]>({
    name: 'predicted', title: 'Predicted against measured', note: 'Each configuration that was both predicted and measured.',
    input: (data) => (data.pairs.length || data.trials.some((trial) => trial.status === 'ok' && !trial.simulated) ? data.pairs : null), draw: drawPredicted,
  }),
  chart<readonly RunDifference[]>({
    name: 'differences', title: 'Difference to the other run', wide: true, note: 'The same configuration in both runs; an interval that leaves out 0 is a difference.',
    input: (data) => some(data.figures.differences), draw: drawDifferences,
  }),
  chart<readonly Trial[]>({
    name: 'parallel', title: 'All settings', note: 'One line for each trial through its settings to its value.', wide: true,
    input: (data, view) => (data.settings.length > 2 ? view.trials : null), draw: drawParallel,
  }),
  chart<readonly MachineCost[]>({
    name: 'machines', title: 'Cost per machine', note: 'The cheapest way to hold the limits on each machine.', input: (data) => some(data.figures.machines), draw: drawMachines,
  }),
];
