"""Style sheet of a report page: light and dark, and A4 paper. Colour is a claim: grey until something was shown."""

STYLE = """
:root{color-scheme:light dark;
--page:light-dark(#f5f6f8,#0e1115);--card:light-dark(#fff,#161a20);--sunk:light-dark(#eff1f4,#1d222a);
--line:light-dark(#dde1e7,#2a313b);--edge:light-dark(#808a98,#687384);--ink:light-dark(#14181f,#e9ecf0);
--ink2:light-dark(#434b58,#bcc3cd);--ink3:light-dark(#5c6572,#929ba8);--accent:light-dark(#3d48c6,#a3acff);
--better:light-dark(#0a6680,#5cc6db);--worse:light-dark(#b1400a,#f39a63);
--better-fill:light-dark(#0b6f8a,#45b8cf);--worse-fill:light-dark(#c4571c,#d97a42);
--s1:light-dark(#3a6ec4,#7aa5f0);--s2:light-dark(#8a4fbf,#c093ee);--s3:light-dark(#b8477f,#ee8cb9);
--s4:light-dark(#6d7a12,#b3c04a);--s5:light-dark(#2e7d4a,#74c98f);--s6:light-dark(#5b6673,#a7b0bc);
--mono:ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,monospace}
*,*::before,*::after{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:400 14px/20px Inter,ui-sans-serif,system-ui,-apple-system,
"Segoe UI",Roboto,sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1080px;margin:0 auto;padding:24px 24px 48px;display:grid;gap:16px;grid-template-columns:minmax(0,1fr)}
h1,h2,h3,p,dl,dd,ul,figure,pre{margin:0;padding:0}
h1{font-size:20px;line-height:28px;font-weight:600}
h2{font-size:14px;line-height:20px;font-weight:600}
h3{font-size:12px;line-height:16px;font-weight:600;color:var(--ink2)}
code,pre{font:400 12px/18px var(--mono);overflow-wrap:anywhere}
pre{background:var(--sunk);border-radius:6px;padding:10px 12px;white-space:pre-wrap}
a{color:var(--accent)}
.sub,.lead,.note{color:var(--ink3)}
.sub{overflow-wrap:anywhere}
.note{font-size:12px;line-height:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px;display:grid;gap:12px;
grid-template-columns:minmax(0,1fr);min-width:0;align-content:start}
.decision{grid-template-columns:40px minmax(0,1fr);gap:16px;border-left:4px solid var(--edge)}
.decision.ship{border-left-color:var(--better-fill)}.decision.loss{border-left-color:var(--worse-fill)}
.decision svg{width:40px;height:40px}
.decision .word{font-size:24px;line-height:32px;font-weight:600}
.decision .say{font-size:16px;line-height:24px;overflow-wrap:anywhere}
.decision .next{color:var(--ink2);margin-top:8px}
.mark{fill:none;stroke:var(--ink2);stroke-width:2.6;stroke-linecap:round;stroke-linejoin:round}
.ship .mark{stroke:var(--better-fill)}.loss .mark{stroke:var(--worse-fill)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(215px,1fr));gap:16px}
.cards .card{gap:6px;align-content:start}
.cards header{display:flex;justify-content:space-between;gap:8px}
.delta{font-size:26px;line-height:32px;font-weight:600}
.delta.better{color:var(--better)}.delta.worse{color:var(--worse)}
.delta small{font-size:12px;font-weight:400}
.role{color:var(--ink3);font-size:12px}
.arms{display:flex;gap:6px;align-items:center;flex-wrap:wrap}
.arms i{width:9px;height:9px;border-radius:50%;display:inline-block}
i.base{border:1.5px solid var(--ink3);background:var(--card)}i.cand{background:var(--accent)}
ul{list-style:none;display:grid;gap:6px}
li{overflow-wrap:anywhere}
.reasons li{display:grid;grid-template-columns:16px minmax(0,1fr);gap:8px}
.reasons li::before{content:"✕";color:var(--worse)}
.asks{grid-template-columns:repeat(auto-fit,minmax(280px,1fr));column-gap:24px}
.asks li{padding-left:14px;text-indent:-14px}.asks li::before{content:"·";padding-right:8px;color:var(--edge)}
dl{display:grid;grid-template-columns:minmax(110px,max-content) minmax(0,1fr);gap:4px 16px}
dt{color:var(--ink3)}dd{overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th{text-align:left;color:var(--ink3);font-weight:500;font-size:12px;white-space:nowrap}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.num,th.num{text-align:right;white-space:nowrap}
td.text{white-space:nowrap}td.text:last-child{white-space:normal;overflow-wrap:anywhere;min-width:90px}
.better{color:var(--better)}.worse{color:var(--worse)}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:16px}
.legend{display:flex;gap:16px;flex-wrap:wrap;font-size:12px;color:var(--ink3)}
.legend span{display:inline-flex;gap:6px;align-items:center}
.legend i{width:9px;height:9px;border-radius:50%;display:inline-block}
svg.chart{display:block;overflow:visible;font-size:11px}
svg.chart text{fill:var(--ink)}
svg.chart .tick{fill:var(--ink3)}
.halo{paint-order:stroke;stroke:var(--card);stroke-width:4px}
svg.chart .label,svg.chart .value{font-size:12px}
.grid{stroke:var(--line)}.zero{stroke:var(--edge);stroke-width:1.5}
.margin{stroke:var(--edge);stroke-dasharray:3 3}
.bar{stroke:var(--ink3);stroke-width:1.5}.bar.better{stroke:var(--better-fill);stroke-width:3}
.bar.worse{stroke:var(--worse-fill);stroke-width:3}
.ring{fill:var(--card);stroke:var(--ink3);stroke-width:1.5}
.ring.better{fill:var(--better-fill);stroke:var(--card)}.ring.worse{fill:var(--worse-fill);stroke:var(--card)}
.dot{fill:currentColor;fill-opacity:.75}.mean{stroke:currentColor;stroke-width:2;stroke-opacity:.6}
.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}
.band{fill:var(--accent);fill-opacity:.14}
.curve,.bound,.hollow{fill:none;vector-effect:non-scaling-stroke}
.curve{stroke:var(--accent);stroke-width:2}.bound{stroke:var(--accent);stroke-width:1;stroke-opacity:.6}
.hollow{stroke:var(--ink3);stroke-width:2;stroke-dasharray:5 3}
footer{color:var(--ink3);font-size:12px;line-height:16px}
@media (max-width:760px){main{padding:16px}.decision{grid-template-columns:minmax(0,1fr)}.decision svg{width:32px;
height:32px}.wide{min-width:640px}}
@media print{:root{color-scheme:light}@page{size:A4;margin:14mm}body{background:#fff;font-size:11px;line-height:15px}
main{max-width:none;padding:0;gap:10px}.card{break-inside:avoid;padding:10px;gap:8px}.card.long{break-inside:auto}
tr,li{break-inside:avoid}h2{break-after:avoid}.scroll{overflow:visible}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
