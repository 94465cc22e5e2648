"use strict";
// Click or press a heading to sort by its column: numbers by value, texts by letters; empty places stay last.
function sort(heading) {
  const table = heading.closest("table"), body = table.tBodies[0];
  const column = heading.cellIndex;
  const down = heading.getAttribute("aria-sort") === "ascending";
  const key = row => {
    const cell = row.cells[column];
    if ("value" in cell.dataset) return Number(cell.dataset.value);
    return cell.textContent === "–" ? null : cell.textContent;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const rows = Array.from(body.rows, row => [key(row), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return down ? compare(b, a) : compare(a, b);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows.map(([, row]) => row));
}
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sort(button.closest("th")));
}
// A link to the runs behind a number opens them.
function open() {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = place; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (place) place.scrollIntoView();
}
addEventListener("hashchange", open);
open();
