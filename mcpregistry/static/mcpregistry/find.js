// Search over everything: Ctrl-K (or "/" where the page has no search of its own) opens a box over any page; arrows choose, Enter goes.
(() => {
  "use strict";
  const box = document.getElementById("find");
  if (!box) return;
  const field = box.querySelector("input"), hits = box.querySelector("[data-hits]");
  const PAUSE = 180; // milliseconds without a key
  let timer = 0, asked = 0, at = -1;

  const links = () => [...hits.querySelectorAll("a")];
  const mark = (to) => {
    const all = links();
    at = all.length ? (to + all.length) % all.length : -1;
    all.forEach((link, number) => { link.classList.toggle("sn-at", number === at); if (number === at) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); });
    all[at]?.scrollIntoView({ block: "nearest" });
  };
  const look = async () => {
    const mine = ++asked;
    try {
      const answer = await fetch(`${box.dataset.url}?q=${encodeURIComponent(field.value)}`, { credentials: "same-origin" });
      if (mine !== asked) return;
      if (answer.redirected || !answer.ok) { box.close(); location.assign(box.dataset.page); return; }
      hits.innerHTML = await answer.text();
      mark(field.value.trim() ? 0 : -1);
    } catch { /* the site may be restarting: the next key asks again */ }
  };
  const open = () => {
    if (box.open) { field.select(); return; }
    for (const other of document.querySelectorAll("dialog[open]")) other.close();
    box.showModal();
    field.select();
    look();
  };
  const typing = (place) => place instanceof Element && place.closest("input:not([type=checkbox]):not([type=radio]), select, textarea, [contenteditable=true]");

  document.addEventListener("keydown", (event) => {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    const own = document.querySelector("#searchbar, main input[type=search]");
    if ((event.key === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey)
        || (event.key === "/" && plain && !own && !typing(event.target) && !document.querySelector("dialog[open]"))) {
      event.preventDefault();
      event.stopImmediatePropagation();
      open();
    }
  }, true);
  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.closest("[data-find]")) { event.preventDefault(); open(); }
    else if (event.target === box) box.close(); // beside it
  });
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, PAUSE); });
  box.addEventListener("keydown", (event) => {
    event.stopPropagation(); // the page's own keys rest
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); mark(at + (event.key === "ArrowDown" ? 1 : -1)); }
    else if (event.key === "Enter" && event.target === field) { event.preventDefault(); links()[at]?.click(); }
  });
})();
