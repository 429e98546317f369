"use strict";
function readCell(row, column) {
  const text = row.cells[column].dataset.value;
  return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
}
function compareCells(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
}
function sortBy(head) {
  const table = head.closest("table");
  const rows = Array.from(table.tBodies[0].rows);
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  rows.sort((one, other) => {
    const a = readCell(one, head.cellIndex);
    const b = readCell(other, head.cellIndex);
    if (a === null || b === null) return (a === null) - (b === null);  // unknown values stay at the end
    return sign * compareCells(a, b);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
}
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
