/* Further charts of the page, in the order in which they are shown. */
import type { Chart } from '../view';

export const CHARTS: readonly Chart[] = [];
