// The list of calls follows what comes: "l" or its button begins and pauses it. It rests while nobody looks, while a filter is open or rows are chosen.
(() => {
  "use strict";
  const bar = document.getElementById("calls-bar");
  const button = document.getElementById("tail");
  const form = document.getElementById("changelist-form");
  if (!bar || !button || !form) return;
  const EVERY = 2000; // milliseconds
  const KEPT = "slipsnisse-tail";
  let on = false, version = "", timer = 0, asking = false;

  const show = () => {
    button.setAttribute("aria-pressed", String(on));
    button.children[0].textContent = on ? "pause" : "play_arrow";
    button.children[1].textContent = on ? "Pause" : "Follow live";
  };
  const busy = () => document.hidden || form.querySelector("input.action-select:checked") !== null;
  const shown = () => new Set([...form.querySelectorAll("#result_list a[href]")].map((link) => link.pathname));

  const look = async () => {
    if (!on || asking) return;
    if (!busy()) {
      asking = true;
      try {
        const asked = new URLSearchParams(location.search);
        asked.set("have", version);
        const answer = await fetch(`${bar.dataset.tail}?${asked}`, { credentials: "same-origin" });
        if (answer.redirected || answer.status === 403) { on = false; show(); }
        else if (answer.status === 200) put(await answer.text(), answer.headers.get("X-Version") ?? "");
      } catch { /* the site may be restarting: look again */ }
      asking = false;
    }
    if (on) timer = setTimeout(look, EVERY);
  };

  const put = (html, next) => {
    const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("result_list");
    const old = form.querySelector("#result_list");
    if (!fresh) return;
    if (!old) { if (on) location.reload(); return; }
    const before = shown(), focused = document.activeElement?.pathname;
    old.querySelectorAll("tbody").forEach((body) => body.remove());
    for (const body of fresh.querySelectorAll("tbody")) {
      if (version && ![...body.querySelectorAll("a[href]")].some((link) => before.has(link.pathname))) body.classList.add("sn-new");
      old.append(body);
    }
    if (focused) [...old.querySelectorAll("a[href]")].find((link) => link.pathname === focused)?.focus();
    version = next;
  };

  // New calls come to the first page, and there alone.
  const page = () => new URLSearchParams(location.search).get("p") || "1";
  const first = () => {
    const asked = new URLSearchParams(location.search);
    asked.delete("p");
    location.search = asked.toString();
  };

  const turn = (to) => {
    on = to;
    try { sessionStorage.setItem(KEPT, on ? "on" : ""); } catch { /* private windows may refuse */ }
    show();
    clearTimeout(timer);
    if (on && page() !== "1") first(); else look();
  };

  button.addEventListener("click", () => turn(!on));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "l" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input:not([type=checkbox]), select, textarea, dialog")) return;
    event.preventDefault();
    turn(!on);
  });
  document.addEventListener("visibilitychange", () => { if (on && !document.hidden) { clearTimeout(timer); look(); } });
  let kept = "";
  try { kept = sessionStorage.getItem(KEPT); } catch { /* as above */ }
  if (kept === "on" && page() === "1") turn(true); else show();
})();
