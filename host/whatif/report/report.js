"use strict";
// Draws a chart from the JSON of its figure. Colors and fonts are those of the page.
function draw(figure) {
  const chart = JSON.parse(figure.dataset.chart);
  const lines = chart.lines ?? [], bars = chart.bars ?? [], times = chart.at, dashes = ["", "6,3", "2,2", "8,2,2,2"];
  const element = (parent, name, attributes, text) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    if (text !== undefined) e.textContent = text;
    return parent.appendChild(e);
  };
  const stroke = (i, width) => `fill:none;stroke:var(--line${i + 1});stroke-width:${width};stroke-dasharray:${times ? dashes[i % 4] : ""}`;
  const span = (parent, name) => parent.appendChild(Object.assign(document.createElement("span"), { className: name }));

  if (lines.length > 1) {
    const key = span(figure.firstElementChild, "key");
    lines.forEach((line, i) => {
      const entry = span(key, "");
      element(element(entry, "svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }), "path", { d: "M0 4h24", style: stroke(i, 3) });
      entry.append(line.name);
    });
    if (chart.omitted > 0) key.append(`and ${chart.omitted} more`);
  }

  // Round numbers from 0 to high, at most nine.
  const ticks = (high) => {
    const power = 10 ** Math.floor(Math.log10(high / 4));
    const step = power * ([1, 2, 5].find((f) => high / (f * power) <= 8) ?? 10);
    return Array.from({ length: Math.floor(high / step * (1 + 1e-9)) + 1 }, (_, i) => i * step);
  };
  const slanted = bars.length > 8;
  const left = 70, top = 10, width = 600, height = 240, wide = 530, high = slanted ? 130 : 185;
  const values = lines.flatMap((line) => line.values ?? []).filter((v) => v !== null);
  const maxY = Math.max(chart.mark, ...values.map((v) => v * 1.05)) || 1, maxX = Math.max(0, ...(times ?? [])) || 1;
  const x = (v) => left + wide * v / maxX, y = (v) => top + high * (1 - v / maxY);
  const svg = element(figure, "svg", { role: "img", viewBox: `0 0 ${width} ${height}`, "aria-label": chart.title });
  const label = (v) => String(Number(v.toPrecision(6)));
  for (const v of ticks(maxY)) {
    element(svg, "path", { d: `M${left} ${y(v)}h${wide}`, style: "stroke:var(--grid);stroke-width:.5" });
    element(svg, "text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, label(v));
  }
  element(svg, "text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(12 ${top + high / 2}) rotate(-90)` }, chart.unit);
  if (chart.mark > 0) element(svg, "path", { d: `M${left} ${y(chart.mark)}h${wide}`, style: "stroke:var(--text);stroke-dasharray:1,3" });
  if (!times) {
    const group = wide / Math.max(1, bars.length), bar = 0.7 * group / Math.max(1, lines.length);
    bars.forEach((name, j) => {
      const middle = left + group * (j + 0.5);
      element(svg, "text", { x: 0, y: 0, "text-anchor": slanted ? "end" : "middle", transform: `translate(${middle} ${top + high + 16})` + (slanted ? " rotate(-40)" : "") }, name);
      lines.forEach((line, i) => {
        const v = line.values?.[j] ?? 0;
        element(svg, "rect", { x: middle + bar * (i - lines.length / 2), y: y(v), width: bar, height: top + high - y(v), style: `fill:var(--line${i + 1})` });
      });
    });
    return;
  }
  for (const v of ticks(maxX)) element(svg, "text", { x: x(v), y: top + high + 16, "text-anchor": "middle" }, label(v));
  element(svg, "text", { x: left + wide / 2, y: height - 6, "text-anchor": "middle" }, "seconds");
  for (const at of chart.events ?? []) element(svg, "path", { d: `M${x(at)} ${top}v${high}`, style: "stroke:var(--grid);stroke-width:.75" });
  lines.forEach((line, i) => {
    // A value holds until the next one.
    let d = "";
    line.values?.forEach((v, j) => {
      if (v !== null && j < times.length) d += d ? `H${x(times[j])}V${y(v)}` : `M${x(times[j])} ${y(v)}`;
    });
    if (d) element(svg, "path", { d, style: stroke(i, 1.5) });
  });
}
document.querySelectorAll("figure[data-chart]").forEach(draw);

// Sorts tables by a click on a heading, and filters them by a text.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "descending" || (!heading.hasAttribute("aria-sort") && !heading.classList.contains("n"));
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const numeric = heading.classList.contains("n");
      const compare = (a, b) => numeric ? parseFloat(value(a)) - parseFloat(value(b)) : value(a).localeCompare(value(b));
      body.append(...[...body.rows].sort((a, b) => down ? compare(a, b) : compare(b, a)));
    });
  });
  if (body.rows.length < 8) continue;
  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = "Filter";
  filter.setAttribute("aria-label", "Filter the rows of the table");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  table.parentElement.before(filter);
}
// Closed parts are printed too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
