"use strict";
// Sorting and filtering. Without JavaScript every table keeps its original order.

const cellAt = (row, column) => {
  let at = 0;
  for (const cell of row.cells) {
    if (column < at + cell.colSpan) return cell;
    at += cell.colSpan;
  }
  return null;
};

// Numbers sort by value, words alphabetically; cells without a number come last in both directions.
const compare = (column, sign) => (one, other) => {
  const [a, b] = [cellAt(one, column), cellAt(other, column)];
  const [x, y] = [a.dataset.sort, b.dataset.sort];
  if (x !== undefined && y !== undefined) return sign * (Number(x) - Number(y));
  if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
  return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
};

const sortable = (table) => {
  const heads = [...table.querySelectorAll("thead .columns th")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort(compare(column, down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
};

const filterable = (table) => {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 12) return;
  const box = document.createElement("div");
  box.className = "filter";
  const label = document.createElement("label");
  label.textContent = "Filter rows ";
  const input = document.createElement("input");
  input.type = "search";
  const shown = document.createElement("span");
  shown.setAttribute("role", "status");
  label.append(input);
  box.append(label, shown);
  table.closest(".scroll").before(box);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += row.hidden ? 0 : 1;
    }
    shown.textContent = words.length ? `${left} of ${rows.length} rows` : "";
  });
};

for (const table of document.querySelectorAll("table.data")) {
  sortable(table);
  filterable(table);
}
