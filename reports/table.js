"use strict";
// Sorting, filtering and the details dialog. Without JavaScript every link is an anchor and every
// table stands as it was written.

const cellAt = (row, column) => {
  let at = 0;
  for (const cell of row.cells) {
    if (column < at + cell.colSpan) return cell;
    at += cell.colSpan;
  }
  return null;
};

// Numbers by value, words by the alphabet; what has no number comes last in both directions.
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
  if (rows.length < 5) return;
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

const dialog = document.getElementById("details");
let home = null; // where the panel in the dialog stands when it is closed

const putBack = () => {
  if (home) home.place.replaceWith(home.panel);
  home = null;
};

const show = (panel) => {
  putBack();
  const place = document.createComment("in the dialog");
  panel.replaceWith(place);
  home = { panel, place };
  dialog.querySelector(".body").append(panel);
  panel.querySelector("details").open = true;
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
};

const unfold = (element) => {
  for (let at = element; at; at = at.parentElement) if (at.localName === "details") at.open = true;
  const own = element.querySelector(":scope > details");
  if (own) own.open = true;
};

dialog.addEventListener("close", putBack);
dialog.querySelector(".close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const target = document.getElementById(link.getAttribute("href").slice(1));
  if (target && target.classList.contains("panel")) {
    event.preventDefault();
    show(target);
  } else if (dialog.open) {
    dialog.close();
  }
});
const arrive = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.classList.contains("panel")) {
    unfold(target);
    target.scrollIntoView();
  }
};
addEventListener("hashchange", arrive);
arrive();
