"""How the page of a report looks: on paper, on a phone, in the dark."""

from __future__ import annotations

STYLE = """
:root { --ground: #fff; --card: #f7f8fa; --ink: #1b2430; --soft: #566173; --grid: #dde2e9;
  --bar: #4a86c5; --warm: #e08b3e; --cold: #4a86c5; --limit: #c0392b;
  --read: #4a86c5; --transform: #8b6cc1; --collate: #3f9d7a; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #12161c; --card: #1a2029; --ink: #e6eaf0; --soft: #a3aebd; --grid: #323b48;
    --bar: #4f8fd0; --warm: #d98a43; --cold: #4f8fd0; --limit: #f0705f;
    --read: #4f8fd0; --transform: #9a7fd0; --collate: #46a884; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 16px; }
h1, h2, h3 { line-height: 1.2; }
h1 { font-size: 1.5rem; margin: 0 0 12px; }
h2 { font-size: 1.2rem; margin: 32px 0 12px; border-top: 1px solid var(--grid); padding-top: 16px; }
h3 { font-size: 1rem; margin: 0 0 8px; }
p, dd, figcaption { overflow-wrap: anywhere; }
.words { border-left: 4px solid var(--bar); padding: 2px 0 2px 12px; margin-bottom: 16px; }
.words p { margin: 4px 0; }
.words p:first-child { font-size: 1.15rem; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 0 0 24px;
  font-size: .875rem; }
dt { color: var(--soft); }
dd { margin: 0; }
.charts { columns: 2 320px; column-gap: 16px; margin-bottom: 24px; }
figure { margin: 0 0 16px; padding: 12px; background: var(--card); border-radius: 8px;
  break-inside: avoid; max-width: 480px; }
figure svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit; paint-order: stroke; stroke: var(--card); stroke-width: 3px; }
figcaption { font-size: .8125rem; color: var(--soft); margin-top: 6px; }
.key { display: flex; flex-wrap: wrap; gap: 0 14px; }
.key i { display: inline-block; width: .75em; height: .75em; border-radius: 2px;
  margin-right: .4em; }
.warm { background: var(--warm); } .cold { background: var(--cold); }
.limit { background: var(--limit); } .read { background: var(--read); }
.transform { background: var(--transform); } .collate { background: var(--collate); }
.scroll { overflow-x: auto; margin-bottom: 24px; border: 1px solid var(--grid);
  border-radius: 8px; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums;
  width: max-content; min-width: 100%; }
th, td { padding: 5px 10px; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--grid); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 500; }
.num { text-align: right; }
tr > :first-child { position: sticky; left: 0; background: var(--ground);
  max-width: min(36vw, 300px); white-space: normal; overflow-wrap: break-word; }
details { margin-bottom: 24px; }
summary { cursor: pointer; }
pre { overflow: auto; max-height: 70vh; padding: 12px; background: var(--card);
  border-radius: 8px; font-size: .75rem; }
@media print { .scroll, pre { overflow: visible; max-height: none; } }
"""
