// On a phone each row of a table is a card (cards.css). What that needs and the table does not say itself is noted here:
// every cell's column, which cell names the row, which are long, and which say nothing. Without this script tables scroll.
(() => {
  const phone = matchMedia("(max-width: 40rem)");
  const LONG = 25; // characters that fit into half of a phone
  const WORD = /\S{19}/; // one that would be broken there
  const shown = "input, select, button, img, svg, progress, .sn-span, .material-symbols-outlined";
  const words = (cell) => {
    const seen = cell.cloneNode(true);
    for (const each of seen.querySelectorAll(".material-symbols-outlined, .sn-unseen")) each.remove();
    return seen.textContent.replace(/\s+/g, " ").trim();
  };

  const columns = (table) => {
    const names = [];
    for (const cell of table.tHead?.rows[0]?.cells ?? []) {
      const name = words(cell).replace(/\s*[↑↓]$/, "");
      for (let at = 0; at < cell.colSpan; at++) names.push(name);
    }
    return names;
  };
  const first = (row, cells) => // the theme lists what a record is called anywhere, tables of ours say it first
    cells.find((cell) => cell.tagName === "TH") || (row.matches(".data-row") && cells.find((cell) => cell.querySelector("a"))) || cells[0];
  const note = (row, names) => {
    let at = 0;
    for (const cell of row.cells) {
      const label = cell.dataset.label ?? "";
      cell.dataset.label = names[at] ?? label.charAt(0).toUpperCase() + label.slice(1);
      at += cell.colSpan;
      const says = words(cell);
      cell.classList.toggle("sn-blank", /^[-–]?$/.test(says) && !cell.querySelector(shown));
      cell.classList.toggle("sn-long", says.length > LONG || WORD.test(says) || cell.childElementCount > 3);
    }
    const cells = [...row.cells].filter((cell) => !cell.matches(".action-checkbox, .sn-pick"));
    first(row, cells)?.classList.add("sn-first");
    row.dataset.card = "";
  };
  const look = () => {
    for (const table of document.querySelectorAll(".sn-table, .sn-prose table, #result_list")) {
      if (!table.tHead && table.offsetWidth <= table.parentElement.clientWidth) continue; // it fits, and has no names to give
      const names = table.id === "result_list" ? [] : columns(table);
      for (const body of table.tBodies) {
        for (const row of body.rows) if (row.dataset.card === undefined && row.cells.length > 1) note(row, names);
      }
      table.classList.add("sn-rows");
    }
  };
  let asked = false;
  const ask = () => {
    if (asked || !phone.matches) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; look(); });
  };
  if (phone.matches) look();
  phone.addEventListener("change", ask);
  new MutationObserver(ask).observe(document.body, { childList: true, subtree: true }); // lists that go on by themselves
})();
