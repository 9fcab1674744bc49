// Sorts tables by a click on a heading, and filters them by a text. Without it the page shows the same.
"use strict";
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
