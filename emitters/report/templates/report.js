// Sorting, filtering, scrolling by keys, and opening what a link points at; the page says the same without it.
"use strict";
for (const table of document.querySelectorAll("table#layer-table")) {
  const body = table.tBodies[0];
  const key = (row, at) => row.cells[at].dataset.v ?? row.cells[at].textContent;
  table.querySelectorAll("th[data-sort]").forEach((head) => {
    const at = head.cellIndex;
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const compare = head.dataset.sort === "n"
        ? (a, b) => Number(key(a, at)) - Number(key(b, at))
        : (a, b) => key(b, at).localeCompare(key(a, at));
      const rows = [...body.rows].sort(compare);
      body.append(...(down ? rows.reverse() : rows));
    });
  });
  document.getElementById("filter").addEventListener("input", (event) => {
    document.body.classList.toggle("filtered", event.target.value !== "");
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
// What scrolls can be scrolled by the arrow keys.
const reachable = () => {
  for (const box of document.querySelectorAll(".scroll, .wide")) {
    box.tabIndex = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight ? 0 : -1;
  }
};
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);
reachable();
const open = () => {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (found instanceof HTMLDetailsElement) {
    for (let box = found; box; box = box.parentElement.closest("details")) box.open = true;
    found.querySelector("summary").focus();
  }
};
addEventListener("hashchange", open);
open();
