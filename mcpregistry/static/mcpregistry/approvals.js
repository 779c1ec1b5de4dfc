// The approval pages: countdowns, keys, what others do, told aloud. Deciding is always a form that a person sends.
(() => {
  "use strict";
  const root = document.getElementById("approvals");
  const page = root.dataset.page;
  const announcer = document.getElementById("announcer");
  // Clocks differ: count by the server's.
  const skew = Number(root.dataset.now) - Date.now() / 1000;

  // Countdown

  const left = (seconds) => {
    if (seconds <= 0) return "expired";
    const s = Math.floor(seconds);
    if (s < 3600) return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
    return s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 86400)} d`;
  };
  const tick = () => {
    const now = Date.now() / 1000 + skew;
    for (const clock of document.querySelectorAll("[data-until]")) {
      const seconds = Number(clock.dataset.until) - now;
      const text = left(seconds);
      if (clock.textContent !== text) clock.textContent = text;
      clock.classList.toggle("sn-soon", seconds > 0 && seconds < 60);
      clock.classList.toggle("sn-over", seconds <= 0);
    }
  };
  setInterval(tick, 500);
  tick();

  // Title and announcements: a line stays in the title until somebody looks, or for ten seconds.

  let news = "";
  let forget = 0;
  const entitle = () => {
    const list = document.getElementById("queue");
    const total = list ? Number(list.dataset.total) : 0;
    const name = `${total ? `(${total}) ` : ""}${root.dataset.title} | Slipsnisse`;
    document.title = news ? `${news} · ${name}` : name;
  };
  const announce = (text) => {
    news = text;
    announcer.textContent = text;
    entitle();
    clearTimeout(forget);
    forget = setTimeout(() => {
      news = "";
      entitle();
    }, 10000);
  };

  // Sound: off until somebody switches it on here; a tone made by the browser.

  const sound = document.getElementById("sound");
  const kept = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("approvalsSound", value);
      return localStorage.getItem("approvalsSound") === "on";
    } catch {
      return false;
    }
  };
  let audio = null;
  const beep = () => {
    audio ??= new AudioContext();
    const tone = audio.createOscillator();
    const volume = audio.createGain();
    tone.frequency.value = 660;
    volume.gain.setValueAtTime(0.12, audio.currentTime);
    volume.gain.exponentialRampToValueAtTime(0.001, audio.currentTime + 0.35);
    tone.connect(volume).connect(audio.destination);
    tone.start();
    tone.stop(audio.currentTime + 0.35);
  };
  const showSound = () => {
    sound.setAttribute("aria-pressed", String(kept()));
    sound.firstElementChild.textContent = kept() ? "notifications_active" : "notifications_off";
  };
  if (sound) {
    showSound();
    sound.addEventListener("click", () => {
      kept(kept() ? "off" : "on");
      showSound();
      if (kept()) beep();
    });
  }

  // Keys

  const keys = document.getElementById("keys");
  const typing = (event) =>
    event.ctrlKey || event.metaKey || event.altKey || event.isComposing || keys.open ||
    event.target.closest("input, textarea, select, [contenteditable]");

  // The queue: one row is "here"; it stays where it was when the list is renewed.

  let here = "";
  let place = 0;
  const rows = () => [...document.querySelectorAll(".sn-row")];
  const choose = (row, focus = true) => {
    for (const each of document.querySelectorAll(".sn-here")) each.classList.remove("sn-here");
    if (!row) return;
    row.classList.add("sn-here");
    here = row.id;
    place = rows().indexOf(row);
    if (focus) {
      row.querySelector("a").focus({ preventScroll: true });
      row.scrollIntoView({ block: "nearest" });
    }
  };
  const move = (by) => {
    const all = rows();
    const at = all.findIndex((row) => row.id === here);
    choose(all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)]);
  };
  const open = (hash) => {
    const row = document.getElementById(here) ?? rows()[0];
    if (row) location.assign(row.querySelector("a").href + hash);
  };
  const inQueue = {
    j: () => move(1),
    k: () => move(-1),
    a: () => open("#to-approve"),
    r: () => open("#to-reject"),
    e: () => open("#to-edit"),
    Enter: () => open(""),
    "/": () => document.getElementById("search").focus(),
  };

  // One call: a key makes ready, Enter or Ctrl+Enter sends.

  let intent = "approve";
  const make = (what) => {
    const form = document.getElementById("decision");
    if (!form) return;
    intent = what;
    const edit = document.getElementById("edit");
    if (what === "edit" && edit) {
      edit.open = true;
      document.getElementById("edited").focus();
    } else if (what === "reject" || root.dataset.risk === "high") {
      document.getElementById("reason").focus();
    } else {
      document.getElementById("approve").focus();
    }
    form.dataset.intent = intent;
  };
  const send = () => {
    const button = { approve: "approve", reject: "deny", edit: "approve-edited" }[intent];
    document.getElementById(button)?.click();
  };
  const inDetail = {
    a: () => make("approve"),
    r: () => make("reject"),
    e: () => make("edit"),
    u: () => location.assign(root.dataset.queue),
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.closest("#decision")) {
      event.preventDefault();
      if (event.target.id === "edited") intent = "edit";
      send();
      return;
    }
    if (event.key === "Escape" && event.target.closest("input, textarea")) event.target.blur();
    if (typing(event)) return;
    // A focused button or link keeps its own Enter; a dialog that was just closed still has the focus for a moment.
    if (event.key === "Enter" && event.target.closest("a, button, summary") && !keys.contains(event.target)) return;
    const act = (page === "queue" ? inQueue : inDetail)[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
  document.addEventListener("focusin", (event) => {
    const row = event.target.closest(".sn-row");
    if (row) choose(row, false);
  });
  // No element has these names: the browser would focus it after us.
  if (page === "detail" && location.hash.startsWith("#to-")) make(location.hash.slice(4));

  // What the server says while the page is open.

  let before = new Set();
  document.body.addEventListener("htmx:beforeSwap", () => {
    before = new Set(rows().map((row) => row.id));
  });
  // A new row has its time at once; until settling htmx gives it the classes of the old one, so once more after that.
  document.body.addEventListener("htmx:afterSwap", tick);
  document.body.addEventListener("htmx:afterSettle", (event) => {
    tick();
    if (page === "queue") renewed();
    else if (event.target.id === "status" || event.detail.elt?.id === "status") stands();
  });
  const renewed = () => {
    const all = rows();
    const lines = [...document.querySelectorAll("#news li")].map((line) => line.textContent);
    const fresh = all.filter((row) => !before.has(row.id)).length;
    const gone = [...before].filter((id) => !document.getElementById(id)).length;
    if (here) choose(document.getElementById(here) ?? all[Math.min(place, all.length - 1)], false);
    if (lines.length) announce(lines.join("; "));
    else if (fresh) announce(`${fresh} new ${fresh === 1 ? "call is" : "calls are"} waiting`);
    else if (gone) announce(`${gone} ${gone === 1 ? "call is" : "calls are"} no longer waiting`);
    else entitle();
    if (fresh && kept()) beep();
  };
  const stands = () => {
    const status = document.getElementById("status");
    if (status.dataset.end === "waiting" && !status.dataset.changed) return;
    // Whatever is pressed now would be refused; what was typed stays to be copied.
    for (const button of document.querySelectorAll("#decision button")) button.disabled = true;
    announce(status.dataset.end === "waiting" ? "The arguments have been edited" : status.dataset.words);
  };

  const offline = document.getElementById("offline");
  document.body.addEventListener("htmx:sendError", () => offline && (offline.hidden = false));
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (offline && event.detail.xhr?.status) offline.hidden = true;
  });
  entitle();
})();
