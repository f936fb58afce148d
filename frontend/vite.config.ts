import { defineConfig } from 'vite';

/* One script and one style, committed, so that whoever installs the package needs no Node. */
export default defineConfig({
  plugins: [{
    // Characters that steer a terminal or the direction of text are written as escapes.
    name: 'visible-characters',
    generateBundle(_, bundle) {
      for (const each of Object.values(bundle)) {
        if (each.type === 'chunk') each.code = each.code.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
      }
    },
  }],
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
