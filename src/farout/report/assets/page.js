"use strict";
(() => {
  const tip = document.getElementById("tip");
  let shown = null, byKey = false;

  // Text from data reaches the page as textContent alone.
  const hide = () => {
    if (shown) shown.classList.remove("on");
    shown = null;
    tip.textContent = "";
  };
  const place = () => {
    const mark = shown.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, mark.left + mark.width / 2 - box.width / 2), innerWidth - box.width - 4);
    const above = mark.top - box.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : mark.bottom + 8}px`;
  };
  const show = (element, key) => {
    byKey = key;
    if (shown === element) return;
    hide();
    shown = element;
    element.classList.add("on");
    tip.textContent = element.dataset.tip;
    tip.style.left = "0px"; // measured where it has room
    place();
  };
  document.addEventListener("pointerover", (event) => {
    const element = event.target.closest("[data-tip]");
    if (element) show(element, false);
    else if (!byKey) hide();
  });
  // What the keyboard shows stays while the page scrolls to it; what the pointer showed is no longer under it.
  document.addEventListener("scroll", () => (shown && byKey ? place() : hide()), { capture: true, passive: true });

  // Arrow keys walk through the values of the chart that has the focus.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const chart = document.activeElement.closest("svg.chart");
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!chart || !step) return;
    const values = [...chart.querySelectorAll("[data-tip]")];
    if (!values.length) return;
    event.preventDefault();
    const last = values.indexOf(shown);
    show(values[last < 0 ? (step > 0 ? 0 : values.length - 1) : (last + step + values.length) % values.length], true);
  });
  document.addEventListener("focusout", hide);

  // Tables that can be sorted: numbers by value, words by their letters, empty cells last.
  const key = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value ?? cell.textContent.trim();
    return value === "" ? null : Number.isNaN(Number(value)) ? value : Number(value);
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const sort = (heading) => {
    const table = heading.closest("table"), body = table.tBodies[0], column = heading.cellIndex;
    const up = heading.getAttribute("aria-sort") !== "ascending";
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : up ? compare(a, b) : compare(b, a)));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
  };
  for (const heading of document.querySelectorAll("table.sortable thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(heading));
  }

  // Without this script all tables stand one below the other.
  for (const group of document.querySelectorAll(".tabs")) {
    const panels = [...group.children], list = document.createElement("div");
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", group.dataset.label);
    const tabs = panels.map((panel, place) => {
      const tab = document.createElement("button");
      Object.assign(tab, { type: "button", id: `${panel.id}-tab`, textContent: panel.dataset.title });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => choose(place));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) choose((place + step + panels.length) % panels.length, true);
      });
      return tab;
    });
    const choose = (wanted, focus) => {
      panels.forEach((panel, place) => { panel.hidden = place !== wanted; });
      tabs.forEach((tab, place) => {
        tab.setAttribute("aria-selected", String(place === wanted));
        tab.tabIndex = place === wanted ? 0 : -1;
      });
      if (focus) tabs[wanted].focus();
    };
    list.append(...tabs);
    group.before(list);
    choose(0);
  }
})();
