import { defineConfig } from 'vite';

/* One script and one style, committed, so that whoever installs the package needs no Node. */
export default defineConfig({
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: '../src/servetune/report/templates',
    emptyOutDir: false,
    copyPublicDir: false,
    target: 'es2022',
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: true,
    lib: { entry: 'src/main.tsx', formats: ['iife'], name: 'servetunePage', fileName: () => 'page.js', cssFileName: 'page' },
  },
});
